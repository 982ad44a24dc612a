"""Products in wide formats: how much there is of them, and which fix suits."""

from stepscope.analyze.whatif.changes import no_launch_cost
from stepscope.analyze.whatif.gains import change_for
from stepscope.diagnose.case import Case, in_ms
from stepscope.diagnose.rules._kernels import (
    MATRIX,
    gain,
    heaviest,
    kernels,
    more,
    operators_of,
    rates,
    rows_ms,
    shapes,
)
from stepscope.diagnose.rules._step import per_step
from stepscope.record.finding import FixRef, Place, Predicted

_WIDE = ("fp32", "tf32")


def wide_ms(case: Case) -> tuple[float, tuple[Place, ...]]:
    """Of matrix products in fp32 or TF32; by kernel names where no shapes were recorded."""
    rows = [r for r in shapes(case) if r["category"] in MATRIX and r["dtype"] in _WIDE]
    if rows:
        return rows_ms(case, rows), operators_of(rows)
    known = (case.trace or {}).get("roofline")
    plain = [k for k in kernels(case) if k["category"] in MATRIX and k["tensor_core"] is False]
    if known is not None and known.get("shapes"):
        return 0.0, ()
    names = {k["name"] for k in plain}
    return per_step(case, sum(k["total_ns"] for k in plain)), heaviest(
        case, lambda k: k["name"] in names
    )


def lower_dtype(case: Case) -> str:
    """bf16, or fp16 where the device has no units for that."""
    known = rates(case)
    return "fp16" if known and "bf16" not in known and "fp16" in known else "bf16"


def best(case: Case, wide: float) -> tuple[FixRef, Predicted | None, FixRef | None]:
    """Autocast, unless TF32 alone gains about as much."""
    amp = FixRef("amp", lower_dtype(case))
    words = f"{in_ms(wide)} ms of products run at {amp.value}'s rate, on half the bytes"
    lower = gain(case, change_for("amp", amp.value, case), words, 0.35)
    tf32 = FixRef("tf32", "on")
    quick = gain(
        case, change_for("tf32", "on", case), "fp32 products run in TF32 on tensor cores", 0.35
    )
    if quick is not None and not more(lower, quick, by=0.05):
        return tf32, quick, amp
    return amp, lower, tf32 if quick is not None else None


def advice(case: Case, fix: FixRef, other: FixRef | None) -> str:
    """What to write."""
    autocast = f"Call the model under torch.autocast in {lower_dtype(case)}"
    tf32 = 'torch.set_float32_matmul_precision("high") alone lets fp32 products use TF32'
    if fix.name == "tf32":
        return f"{tf32.replace(' alone', '')}; autocast would go further."
    return f"{autocast}." if other is None else f"{autocast}; {tf32}."


def together(case: Case, fix: FixRef) -> str:
    """What it brings once the host is no longer in the way."""
    changes = change_for(fix.name, fix.value, case)
    if changes is None:
        return ""
    both = gain(case, [*changes, no_launch_cost()], "both", 0.3)
    if both is None:
        return ""
    return (
        " The host is soon the limit then: with a CUDA graph or torch.compile besides, the step "
        f"would be about {both.speedup:.1f} times as fast."
    )
