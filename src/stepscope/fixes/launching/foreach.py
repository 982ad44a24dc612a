"""Update parameters in few operations over lists of them."""

from typing import Any

from stepscope.analyze.replay.known import Changes, KnownProgram
from stepscope.fixes.applicability import ALREADY_ON, ObservedProgram, ProgramPart, unsuitable
from stepscope.fixes.base import Fix, FixContext, FixKind, LiveProgram
from stepscope.fixes.inspect.models import flag_refused, switch_optimizer_flag
from stepscope.fixes.lazy import changes, tasks, torch
from stepscope.record.fix import NotApplied, Reason, Switch
from stepscope.record.trial import Rejection

_HOST_LEFT = 0.5  # of the time between operators on a processor
TORCH_CHOOSES = Reason("torch_chooses", "{subject}: torch already uses foreach here")
TENSOR_LEARNING_RATE = Reason(
    "tensor_learning_rate", "{subject}: foreach does not take a tensor as learning rate"
)


class Foreach(Fix):
    """`foreach=True`, where torch does not choose it by itself: it does on CUDA."""

    name = "foreach"
    group = "launch"
    title = "update parameters in few operations over lists of them"
    kind = FixKind.NUMERIC
    effort = "one argument"
    bad_with = ("fused_optimizer",)
    missing = "no optimizer stepped"
    works_on = ProgramPart.OPTIMIZER
    switch = Switch.AT_STEP
    argument = "foreach"
    argument_of = (
        *("AdamW", "Adam", "SGD", "Adagrad", "RMSprop", "Adadelta", "Adamax"),
        *("NAdam", "RAdam", "ASGD", "Rprop", "Adafactor"),
    )

    def applies(self, program: ObservedProgram) -> Rejection | None:
        for one in program.optimizers:
            given = one.get("foreach")
            chosen = program.device == "cuda" and given is None
            if not one.get("fused") and not given and not chosen:
                return None
        return unsuitable(ALREADY_ON)

    def predict(self, value: str | None, known: KnownProgram) -> Changes:
        """Few operations over lists of parameters; None where that is on, as on CUDA."""
        first = known.show.config.optimizers[:1] if known.show else []
        if any(one.fused or one.foreach for one in first):
            return None
        if known.device == "cuda":
            return (
                [changes.fuse_optimizer()] if any(one.foreach is False for one in first) else None
            )
        between = (tasks.StretchKind.GAP, tasks.StretchKind.PYTHON, tasks.StretchKind.ANNOTATION)
        return [changes.scale_host(tasks.select_host(*between, phase="optimizer"), _HOST_LEFT)]

    def check(self, live: LiveProgram) -> NotApplied | None:
        return flag_refused(self.argument, live, _misfit)

    def install(self, value: Any, context: FixContext) -> None:
        switch_optimizer_flag("foreach", context, _misfit)


def _misfit(optimizer: Any, group: dict[str, Any]) -> NotApplied | None:
    supported = torch.utils._foreach_utils._get_foreach_kernels_supported_devices()
    if {parameter.device.type for parameter in group["params"]} <= set(supported):
        return NotApplied(TORCH_CHOOSES)
    if torch.is_tensor(group.get("lr")) and not group.get("capturable"):
        return NotApplied(TENSOR_LEARNING_RATE)
    return None


FIX = Foreach()
