"""Backward run, loss scaled; optimizer created, optimizer stepped, gradients zeroed and clipped."""

import functools
import sys
from threading import get_ident
from time import monotonic_ns
from types import FrameType
from typing import Any
from weakref import ref

import torch
from torch import _C, Tensor
from torch._C import _autograd
from torch.compiler import is_compiling
from torch.optim import Optimizer
from torch.optim import optimizer as optimizer_hooks

from stepscope.probe.core import Core, call_in_phase, note_site
from stepscope.probe.device_clock import read_item
from stepscope.probe.patches import Patches, drop_caller_frame
from stepscope.probe.row_log import BACKWARD, LEAVE, LOSS, OPTIMIZER, STEPPED
from stepscope.probe.unseen import is_plain, read_unseen, unseen_by_program
from stepscope.record.facts import SiteKind


def patch_backward(core: Core, patches: Patches, clocks: Patches) -> None:
    """Patch `torch.autograd.backward`, which `Tensor.backward` calls, and loss scaling; `grad` for
    the clocks' sake only."""
    log, device = core.log, core.device
    note = log.events.extend
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
        note((LOSS, found[0]))

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
        note((BACKWARD, begun))
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
            note((LEAVE, now))
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


_DUE, _ROOM, _FIRED = range(3)
"""When, and at how many events, steps are to be counted next; how many ended."""


class OptimizerPoint:
    """Turns optimizer steps, however they come about, into one event each."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._numbers: dict[int, tuple[Any, int]] = {}
        self._open: list[int] = []  # when steps under way began
        self._in_backward: set[int] = set()  # threads that stepped inside their backward
        self._handles: list[Any] = []  # after a step; before one, where that matters
        self._begun_unclocked = False  # a step under way, before which no hook ran
        self._unclocked = [0, 0, 0]  # since the clocks went off: see _DUE, _ROOM, _FIRED
        self.fired = 0
        self.nested = False
        """Whether an optimizer was ever seen to step inside the step of another."""

    def attach(self) -> None:
        """Register the hooks that torch calls around the steps of every optimizer."""
        self._handles = [optimizer_hooks.register_optimizer_step_post_hook(self.after)]
        self._watch_begin()

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def clock(self, on: bool, between_steps: bool) -> None:
        """Have both hooks, or but one after a step. torch may be calling that one just now, so it
        is exchanged where it stands."""
        handle, *before = self._handles
        hooks = optimizer_hooks._global_optimizer_post_hooks
        if on:
            self.fired += self._unclocked[_FIRED]
            self._unclocked[_FIRED] = 0
            hooks[handle.id] = self.after
            self._begun_unclocked = not between_steps and _steps_under_way() > 0
            if not self._begun_unclocked:  # else torch may be calling the hooks before the step
                self._watch_begin()
            return
        for one in before:
            one.remove()
        del self._handles[1:]
        self._unclocked[:] = [0, 0, 0]
        hooks[handle.id] = self._hook()

    def _watch_begin(self) -> None:
        if len(self._handles) == 1:
            before = optimizer_hooks.register_optimizer_step_pre_hook(self.before)
            self._handles.append(before)

    def _hook(self) -> Any:
        """What is called after a step while most clocks are off. It touches few objects: amid the
        program's work none of them is in the processor's caches."""
        log, state, thread, compiles = self._core.log, self._unclocked, -1, self._core.compiles
        events, note = log.events, log.events.extend
        latest = code = 0

        def stepped(optimizer: Any, *_: Any) -> None:
            nonlocal latest, code, thread
            if id(optimizer) != latest or get_ident() != thread or (compiles and is_compiling()):
                code = self._code(optimizer)
                if not code:
                    return
                latest, thread = id(optimizer), get_ident()
            now = monotonic_ns()
            note((code, now))
            state[_FIRED] += 1
            if now >= state[_DUE] or len(events) >= state[_ROOM]:
                self._count(now)

        return stepped

    def stepped(self, optimizer: Any) -> None:
        """A step has ended that torch calls no hooks after."""
        if self._core.log.unclocked:
            if code := self._code(optimizer):
                self.ends_unclocked(code)
        else:
            self.after(optimizer)

    def ends_unclocked(self, code: int) -> None:
        """A step has ended by something else than torch's hook, while most clocks are off."""
        now = monotonic_ns()
        self._core.log.events += (code, now)
        self._unclocked[_FIRED] += 1
        self._count(now)

    def _count(self, now: int) -> None:
        core = self._core
        try:
            if core.clocks is not None:
                self._unclocked[:_FIRED] = core.clocks.unclocked_step_ended(now)
        except Exception as problem:  # StopProgram is none
            core.guard(problem)

    def _code(self, optimizer: Any) -> int:
        """The event that a step of an optimizer is while most clocks are off; 0: none."""
        core = self._core
        if core.log.off or (core.compiles and is_compiling()):
            return 0
        if get_ident() != core.log.thread and not core.log.claim(OPTIMIZER):
            if _steps_under_way() == 1:
                core.optimizer_stepped_elsewhere(self.number(optimizer))
            return 0
        return STEPPED + self.number(optimizer)

    @property
    def ended(self) -> int:
        """How many steps have ended, clocked or not."""
        return self.fired + self._unclocked[_FIRED]

    def number(self, optimizer: Any) -> int:
        """An optimizer's number in order of its first step."""
        known = self._numbers.get(id(optimizer))
        if known is None or known[0]() is not optimizer:
            known = self._numbers[id(optimizer)] = (ref(optimizer), len(self._numbers))
            for callback in self._core.on_optimizer:
                callback(optimizer, known[1])
        return known[1]

    def before(self, optimizer: Any, *_: Any) -> None:
        core = self._core
        log = core.log
        if (core.compiles and is_compiling()) or log.off or log.unclocked or core.runs_backward():
            return
        try:
            if get_ident() != log.thread and not log.claim(OPTIMIZER):
                return
            if self._open and _steps_under_way() <= len(self._open):
                self._open.clear()  # an earlier step ended in an exception the program caught
                log.leave(0)
            begun = monotonic_ns()
            log.events += (OPTIMIZER, begun)
            self._open.append(begun)
            if core.device.timing:
                core.device.mark(OPTIMIZER)
        except Exception as problem:
            core.guard(problem)

    def skipped(self, optimizer: Any) -> None:
        """A step that was asked for is left out, and ends a step all the same."""
        if self._core.log.unclocked:
            self.ends_unclocked(STEPPED + self.number(optimizer))
        else:
            self._core.optimizer_stepped(self.number(optimizer))

    def after(self, optimizer: Any, *_: Any) -> None:
        """A step has ended; only the outermost of nested ones is an event."""
        core = self._core
        if (core.compiles and is_compiling()) or core.log.off:
            return
        thread = get_ident()
        if core.runs_backward():  # in a thread of autograd's: the observed thread waits for it
            self._in_backward.add(thread if thread in core.in_backward else core.log.thread)
            return
        try:
            if thread != core.log.thread:
                if _steps_under_way() == 1:
                    core.optimizer_stepped_elsewhere(self.number(optimizer))
                return
            if self._begun_unclocked:
                self._begun_unclocked = False
                self._watch_begin()
                self.fired += 1
                core.optimizer_stepped(self.number(optimizer))
                return
            if not self._open:
                return
            begun = self._open.pop()
            now = monotonic_ns()
            core.log.events += (LEAVE, now)
            if self._open:
                self.nested = True
                return
            if core.find_lines:
                core.sites.add(core.sites.locate(SiteKind.OPTIMIZER), now - begun)
            self.fired += 1
            core.optimizer_stepped(self.number(optimizer))  # StopProgram is not an Exception
        except Exception as problem:
            core.guard(problem)

    def stepped_in_backward(self) -> bool:
        """Whether optimizers stepped inside the backward that has just ended in this thread."""
        stepped = get_ident() in self._in_backward
        self._in_backward.discard(get_ident())
        return stepped


