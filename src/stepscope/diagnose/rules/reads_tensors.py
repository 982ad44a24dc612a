"""`.cpu()`, `.numpy()`, `.tolist()`: the host waits for tensors to come back."""

from collections.abc import Iterable

from stepscope.diagnose.case import Case, Rule
from stepscope.diagnose.rules._waitfinding import often, waits_of
from stepscope.diagnose.rules._waitgain import lost
from stepscope.diagnose.rules._waits import grouped
from stepscope.record.finding import Finding


def _sync_cpu(case: Case) -> Iterable[Finding]:
    """Where a few tensors a step are brought back and waited for."""
    some = grouped(case).get("cpu", [])
    return waits_of(
        case,
        "cpu",
        name=SYNC_CPU.id,
        title="Bringing tensors back to the host makes it wait",
        why=(
            f"Tensors are copied back with .cpu(), .numpy() or .tolist(){often(some)};"
            f" the host stands still for {lost(some)}."
        ),
        advice=(
            "Compute on the device what is wanted of them and bring back results every some steps;"
            " or copy into pinned memory with non_blocking=True and look at them a step later."
        ),
        words="the host prepares the next step instead of waiting for tensors",
    )


SYNC_CPU = Rule(
    id="sync.cpu",
    cause="`.cpu()`, `.numpy()`, `.tolist()`: the host waits for tensors to come back.",
    find=_sync_cpu,
    family="wait",
)
