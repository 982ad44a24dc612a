"""Backward run, loss scaled."""

import functools
from typing import Any

import torch
from torch.compiler import is_compiling

from stepscope.probe.core import Core
from stepscope.probe.log import BACKWARD
from stepscope.probe.patches import Patches


def install(core: Core, patches: Patches) -> None:
    """Patch `torch.autograd.backward`, which `Tensor.backward` calls, `grad`, and loss scaling."""
    log, sites, device = core.log, core.sites, core.device
    original_backward = torch.autograd.backward
    original_grad = torch.autograd.grad
    original_scale = torch.amp.GradScaler.scale
    unscaled: list[Any] = [None, None]  # a scaled loss and what it was before

    def timed(call: Any, loss: Any, args: Any, kwargs: Any) -> Any:
        begun = 0 if is_compiling() else log.enter(BACKWARD)
        if not begun:
            return call(*args, **kwargs)
        depth = log.depth - 1
        try:
            if loss is not None:
                log.backwards += 1
                if core.roots is not None and not log.forwards and core.backward_depth == 0:
                    core.roots.search()
                if _is_scalar(loss):
                    device.loss(unscaled[1] if loss is unscaled[0] else loss)
            unscaled[0] = unscaled[1] = None
            device.mark(BACKWARD)
        except Exception as problem:
            core.guard(problem)
        core.backward_depth += 1
        try:
            return call(*args, **kwargs)
        finally:
            core.backward_depth -= 1
            now = log.leave(depth)
            try:
                sites.add(sites.here("backward"), now - begun)
            except Exception as problem:
                core.guard(problem)

    @functools.wraps(original_backward)
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
        loss = tensors
        if isinstance(tensors, list | tuple) and len(tensors) == 1:
            loss = tensors[0]
        timed(original_backward, loss, (tensors, *args), kwargs)
        if not is_compiling() and core.backward_depth == 0 and not log.off:
            core.backward_ended()

    @functools.wraps(original_grad)
    def grad(*args: Any, **kwargs: Any) -> Any:
        return timed(original_grad, None, args, kwargs)

    @functools.wraps(original_scale)
    def scale(self: Any, outputs: Any) -> Any:
        scaled = original_scale(self, outputs)
        if not is_compiling() and isinstance(outputs, torch.Tensor):
            unscaled[:] = scaled, outputs.detach()
            core.scaler = self
        return scaled

    patches.set(torch.autograd, "backward", backward)
    patches.set(torch.autograd, "grad", grad)
    patches.set(torch.amp.GradScaler, "scale", scale)


def _is_scalar(loss: Any) -> bool:
    return isinstance(loss, torch.Tensor) and loss.numel() == 1 and loss.is_floating_point()
