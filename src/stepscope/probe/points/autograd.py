"""Backward run, loss scaled."""

import functools
from threading import get_ident
from time import monotonic_ns
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

from stepscope.probe.core import Core
from stepscope.probe.log import BACKWARD, LEAVE
from stepscope.probe.patches import Patches
from stepscope.probe.points.timing import leave_out, note, timed


def install(core: Core, patches: Patches) -> None:
    """Patch `torch.autograd.backward`, which `Tensor.backward` calls, `grad`, and loss scaling."""
    log, device = core.log, core.device
    append = log.events.append
    original_backward = torch.autograd.backward
    original_grad = torch.autograd.grad
    original_scale = torch.amp.GradScaler.scale
    unscaled: list[Any] = [None, None]  # a scaled loss and what it was before

    def prepare(tensors: Any) -> None:
        """Before a backward: its loss, and whether a forward was seen at all."""
        log.backwards += 1
        if not log.forwards and core.roots is not None and core.backward_depth == 0:
            core.roots.search()
        loss = tensors[0] if isinstance(tensors, list | tuple) and len(tensors) == 1 else tensors
        if isinstance(loss, Tensor) and loss.numel() == 1 and loss.is_floating_point():
            device.loss(unscaled[1] if loss is unscaled[0] else loss)
        unscaled[0] = unscaled[1] = None
        if device.timing:
            device.mark(BACKWARD)

    @functools.wraps(original_backward)
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
        if core.compiles and is_compiling():
            original_backward(tensors, *args, **kwargs)
            return
        if log.off:
            core.backward_depth += 1  # fixes tell by it which calls are of layers computed anew
            try:
                original_backward(tensors, *args, **kwargs)
            finally:
                core.backward_depth -= 1
            return
        if get_ident() != log.thread and not log.claim(BACKWARD):
            original_backward(tensors, *args, **kwargs)
            return
        begun = monotonic_ns()
        append(BACKWARD)
        append(begun)
        try:
            prepare(tensors)
        except Exception as problem:
            core.guard(problem)
        core.backward_depth += 1
        try:
            original_backward(tensors, *args, **kwargs)
        except BaseException as error:
            leave_out(error)
            raise
        finally:
            core.backward_depth -= 1
            now = monotonic_ns()
            append(LEAVE)
            append(now)
        try:
            if core.look:
                note(core, "backward", now - begun)
            if core.backward_depth == 0:
                core.backward_ended()
        except Exception as problem:
            core.guard(problem)

    @functools.wraps(original_grad)
    def grad(*args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return original_grad(*args, **kwargs)
        core.backward_depth += 1
        try:
            return timed(core, BACKWARD, "backward", original_grad, args, kwargs)
        except BaseException as error:
            leave_out(error)
            raise
        finally:
            core.backward_depth -= 1

    @functools.wraps(original_scale)
    def scale(self: Any, outputs: Any) -> Any:
        scaled = original_scale(self, outputs)
        if not is_compiling() and isinstance(outputs, Tensor):
            unscaled[:] = scaled, outputs.detach()
            core.scaler = self
        return scaled

    patches.set(torch.autograd, "backward", backward)
    patches.set(torch.autograd, "grad", grad)
    patches.set(torch.amp.GradScaler, "scale", scale)
