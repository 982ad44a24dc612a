"""The optimizer's state fills most of a scarce memory."""

from collections.abc import Iterable

from stepscope.diagnose.case import Case, Rule
from stepscope.diagnose.rules._memory import SCARCE, amount, memory
from stepscope.record.finding import Evidence, Finding

_MOST = 0.4  # Adam's two moments are half of weights, gradients and moments together


def _optimizer_state_dominates(case: Case) -> Iterable[Finding]:
    """Where the state is over 40% of the peak and the device is over 80% full."""
    known = memory(case)
    if known is None or known.device != "cuda" or known.full < SCARCE:
        return
    part = known.share("optimizer_state")
    if part < _MOST:
        return
    kept = known.owners["optimizer_state"]
    optimizers = ((case.show or {}).get("config") or {}).get("optimizers") or []
    name = optimizers[0]["name"] if optimizers else "the optimizer"
    yield Finding(
        id=OPTIMIZER_STATE_DOMINATES.id,
        title=f"Optimizer state fills {part:.0%} of the memory in use",
        why=(
            f"{name} keeps {amount(kept)} beside the weights, and the GPU is {known.full:.0%} full."
        ),
        advice=(
            "Shard the state over devices (ZeroRedundancyOptimizer, FSDP), keep it in 8 or 16 "
            "bits, or take an optimizer with a smaller one (SGD with momentum: half of Adam's)."
        ),
        share=0.0,
        evidence=(
            Evidence("optimizer state", kept, "bytes"),
            Evidence("peak", known.allocated, "bytes"),
            Evidence("there is", known.total, "bytes"),
        ),
        effort="some lines",
        kind="numeric",
        confidence="high",
        scope="run",
    )


OPTIMIZER_STATE_DOMINATES = Rule(
    id="memory.optimizer_state_dominates",
    cause="The optimizer's state fills most of a scarce memory.",
    find=_optimizer_state_dominates,
)
