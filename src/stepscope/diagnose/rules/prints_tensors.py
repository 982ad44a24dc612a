"""Tensors are printed or logged in the loop."""

from collections.abc import Iterable

from stepscope.diagnose.case import Case, Rule
from stepscope.diagnose.rules._waitfinding import often, waits_of
from stepscope.diagnose.rules._waitgain import lost
from stepscope.diagnose.rules._waits import grouped
from stepscope.record.finding import Finding


def _sync_print(case: Case) -> Iterable[Finding]:
    """Where lines that print or log wait for what they show."""
    some = grouped(case).get("print", [])
    return waits_of(
        case,
        "print",
        name=SYNC_PRINT.id,
        title="Printing values of the GPU makes the host wait",
        why=(
            f"A line that prints or logs reads tensors off the device{often(some)};"
            f" the host stands still for {lost(some)}."
        ),
        advice=(
            "Print every so many steps (`if step % 100 == 0:`), and keep what is shown on the"
            " device until then."
        ),
        words="the host no longer waits for values to print",
        effort="one line",
    )


SYNC_PRINT = Rule(
    id="sync.print",
    cause="Tensors are printed or logged in the loop.",
    find=_sync_print,
    family="wait",
)
