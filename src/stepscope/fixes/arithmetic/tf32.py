"""Let float32 products and convolutions run in TF32 on the tensor cores, or keep them from it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stepscope.analyze.replay.known import (
    MATRIX_CATEGORIES,
    Changes,
    KnownProgram,
    RooflineRow,
    device_limits,
    factors_by_operator,
    roofline_rows,
    scale_operators,
    time_at_bound,
)
from stepscope.fixes.applicability import ObservedProgram
from stepscope.fixes.base import Fix, FixContext, FixKind, SourceEdit
from stepscope.record.fix import Applied, NotApplied, Reason, Target
from stepscope.record.trial import Rejection, RejectReason

if TYPE_CHECKING:
    from stepscope.fixes.edit.locate import FoundEdits, SourceFiles

_OFF = (False, "ieee", "highest")
_ON = (True, "tf32", "high", "medium")
_NEEDED = (8, 0)


class Tf32(Fix):
    """float32 in memory, fewer digits inside a product: up to eight times the rate."""

    name = "tf32"
    group = "arithmetic"
    title = "float32 products and convolutions in TF32, or not"
    kind = FixKind.NUMERIC
    effort = "two lines"
    needs = "cuda"
    values = ("on", "off")
    suggested = ("on",)
    missing = "no model ran on a CUDA device"

    def parse(self, text: str | None) -> Any:
        return super().parse(text if text is not None else "on")

    def applies(self, program: ObservedProgram) -> Rejection | None:
        products = program.switches.get("tf32_matmul") in ("high", "medium")
        on = products and program.switches.get("tf32_cudnn")
        return Rejection(RejectReason.ALREADY_ON) if on else None

    def predict(self, value: str | None, known: KnownProgram) -> Changes:
        """Products that are now done in fp32 at the rate of TF32; None where there are none."""
        limits = device_limits(known)
        rate, memory = limits.flops_per_s.get("tf32"), limits.bytes_per_s
        if value == "off" or known.device == "cpu" or rate is None or memory is None:
            return None

        def new_time(row: RooflineRow) -> float | None:
            product = row.dtype == "fp32" and row.category in MATRIX_CATEGORIES
            if not product or not row.bytes:
                return None
            return time_at_bound(row, max(row.flops / rate, row.bytes / memory) * 1e9, 0.8)

        change = scale_operators(factors_by_operator(roofline_rows(known), new_time))
        return None if change is None else [change]

    def rounding(self, value: str) -> str:
        return "tfloat32"

    def install(self, value: Any, hands: FixContext) -> None:
        import torch

        if not torch.cuda.device_count():
            hands.no_cuda()
            return
        switch = _Switch(value == "on", hands)
        switch.set()
        switch.keep()
        hands.seams.root_found(switch.said_of)

    def edit(self, value: Any, line: str) -> SourceEdit:
        on = value == "on"
        return SourceEdit(
            f"put these lines at the beginning, to turn TF32 {value}",
            before=(
                f'torch.set_float32_matmul_precision("{"high" if on else "highest"}")',
                f"torch.backends.cudnn.allow_tf32 = {on}",
            ),
        )

    def patch(self, value: Any, applied: Sequence[Applied], files: "SourceFiles") -> "FoundEdits":
        from stepscope.fixes.edit.locate import at_the_top

        return at_the_top(self, value, applied, files)


class _Switch:
    """TF32's switches, set one way; the fix wins over what the program sets later, and says so."""

    def __init__(self, on: bool, hands: FixContext) -> None:
        self._on = on
        self._hands = hands
        self._setting = False

    def set(self) -> None:
        """The older switches, then the newer ones to the same: torch raises when it is asked for
        one of them and they differ."""
        import torch

        backends = torch.backends
        self._setting = True
        try:
            torch.set_float32_matmul_precision("high" if self._on else "highest")
            backends.cudnn.allow_tf32 = self._on
            for operations in (backends.cuda.matmul, *_single(backends.cudnn)):
                if hasattr(operations, "fp32_precision"):
                    operations.fp32_precision = "tf32" if self._on else "ieee"
        finally:
            self._setting = False

    def keep(self) -> None:
        """Notice whatever way the program sets them."""
        import torch

        around = self._hands.seams.around
        around(torch, "set_float32_matmul_precision", self._program_set)
        around(type(torch.backends.cuda.matmul), "__setattr__", self._attribute_set)
        single = getattr(torch.backends, "_FP32Precision", None)
        if single is not None:
            around(single, "__setattr__", self._attribute_set)
        switches = [
            vars(type(module)).get(name)
            for module in (torch.backends, torch.backends.cudnn)
            for name in ("allow_tf32", "fp32_precision")
        ]
        property_class = type(vars(type(torch.backends.cudnn))["allow_tf32"])

        def property_set(call: Any, switch: Any, owner: Any, value: Any) -> None:
            call(switch, owner, value)
            if any(switch is known for known in switches):
                self._overrule(value)

        around(property_class, "__set__", property_set)

    def said_of(self, module: Any) -> None:
        """Say what it means for a model that is about to run."""
        import torch

        name = type(module).__qualname__
        device = next((p.device for p in module.parameters() if p.is_cuda), None)
        if device is None:
            self._hands.not_applied(NotApplied(Reason.NOT_ON_CUDA, object=name))
        elif torch.cuda.get_device_capability(device) < _NEEDED:
            gpu = torch.cuda.get_device_name(device)
            self._hands.not_applied(NotApplied(Reason.NO_TF32, object=gpu))
        else:
            self._hands.applied(Applied(Target.TF32, name, after="on" if self._on else "off"))

    def _program_set(self, call: Any, precision: str) -> None:
        call(precision)
        self._overrule(precision)

    def _attribute_set(self, call: Any, owner: Any, name: str, value: Any) -> None:
        call(owner, name, value)
        if name in ("allow_tf32", "fp32_precision"):
            self._overrule(value)

    def _overrule(self, value: Any) -> None:
        if self._setting:
            return
        if value in (_OFF if self._on else _ON):
            self._hands.applied(Applied(Target.TF32_SETTING, overrides=self._hands.place()))
        self.set()


def _single(cudnn: Any) -> list[Any]:
    """cuDNN's kinds of operations that have a switch of their own."""
    return [getattr(cudnn, name) for name in ("conv", "rnn") if hasattr(cudnn, name)]


FIX = Tf32()
