"""Take several batches together for each step of the optimizer."""

from typing import Any
from weakref import WeakSet

from stepscope.analyze.replay.known import Changes, KnownProgram
from stepscope.fixes.applicability import ProgramPart
from stepscope.fixes.base import Fix, FixContext, FixKind, SourceEdit
from stepscope.fixes.lazy import changes, torch
from stepscope.record.errors import UsageError
from stepscope.record.fix import Applied, NotApplied, Reason, Target, TrainingChange

_ADDING_SHARE = 0.15  # of an optimizer's step: adding a batch's gradients to those there are


GATHERED_STEPS = Target(
    "gathered_steps",
    "{object}, which steps{at} once in {after} batches; learning rate schedulers still advance"
    " with every batch",
)
CLEARS_GRADIENTS = Reason(
    "clears_gradients", "the program clears gradients without zero_grad{before}"
)
SEVERAL_OPTIMIZERS = Reason(
    "several_optimizers", "{object}{at}: several optimizers, whose gradients would mix"
)
LBFGS = Reason("lbfgs", "{object}{at}: LBFGS computes the loss several times in a step")


class _BatchGroups:
    """Where a program is in its present group of `size` batches."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.optimizers: WeakSet[Any] = WeakSet()
        """Those alive. With more than one, gradients of one would leak into steps of another."""
        self._done = 0
        self._off: Reason | None = None

    @property
    def under_way(self) -> bool:
        """Whether gradients of earlier batches of the group are waiting to be used."""
        return self._done > 0

    @property
    def on(self) -> bool:
        """Whether batches are being gathered at present; may change only between groups."""
        return self.under_way or self.misfit() is None

    @property
    def gathering(self) -> bool:
        """Whether the present batch is not the last of its group."""
        return self.on and self._done + 1 < self.size

    def misfit(self) -> Reason | None:
        """Why batches cannot be gathered; None if they can."""
        if self._off is not None:
            return self._off
        if len(self.optimizers) > 1:
            return SEVERAL_OPTIMIZERS
        names = {type(optimizer).__name__ for optimizer in self.optimizers}
        return LBFGS if "LBFGS" in names else None

    def forgotten(self) -> bool:
        """Whether the gradients that wait have gone: the program clears them in its own way."""
        groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]
        kept = any(one.grad is not None for group in groups for one in group["params"])
        return self.under_way and not kept

    def end_batch(self) -> None:
        """A batch of the group has been used; its step was left out, or was the last."""
        self._done = (self._done + 1) % self.size

    def end_group(self) -> None:
        """The next batch begins a group, however this one ended."""
        self._done = 0

    def stop(self, reason: Reason) -> None:
        """From now on every batch is a step of its own."""
        self._off = reason
        self._done = 0


class Accumulate(Fix):
    """The gradients of N batches are averaged, then the optimizer steps once.

    Zeroing and clipping gradients, and what a GradScaler does, wait for the last batch of a group.
    Learning rate schedulers go on with every batch, as the program planned its schedule. A group
    that an epoch leaves unfinished goes on in the next; one left at the end is never used.
    """

    name = "accumulate"
    group = "memory"
    title = "accumulate gradients over several batches per optimizer step"
    edited_by_hand = True
    kind = FixKind.SEMANTIC
    effort = "a few lines"
    values = ("N",)
    suggested = ("2", "4", "8")
    missing = "no optimizer stepped"
    works_on = ProgramPart.OPTIMIZER
    saves_memory = True
    step_grows = True
    training_change = TrainingChange.FEWER_UPDATES

    def parse(self, text: str | None) -> Any:
        size = super().parse(text) if text is not None else None
        if size is None or size < 2:
            raise UsageError("--fix accumulate=N: use a number of batches from 2 up")
        return size

    def predict(self, value: str | None, known: KnownProgram) -> Changes:
        """The optimizer steps once in so many batches (2 unless told); gradients are added up."""
        steps = 1 / int(value or 2)
        return [changes.scale_phase("optimizer", steps + (1 - steps) * _ADDING_SHARE)]

    def batches_per_update(self, value: str) -> int:
        return int(value or 1)

    def install(self, value: Any, context: FixContext) -> None:
        groups = _BatchGroups(value)
        _gather_backward(groups, context)
        _gather_steps(groups, context)
        _gather_scaler(groups, context)
        _gather_gradients(groups, context)

    def edit(self, value: Any, line: str) -> SourceEdit:
        return SourceEdit(
            f"divide the loss by {value} before backward(); clip, step and zero gradients only "
            f"once in {value} iterations"
        )


def _gather_backward(groups: _BatchGroups, context: FixContext) -> None:
    """Divide gradients by the size of a group, at their source: the loss itself stays as it is."""
    inside = False  # a reentrant checkpoint calls backward in backward

    def backward(
        call: Any, tensors: Any, grad_tensors: Any = None, *rest: Any, **kwargs: Any
    ) -> Any:
        nonlocal inside
        if groups.forgotten():
            groups.stop(CLEARS_GRADIENTS)
            context.not_applied(NotApplied(CLEARS_GRADIENTS, place=context.place()))
        if inside or not groups.optimizers or not groups.on:
            return call(tensors, grad_tensors, *rest, **kwargs)
        inside = True
        try:
            return call(tensors, _divided(tensors, grad_tensors, groups.size), *rest, **kwargs)
        finally:
            inside = False

    context.seams.backward(backward)


def _divided(tensors: Any, gradients: Any, size: int) -> Any:
    """The gradients a backward of `tensors` is to begin with. None where torch has to refuse."""
    if isinstance(tensors, torch.Tensor):
        if gradients is None:
            return torch.full_like(tensors, 1 / size) if tensors.numel() == 1 else None
        return gradients / size
    several = tuple(tensors)
    given = [None] * len(several) if gradients is None else gradients
    return [_divided(one, grad, size) for one, grad in zip(several, given, strict=True)]


def _gather_steps(groups: _BatchGroups, context: FixContext) -> None:
    """Let only the last step of a group happen; a closure is called all the same."""

    def stepped(call: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        if not groups.on:
            reason = groups.misfit()
            if reason not in (None, CLEARS_GRADIENTS):  # which has been said
                name = type(optimizer).__name__
                context.not_applied(NotApplied(reason, object=name, place=context.place()))
            return call(optimizer, *args, **kwargs)
        if not groups.gathering:
            result = call(optimizer, *args, **kwargs)
            groups.end_group()
            return result
        closure = args[0] if args else kwargs.get("closure")
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        _leave_out(groups, optimizer, context)
        return loss

    context.seams.optimizer_made(lambda optimizer, _: groups.optimizers.add(optimizer))
    context.seams.optimizer_stepped(stepped)


def _leave_out(groups: _BatchGroups, optimizer: Any, context: FixContext) -> None:
    groups.end_batch()
    name = type(optimizer).__name__
    context.applied(Applied(GATHERED_STEPS, name, context.place(), after=groups.size))


def _gather_scaler(groups: _BatchGroups, context: FixContext) -> None:
    """A GradScaler unscales, steps and adapts its scale at the last batch of a group."""
    skipped = False  # whether the last step asked for has been left out

    def step(call: Any, scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal skipped
        skipped = groups.gathering
        if skipped:
            _leave_out(groups, optimizer, context)
            context.seams.left_out()
            return None
        result = call(scaler, optimizer, *args, **kwargs)
        groups.end_group()  # also where infinite gradients kept the optimizer from stepping
        return result

    def unscale(call: Any, scaler: Any, optimizer: Any) -> Any:
        return None if groups.gathering else call(scaler, optimizer)

    def update(call: Any, scaler: Any, *args: Any, **kwargs: Any) -> Any:
        return None if skipped else call(scaler, *args, **kwargs)

    for name, handler in (("step", step), ("unscale_", unscale), ("update", update)):
        context.seams.around(torch.amp.GradScaler, name, handler)


def _gather_gradients(groups: _BatchGroups, context: FixContext) -> None:
    """Keep gradients while a group is under way; clip them at its end."""

    def zero(call: Any, owner: Any, *args: Any, **kwargs: Any) -> Any:
        return None if groups.under_way else call(owner, *args, **kwargs)

    def clip_norm(call: Any, parameters: Any, *args: Any, **kwargs: Any) -> Any:
        if not groups.gathering:
            return call(parameters, *args, **kwargs)
        norm_type = args[1] if len(args) > 1 else kwargs.get("norm_type", 2.0)
        every = [parameters] if isinstance(parameters, torch.Tensor) else parameters
        grads = [parameter.grad for parameter in every if parameter.grad is not None]
        return torch.nn.utils.get_total_norm(grads, norm_type)

    def clip_value(call: Any, *args: Any, **kwargs: Any) -> Any:
        return None if groups.gathering else call(*args, **kwargs)

    context.seams.around(torch.optim.Optimizer, "zero_grad", zero)
    context.seams.around(torch.nn.Module, "zero_grad", zero)
    context.seams.around(torch.nn.utils, "clip_grad_norm_", clip_norm)
    context.seams.around(torch.nn.utils, "clip_grad_value_", clip_value)


FIX = Accumulate()
