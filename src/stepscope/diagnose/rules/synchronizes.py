"""`torch.cuda.synchronize()` in the loop."""

from collections.abc import Iterable

from stepscope.diagnose.case import Case, Rule
from stepscope.diagnose.rules._waitfinding import often, waits_of
from stepscope.diagnose.rules._waitgain import lost
from stepscope.diagnose.rules._waits import grouped
from stepscope.record.finding import Finding, FixRef


def _sync_synchronize(case: Case) -> Iterable[Finding]:
    """Where the program asks to wait for the device."""
    some = grouped(case).get("synchronize", [])
    whole = any(wait.what == "synchronize" for wait in some) and case.show is not None
    return waits_of(
        case,
        "synchronize",
        name=SYNC_SYNCHRONIZE.id,
        title="The program waits for the GPU on purpose",
        why=(
            f"The loop synchronises with the device{often(some)}: the host waits {lost(some)} and"
            " the device then has nothing queued."
        ),
        advice=(
            "Delete torch.cuda.synchronize() from the loop. Results are right without it; to time"
            " steps, record CUDA events and read them later."
        ),
        words="the host goes on launching while the device works",
        fix=FixRef("nosync") if whole else None,
        effort="one line",
    )


SYNC_SYNCHRONIZE = Rule(
    id="sync.synchronize",
    cause="`torch.cuda.synchronize()` in the loop.",
    find=_sync_synchronize,
    family="wait",
)
