"""torch.compile called, a compiled function called, graphs captured."""

import functools
import sys
from types import FunctionType, MethodType
from typing import Any

import torch
from torch.compiler import is_compiling

from stepscope.probe.core import Core
from stepscope.probe.log import COMPILE
from stepscope.probe.patches import Patches
from stepscope.probe.points.dynamo import leave_alone
from stepscope.probe.points.module import compiler_in_use, timed_call


def install(core: Core, patches: Patches) -> None:
    """Patch torch.compile and the capture of CUDA graphs."""
    original = torch.compile

    @functools.wraps(original)
    def compile_(model: Any = None, **kwargs: Any) -> Any:
        if model is None:
            return functools.partial(compile_, **kwargs)
        compiler_in_use()
        if core.log.off:
            return original(model, **kwargs)
        roots = core.roots
        if roots is not None and roots.searching:
            roots.unwatch()  # an OptimizedModule keeps the __call__ it finds
        try:
            compiled = original(model, **kwargs)
        finally:
            if roots is not None and roots.searching:
                roots.watch()
        try:
            core.facts.write(
                "compile", site=core.sites.here("compile"), **_described(model, kwargs)
            )
            return _observed(core, model, compiled)
        except Exception as problem:
            core.guard(problem)
            return compiled

    patches.set(torch, "compile", compile_)
    graph = getattr(torch.cuda, "CUDAGraph", None)
    if graph is not None and hasattr(graph, "capture_begin"):
        _watch_capture(core, patches, graph)


def watch_dynamo(core: Core, callback: Any) -> None:
    """Time what Dynamo and its backends compile; `callback` is torch._dynamo.callback.

    Where Dynamo was imported before the probe, not all of our functions were there to be skipped.
    """
    open_: list[int] = []
    late = True

    def begin(_: Any) -> None:
        nonlocal late
        if late:
            late = False
            leave_alone(sys.modules["torch._dynamo.eval_frame"])
        if begun := core.log.enter(COMPILE):
            open_.append(begun)

    def end(_: Any) -> None:
        if open_:
            open_.pop()
            core.log.leave()

    callback.callback_handler.register_start_callback(begin)
    callback.callback_handler.register_end_callback(end)
    core.on_end.append(lambda: callback.callback_handler.remove_start_callback(begin))
    core.on_end.append(lambda: callback.callback_handler.remove_end_callback(end))


def _described(model: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    name = getattr(model, "__qualname__", None) or type(model).__qualname__
    keys = ("mode", "backend", "dynamic", "fullgraph")
    return {"what": name, **{key: str(kwargs[key]) for key in keys if key in kwargs}}


def _observed(core: Core, model: Any, compiled: Any) -> Any:
    """A compiled `optimizer.step` has lost its hooks, a compiled function hides its forward."""
    if isinstance(model, MethodType) and isinstance(model.__self__, torch.optim.Optimizer):
        return _stepping(core, model.__self__, compiled)
    if isinstance(model, FunctionType):
        return _computing(compiled)
    return compiled


def _stepping(core: Core, optimizer: Any, compiled: Any) -> Any:
    @functools.wraps(compiled)
    def step(*args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return compiled(*args, **kwargs)
        fired = core.optimizer_point.fired
        core.optimizer_point.before(optimizer)
        result = compiled(*args, **kwargs)
        if core.optimizer_point.fired == fired:
            core.optimizer_point.after(optimizer)
        return result

    return step


def _computing(compiled: Any) -> Any:
    @functools.wraps(compiled)
    def call(*args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return compiled(*args, **kwargs)
        return timed_call(compiled, args, kwargs, root=False)

    return call


def _watch_capture(core: Core, patches: Patches, graph: Any) -> None:
    begin, end = graph.capture_begin, graph.capture_end

    @functools.wraps(begin)
    def capture_begin(self: Any, *args: Any, **kwargs: Any) -> Any:
        core.device.capturing = True
        return begin(self, *args, **kwargs)

    @functools.wraps(end)
    def capture_end(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return end(self, *args, **kwargs)
        finally:
            core.device.capturing = False

    patches.set(graph, "capture_begin", capture_begin)
    patches.set(graph, "capture_end", capture_end)
