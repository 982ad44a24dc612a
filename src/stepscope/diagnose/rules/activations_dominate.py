"""What is kept for backward fills most of a scarce memory."""

from collections.abc import Iterable

from stepscope.diagnose.case import Case, Rule
from stepscope.diagnose.rules._memory import SCARCE, amount, memory
from stepscope.record.finding import Evidence, Finding, FixRef

_MOST = 0.5


def _activations_dominate(case: Case) -> Iterable[Finding]:
    """Where activations are over half of the peak and the device is over 80% full."""
    known = memory(case)
    if known is None or known.device != "cuda" or known.full < SCARCE:
        return
    part = known.share("activations")
    if part < _MOST:
        return
    kept = known.owners["activations"]
    yield Finding(
        id=ACTIVATIONS_DOMINATE.id,
        title=f"Activations fill {part:.0%} of the memory in use",
        why=(
            f"{amount(kept)} of {amount(known.allocated)} are kept from forward for backward, and "
            f"the GPU is {known.full:.0%} full."
        ),
        advice=(
            "Compute repeated blocks again in backward (torch.utils.checkpoint) where memory "
            "limits the batch: about a third more compute for a forward pass done twice."
        ),
        share=0.0,
        evidence=(
            Evidence("activations", kept, "bytes"),
            Evidence("peak", known.allocated, "bytes"),
            Evidence("there is", known.total, "bytes"),
        ),
        fix=FixRef("checkpointing"),
        effort="some lines",
        kind="exact",
        confidence="high",
        scope="run",
    )


ACTIVATIONS_DOMINATE = Rule(
    id="memory.activations_dominate",
    cause="What is kept for backward fills most of a scarce memory.",
    find=_activations_dominate,
)
