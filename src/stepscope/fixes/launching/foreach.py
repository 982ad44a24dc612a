"""Update parameters in few operations over lists of them."""

from typing import Any

from stepscope.analyze.replay.known import Changes, KnownProgram
from stepscope.fixes.applicability import ObservedProgram, ProgramPart
from stepscope.fixes.base import Fix, FixContext, FixKind, SourceEdit
from stepscope.fixes.inspect.models import switch_optimizer_flag
from stepscope.fixes.inspect.source_edit import with_arguments
from stepscope.record.fix import NotApplied, Reason
from stepscope.record.trial import Rejection, RejectReason

_CLASSES = (
    *("AdamW", "Adam", "SGD", "Adagrad", "RMSprop", "Adadelta", "Adamax"),
    *("NAdam", "RAdam", "ASGD", "Rprop", "Adafactor"),
)

_HOST_LEFT = 0.5  # of the time between operators on a processor


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

    def applies(self, program: ObservedProgram) -> Rejection | None:
        for one in program.optimizers:
            given = one.get("foreach")
            chosen = program.device == "cuda" and given is None
            if not one.get("fused") and not given and not chosen:
                return None
        return Rejection(RejectReason.ALREADY_ON)

    def predict(self, value: str | None, known: KnownProgram) -> Changes:
        """Few operations over lists of parameters; None where that is on, as on CUDA."""
        from stepscope.analyze.replay.changes import fuse_optimizer, scale_host
        from stepscope.analyze.replay.tasks import StretchKind, select_host

        first = known.show.config.optimizers[:1] if known.show else []
        if any(one.fused or one.foreach for one in first):
            return None
        if known.device == "cuda":
            return [fuse_optimizer()] if any(one.foreach is False for one in first) else None
        between = (StretchKind.GAP, StretchKind.PYTHON, StretchKind.ANNOTATION)
        return [scale_host(select_host(*between, phase="optimizer"), _HOST_LEFT)]

    def install(self, value: Any, hands: FixContext) -> None:
        switch_optimizer_flag("foreach", hands, _misfit)

    def edit(self, value: Any, line: str) -> SourceEdit:
        changed = (with_arguments(line, name, {"foreach": "True"}) for name in _CLASSES)
        return SourceEdit("pass foreach=True to the optimizer", next(filter(None, changed), None))


def _misfit(optimizer: Any, group: dict[str, Any]) -> NotApplied | None:
    """Why a group gains nothing or cannot be updated as lists."""
    import torch
    from torch.utils._foreach_utils import _get_foreach_kernels_supported_devices

    kinds = {parameter.device.type for parameter in group["params"]}
    if kinds <= set(_get_foreach_kernels_supported_devices()):
        return NotApplied(Reason.TORCH_CHOOSES)
    if torch.is_tensor(group.get("lr")) and not group.get("capturable"):
        return NotApplied(Reason.TENSOR_LEARNING_RATE)
    return None


FIX = Foreach()
