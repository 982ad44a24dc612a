"""Update parameters in few operations over lists of them."""

from typing import Any

from stepscope.fixes.base import Fix, FixContext, FixKind, SourceEdit
from stepscope.fixes.inspect.models import switch_optimizer_flag
from stepscope.fixes.inspect.source_edit import with_arguments
from stepscope.record.fix import NotApplied, Reason

_CLASSES = (
    *("AdamW", "Adam", "SGD", "Adagrad", "RMSprop", "Adadelta", "Adamax"),
    *("NAdam", "RAdam", "ASGD", "Rprop", "Adafactor"),
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
