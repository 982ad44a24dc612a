"""nonzero, boolean masks and unique: the host waits to learn the size of the result."""

from collections.abc import Iterable

from stepscope.diagnose.case import Case, Rule
from stepscope.diagnose.rules._waitfinding import often, waits_of
from stepscope.diagnose.rules._waitgain import lost
from stepscope.diagnose.rules._waits import grouped
from stepscope.record.finding import Finding


def _sync_nonzero(case: Case) -> Iterable[Finding]:
    """Where the host has to learn how large a result is before it can go on."""
    some = grouped(case).get("nonzero", [])
    return waits_of(
        case,
        "nonzero",
        name=SYNC_NONZERO.id,
        title="Masks and nonzero make the host wait for a size",
        why=(
            "Indexing by a boolean mask, nonzero and unique give results whose size the host has"
            f" to wait for{often(some)}: {lost(some)}."
        ),
        advice=(
            "Keep the shape fixed: torch.where(mask, x, 0), a multiplication by the mask, or"
            " a loss with weights, and divide by mask.sum() on the device."
        ),
        words="shapes are known without asking the device",
    )


SYNC_NONZERO = Rule(
    id="sync.nonzero",
    cause="nonzero, boolean masks and unique: the host waits to learn the size of the result.",
    find=_sync_nonzero,
)
