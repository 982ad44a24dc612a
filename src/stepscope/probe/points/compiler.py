"""torch.compile called, a compiled function called, graphs captured. Dynamo skips our own
functions, which it would otherwise compile where a graph breaks.
"""

import functools
import sys
from collections.abc import Iterator
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch.compiler import is_compiling

from stepscope.probe.core import Core
from stepscope.probe.patches import Patches, drop_caller_frame
from stepscope.probe.points.root_model import compiler_in_use, timed_call
from stepscope.probe.row_log import COMPILE
from stepscope.record.facts import CompileCountersFact, CompileFact, SiteKind

_OURS = ("stepscope.probe", "stepscope.store", "stepscope.record", "stepscope.fixes")


def skip_our_code(eval_frame: Any) -> None:
    """Have our functions run as they are; `eval_frame` is torch._dynamo's."""
    for name, module in list(sys.modules.items()):
        if name.startswith(_OURS):
            for code in _codes(module):
                eval_frame.skip_code(code)


def compile_counters() -> CompileCountersFact | None:
    """What Dynamo counted: graphs, breaks and their reasons, recompilations; None if it compiled
    nothing."""
    utils = sys.modules.get("torch._dynamo.utils")
    if utils is None or not utils.counters["frames"].get("total", 0):
        return None
    stats, breaks = utils.counters["stats"], utils.counters["graph_break"]
    compilations = utils.get_compilation_metrics()
    return CompileCountersFact(
        graphs=int(stats.get("unique_graphs", 0)),
        calls_captured=int(stats.get("calls_captured", 0)),
        graph_breaks=int(sum(breaks.values())),
        break_reasons=[str(key)[:200] for key in list(breaks)[:5]],
        # The ids of code that had been compiled before end in other than /0.
        recompiles=sum(not str(one.compile_id).endswith("/0") for one in compilations),
        frames=int(utils.counters["frames"]["total"]),
    )


def _codes(module: ModuleType) -> Iterator[CodeType]:
    for value in list(vars(module).values()):
        functions = vars(value).values() if isinstance(value, type) else [value]
        for function in functions:
            if isinstance(function, FunctionType) and function.__module__ == module.__name__:
                yield from _nested(function.__code__)


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)


def patch_compile(core: Core, patches: Patches) -> None:
    original = torch.compile

    @functools.wraps(original)
    def compile_(model: Any = None, **kwargs: Any) -> Any:
        if model is None:
            return functools.partial(compile_, **kwargs)
        compiler_in_use()
        if core.log.off:
            return original(model, **kwargs)
        if core.clocks is not None:
            core.clocks.occasion()
        roots = core.roots
        if roots is not None and roots.searching:
            roots.unwatch()  # an OptimizedModule keeps the __call__ it finds
        try:
            compiled = original(model, **kwargs)
        finally:
            if roots is not None and roots.searching:
                roots.watch()
        try:
            name = getattr(model, "__qualname__", None) or type(model).__qualname__
            keys = ("mode", "backend", "dynamic", "fullgraph")
            given = {key: str(kwargs[key]) for key in keys if key in kwargs}
            site = core.sites.locate(SiteKind.COMPILE)
            core.facts.write(CompileFact(site=site, what=name, **given))
            return _observed(core, model, compiled)
        except Exception as problem:
            core.guard(problem)
            return compiled

    patches.set(torch, "compile", compile_)
    graph = getattr(torch.cuda, "CUDAGraph", None)
    if graph is None or not hasattr(graph, "capture_begin"):
        return
    begin, end = graph.capture_begin, graph.capture_end

    @functools.wraps(begin)
    def capture_begin(self: Any, *args: Any, **kwargs: Any) -> Any:
        before, core.device.capturing = core.device.capturing, True
        core.captures = True
        try:
            return begin(self, *args, **kwargs)
        except BaseException as error:
            core.device.capturing = before
            drop_caller_frame(error)
            raise

    @functools.wraps(end)
    def capture_end(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return end(self, *args, **kwargs)
        except BaseException as error:
            drop_caller_frame(error)
            raise
        finally:
            core.device.capturing = False

    patches.set(graph, "capture_begin", capture_begin)
    patches.set(graph, "capture_end", capture_end)


def watch_dynamo(core: Core, callback: Any) -> None:
    """Time what Dynamo and its backends compile; `callback` is torch._dynamo.callback. Where Dynamo
    was imported before the probe, not all of our functions were there to be skipped."""
    open_: list[int] = []
    late = True

    def begin(_: Any) -> None:
        nonlocal late
        if late:
            late = False
            skip_our_code(sys.modules["torch._dynamo.eval_frame"])
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


def _observed(core: Core, model: Any, compiled: Any) -> Any:
    """A compiled `optimizer.step` has lost its hooks, a compiled function hides its forward."""
    optimizer = getattr(model, "__self__", None) if isinstance(model, MethodType) else None
    point = core.optimizer_point

    @functools.wraps(compiled)
    def step(*args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return compiled(*args, **kwargs)
        ended = point.ended
        point.before(optimizer)
        result = compiled(*args, **kwargs)
        if point.ended == ended:
            point.stepped(optimizer)
        return result

    @functools.wraps(compiled)
    def call(*args: Any, **kwargs: Any) -> Any:
        if is_compiling() or core.log.unclocked:
            return compiled(*args, **kwargs)
        return timed_call(compiled, args, kwargs, root=False)

    if isinstance(optimizer, torch.optim.Optimizer):
        return step
    return call if isinstance(model, FunctionType) else compiled