def patch_optimizers(core: Core, patches: Patches, clocks: Patches) -> None:
    """Register the global hooks; patch creation and GradScaler's step; for the clocks' sake only,
    zero_grad and clipping."""
    point = core.optimizer_point = OptimizerPoint(core)
    original_init = Optimizer.__init__
    original_step = torch.amp.GradScaler.step

    @functools.wraps(original_init)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            original_init(self, *args, **kwargs)
        except BaseException as error:
            drop_caller_frame(error)
            raise
        if not core.log.off:
            try:
                with unseen_by_program():
                    core.optimizer_made(self, core.sites.locate(SiteKind.OPTIMIZER_MADE))
            except Exception as problem:
                core.guard(problem)

    @functools.wraps(original_step)
    def scaler_step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        ended = point.ended
        try:
            result = original_step(self, optimizer, *args, **kwargs)
        except BaseException as error:
            drop_caller_frame(error)
            raise
        left_out = point.ended == ended and get_ident() == core.log.thread
        if left_out and not core.log.off and not core.runs_backward():
            core.skipped_updates += 1
            try:
                point.skipped(optimizer)
            except Exception as problem:
                core.guard(problem)
        return result

    for name in ("clip_grad_norm_", "clip_grad_value_"):
        clip = _timed(core, getattr(torch.nn.utils, name))
        clocks.set(torch.nn.utils, name, clip)
        clocks.set(torch.nn.utils.clip_grad, name, clip)
    point.attach()
    core.on_end.append(point.detach)
    patches.set(Optimizer, "__init__", init)
    clocks.set(Optimizer, "zero_grad", _timed(core, Optimizer.zero_grad))
    patches.set(torch.amp.GradScaler, "step", scaler_step)


def _timed(core: Core, original: Any) -> Any:
    """A function that belongs to the optimizer's phase: zeroing or clipping gradients."""
    log = core.log
    note = log.events.extend

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if core.compiles and is_compiling():
            return original(*args, **kwargs)
        if log.off or log.unclocked or get_ident() != log.thread or core.in_backward:
            return original(*args, **kwargs)
        note((OPTIMIZER, monotonic_ns()))
        try:
            return original(*args, **kwargs)
        except BaseException as error:
            drop_caller_frame(error)
            raise
        finally:
            note((LEAVE, monotonic_ns()))

    return call


def _steps_under_way() -> int:
    """How many `Optimizer.step` wrappers are on the Python stack, this one's included."""
    frame: FrameType | None = sys._getframe(1)
    count = 0
    while frame is not None:
        count += frame.f_code.co_qualname.endswith("profile_hook_step.<locals>.wrapper")
        frame = frame.f_back
    return count
