"""Accumulate several batches for each optimizer step."""

from collections.abc import Collection
from typing import Any
from weakref import WeakSet

from stepscope.analyze.replay.known import Changes, KnownProgram
from stepscope.fixes.applicability import ProgramPart
from stepscope.fixes.base import Fix, FixContext, FixKind, LiveProgram, SourceEdit
from stepscope.fixes.lazy import changes, torch
from stepscope.record.errors import UsageError
from stepscope.record.fix import Applied, NotApplied, Reason, Target, TrainingChange

_ADDING_SHARE = 0.15  # of an optimizer's step: the cost of adding a batch's gradients
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


class _Gathering:
    """A program's position in its current group of `size` batches, and what waits for the last
    one."""

    def __init__(self, size: int, context: FixContext) -> None:
        self._size = size
        self._context = context
        self.optimizers: WeakSet[Any] = WeakSet()
        """Optimizers alive. With several, gradients of one would leak into steps of another."""
        self._done = 0
        """Batches of the group with gradients not used yet."""
        self._off = False
        self._inside = False  # a reentrant checkpoint calls backward in backward
        self._skipped = False  # whether the scaler's last step was skipped

    def _misfit(self) -> Reason | None:
        """Why batches cannot be gathered; None if they can. May change only between groups."""
        if self._done:
            return None
        return CLEARS_GRADIENTS if self._off else _refused(self.optimizers)

    @property
    def _gathering(self) -> bool:
        """Whether the current batch is not the last of its group."""
        return self._misfit() is None and self._done + 1 < self._size

    def backward(
        self, call: Any, tensors: Any, grad_tensors: Any = None, *rest: Any, **kwargs: Any
    ) -> Any:
        """Divide gradients by the group size at their source; the loss itself is unchanged."""
        groups = (group for optimizer in self.optimizers for group in optimizer.param_groups)
        parameters = (parameter for group in groups for parameter in group["params"])
        if self._done and all(parameter.grad is None for parameter in parameters):
            self._off, self._done = True, 0  # the program clears gradients in its own way
            place = self._context.place()
            self._context.not_applied(NotApplied(CLEARS_GRADIENTS, place=place))
        if self._inside or not self.optimizers or self._misfit() is not None:
            return call(tensors, grad_tensors, *rest, **kwargs)
        self._inside = True
        try:
            return call(tensors, _divided(tensors, grad_tensors, self._size), *rest, **kwargs)
        finally:
            self._inside = False

    def stepped(self, call: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """Run only the last step of a group; closures are always called."""
        reason = self._misfit()
        if reason is not None:
            if reason is not CLEARS_GRADIENTS:  # already reported
                name, place = type(optimizer).__name__, self._context.place()
                self._context.not_applied(NotApplied(reason, object=name, place=place))
            return call(optimizer, *args, **kwargs)
        if not self._gathering:
            result = call(optimizer, *args, **kwargs)
            self._done = 0
            return result
        closure = args[0] if args else kwargs.get("closure")
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._leave_out(optimizer)
        return loss

    def _leave_out(self, optimizer: Any) -> None:
        self._done += 1
        name, place = type(optimizer).__name__, self._context.place()
        self._context.applied(Applied(GATHERED_STEPS, name, place, after=self._size))

    def scaler_stepped(
        self, call: Any, scaler: Any, optimizer: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """A GradScaler unscales, steps and adapts its scale at the last batch of a group."""
        self._skipped = self._gathering
        if self._skipped:
            self._leave_out(optimizer)
            self._context.seams.left_out()
            return None
        result = call(scaler, optimizer, *args, **kwargs)
        self._done = 0  # even if infinite gradients kept the optimizer from stepping
        return result

    def scaler_updated(self, call: Any, *args: Any, **kwargs: Any) -> Any:
        return None if self._skipped else call(*args, **kwargs)

    def at_the_end(self, call: Any, *args: Any, **kwargs: Any) -> Any:
        """Runs a call only at the last batch of a group."""
        return None if self._gathering else call(*args, **kwargs)

    def zeroed(self, call: Any, *args: Any, **kwargs: Any) -> Any:
        """Keep gradients until the group is complete."""
        return None if self._done else call(*args, **kwargs)

    def clipped(self, call: Any, parameters: Any, *args: Any, **kwargs: Any) -> Any:
        """Clip gradients at the end of a group; always return their norm."""
        if not self._gathering:
            return call(parameters, *args, **kwargs)
        norm_type = args[1] if len(args) > 1 else kwargs.get("norm_type", 2.0)
        every = [parameters] if isinstance(parameters, torch.Tensor) else parameters
        grads = [parameter.grad for parameter in every if parameter.grad is not None]
        return torch.nn.utils.get_total_norm(grads, norm_type)


class Accumulate(Fix):
    """The gradients of N batches are averaged, then the optimizer steps once.

    Zeroing and clipping gradients, and a GradScaler's work, wait for the last batch of a group.
    Learning rate schedulers advance with every batch, as the program planned. A group unfinished at
    the end of an epoch continues in the next; one left at the end is never used.
    """

    name = "accumulate"
    group = "memory"
    title = "accumulate gradients over several batches per optimizer step"
    edited_by_call = True
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
            raise UsageError("--fix accumulate=N: use a number of batches of 2 or more")
        return size

    def predict(self, value: str | None, known: KnownProgram) -> Changes:
        """The optimizer steps once per N batches (default 2); gradients are added up."""
        steps = 1 / int(value or 2)
        return [changes.scale_phase("optimizer", steps + (1 - steps) * _ADDING_SHARE)]

    def batches_per_update(self, value: str) -> int:
        return int(value or 1)

    def check(self, live: LiveProgram) -> NotApplied | None:
        reason = _refused(live.optimizers)
        name = type(live.optimizers[0]).__name__ if live.optimizers else None
        return None if reason is None else NotApplied(reason, object=name)

    def install(self, value: Any, context: FixContext) -> None:
        gathering, seams = _Gathering(value, context), context.seams
        seams.backward(gathering.backward)
        seams.optimizer_made(lambda optimizer, _: gathering.optimizers.add(optimizer))
        seams.optimizer_stepped(gathering.stepped)
        for owner, name, handler in (
            (torch.amp.GradScaler, "step", gathering.scaler_stepped),
            (torch.amp.GradScaler, "unscale_", gathering.at_the_end),
            (torch.amp.GradScaler, "update", gathering.scaler_updated),
            (torch.optim.Optimizer, "zero_grad", gathering.zeroed),
            (torch.nn.Module, "zero_grad", gathering.zeroed),
            (torch.nn.utils, "clip_grad_norm_", gathering.clipped),
            (torch.nn.utils, "clip_grad_value_", gathering.at_the_end),
        ):
            seams.around(owner, name, handler)

    def edit(self, value: Any, line: str) -> SourceEdit:
        return SourceEdit(
            f"divide the loss by {value} before backward(); clip, step and zero gradients only "
            f"once in {value} iterations"
        )


def _refused(optimizers: Collection[Any]) -> Reason | None:
    """Why the gradients of these cannot be gathered; None where they can."""
    if len(optimizers) > 1:
        return SEVERAL_OPTIMIZERS
    return LBFGS if any(type(one).__name__ == "LBFGS" for one in optimizers) else None


def _divided(tensors: Any, gradients: Any, size: int) -> Any:
    """The initial gradients for a backward of `tensors`; None where torch must raise."""
    if isinstance(tensors, torch.Tensor):
        if gradients is None:
            return torch.full_like(tensors, 1 / size) if tensors.numel() == 1 else None
        return gradients / size
    several = tuple(tensors)
    given = [None] * len(several) if gradients is None else gradients
    return [_divided(one, grad, size) for one, grad in zip(several, given, strict=True)]


FIX = Accumulate()
