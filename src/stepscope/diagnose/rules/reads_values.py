"""`.item()` and the like: the host waits until the device has computed a number."""

import re
from collections.abc import Iterable

from stepscope.diagnose.case import Case, Rule
from stepscope.diagnose.rules._waitfinding import often, waits_of
from stepscope.diagnose.rules._waitgain import lost
from stepscope.diagnose.rules._waits import grouped
from stepscope.record.finding import Finding, FixRef

_SUMMED = re.compile(r"\+=.*\.item\(\)")


def _sync_item(case: Case) -> Iterable[Finding]:
    """Where reading numbers off the device holds the host up."""
    some = grouped(case).get("item", [])
    lines = [case.source(w.place.file, w.place.line) for w in some if w.place.file and w.place.line]
    summed = any(line is not None and _SUMMED.search(line) for line in lines)
    return waits_of(
        case,
        "item",
        name=SYNC_ITEM.id,
        title="Reading a number off the GPU makes the host wait",
        why=(
            f"The program reads values with .item(), float() or a comparison{often(some)};"
            f" the host stands still for {lost(some)} and the device has nothing to do after."
        ),
        advice=(
            "Keep the value on the device (`total += loss.detach()`) and read it once, every some"
            " steps or at the end of the epoch."
        ),
        words="the host prepares the next step instead of waiting for a number",
        fix=FixRef("lazyitem") if summed else None,
        effort="one line" if len(some) == 1 else "some lines",
    )


SYNC_ITEM = Rule(
    id="sync.item",
    cause="`.item()` and the like: the host waits until the device has computed a number.",
    find=_sync_item,
    family="wait",
)
