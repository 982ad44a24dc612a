"""Backward run, loss scaled, gradients asked for."""

import functools
from threading import get_ident
from time import monotonic_ns
from typing import Any
from weakref import ref

import torch
from torch import _C, Tensor
from torch._C import _autograd
from torch.compiler import is_compiling

from stepscope.probe.core import Core, call_in_phase, drop_caller_frame, note_site
from stepscope.probe.device_clock import read_item
from stepscope.probe.patches import Patches
from stepscope.probe.row_log import BACKWARD, LEAVE, LOSS
from stepscope.probe.unseen import is_plain, read_unseen
from stepscope.record.facts import SiteKind


def patch_backward(core: Core, patches: Patches, clocks: Patches) -> None:
    """Patch `torch.autograd.backward`, which `Tensor.backward` calls, and loss scaling; `grad` for
    the clocks' sake only."""
    log, device = core.log, core.device
    append = log.events.append
    original_backward = torch.autograd.backward
    original_grad = torch.autograd.grad
    original_scale = torch.amp.GradScaler.scale
    unscaled: list[Any] = [None, None]  # a scaled loss and what it was before
    profiled, dispatched = _autograd._profiler_enabled, _C._len_torch_dispatch_stack
    watched = _C._len_torch_function_stack

    def note_unclocked(tensors: Any) -> None:
        """Before a backward while most clocks are off: note its loss, touching as little as can be
        where nothing of the program's would see it."""
        loss = tensors[0] if type(tensors) in (list, tuple) and len(tensors) == 1 else tensors
        if unscaled[0] is not None:
            loss = unscaled[1] if loss is unscaled[0] else loss
            unscaled[0] = unscaled[1] = None
        found: list[Any] = [None]
        if type(loss) is Tensor and not (watched() or dispatched() or profiled()):
            found[0] = loss_of(loss)
        elif is_plain(loss):
            with _C.DisableTorchFunction():
                read_unseen(loss, lambda seen: found.__setitem__(0, loss_of(seen)))
        append(LOSS)
        append(found[0])

    def loss_of(loss: Any) -> Any:
        """What is to be kept of a scalar: on the CPU its value."""
        if loss.numel() != 1:
            return None
        if loss.is_cpu:
            return read_item(loss)
        return (loss.detach(), loss._version) if loss.is_cuda and not device.capturing else None

    def prepare(tensors: Any) -> None:
        """Before a backward: note its loss; search for roots where no forward was seen."""
        log.backwards += 1
        unseen = not log.forwards and log.is_whole  # else before the clocks went on, perhaps
        if unseen and core.roots is not None and not core.runs_backward():
            core.roots.search()
        loss = tensors[0] if isinstance(tensors, list | tuple) and len(tensors) == 1 else tensors
        if is_plain(loss):
            with torch._C.DisableTorchFunction():
                if loss.numel() == 1 and loss.is_floating_point():
                    read_unseen(unscaled[1] if loss is unscaled[0] else loss, device.loss)
        unscaled[0] = unscaled[1] = None
        if device.timing:
            device.mark(BACKWARD)

    @functools.wraps(original_backward)
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
        if core.compiles and is_compiling():
            original_backward(tensors, *args, **kwargs)
            return
        thread = get_ident()
        if log.unclocked and thread == log.thread:
            try:
                note_unclocked(tensors)
            except Exception as problem:
                core.guard(problem)
            try:
                original_backward(tensors, *args, **kwargs)
            except BaseException as error:
                drop_caller_frame(error)
                raise
            return
        if log.off or (thread != log.thread and not log.claim(BACKWARD)):
            core.in_backward.append(thread)  # by it fixes know calls of layers computed anew
            try:
                original_backward(tensors, *args, **kwargs)
            except BaseException as error:
                drop_caller_frame(error)
                raise
            finally:
                core.in_backward.remove(thread)
            if not log.off and thread not in core.in_backward:
                core.backward_ended_elsewhere()
            return
        begun = monotonic_ns()
        append(BACKWARD)
        append(begun)
        try:
            prepare(tensors)
        except Exception as problem:
            core.guard(problem)
        core.in_backward.append(thread)
        try:
            original_backward(tensors, *args, **kwargs)
        except BaseException as error:
            drop_caller_frame(error)
            raise
        finally:
            core.in_backward.remove(thread)
            now = monotonic_ns()
            append(LEAVE)
            append(now)
        try:
            if core.find_lines:
                note_site(core, SiteKind.BACKWARD, now - begun)
            if thread not in core.in_backward:
                core.backward_ended()
        except Exception as problem:
            core.guard(problem)

    @functools.wraps(original_grad)
    def grad(*args: Any, **kwargs: Any) -> Any:
        if log.unclocked or is_compiling():
            return original_grad(*args, **kwargs)
        thread = get_ident()
        core.in_backward.append(thread)
        try:
            found = call_in_phase(core, BACKWARD, SiteKind.BACKWARD, original_grad, args, kwargs)
        except BaseException as error:
            drop_caller_frame(error)
            raise
        finally:
            core.in_backward.remove(thread)
        if thread == log.thread and not log.off and not kwargs.get("create_graph"):
            core.grad_ended()
        return found

    @functools.wraps(original_scale)
    def scale(self: Any, outputs: Any) -> Any:
        try:
            scaled = original_scale(self, outputs)
        except BaseException as error:
            drop_caller_frame(error)
            raise
        if not is_compiling() and is_plain(outputs) and get_ident() == log.thread:
            with torch._C.DisableTorchFunction():
                read_unseen(outputs, lambda loss: keep(scaled, loss))
            core.scaler = ref(self)
        return scaled

    def keep(scaled: Any, loss: Any) -> None:
        unscaled[:] = scaled, loss.detach()

    patches.set(torch.autograd, "backward", backward)
    clocks.set(torch.autograd, "grad", grad)
    patches.set(torch.amp.GradScaler, "scale", scale)
