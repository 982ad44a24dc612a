"""Memory is given back to the driver in the loop, and asked for again."""

import re
from collections.abc import Iterable

from stepscope.analyze.whatif import changes
from stepscope.diagnose.case import Case, Rule, in_ms
from stepscope.diagnose.rules._source import lines_around
from stepscope.diagnose.rules._step import part, per_step, steps
from stepscope.diagnose.rules._text import times
from stepscope.diagnose.rules._waitgain import matters, share
from stepscope.record.finding import Evidence, Finding, Place

_FREES = re.compile(r"^(cuda|hip)Free(_v\d+)?$|^cuMem(Unmap|Release|Free)(_v\d+)?$")
_CALLS = r"^((cuda|hip)(Free|Malloc)|cuMem(Unmap|Release|Free|Create|Map|SetAccess|Alloc))(_v\d+)?$"
_RARE = 0.5  # times a step
_NEAR = (3, 12)  # source lines kept before and after each line a run points at


def _sync_empty_cache(case: Case) -> Iterable[Finding]:
    """Where steps in mid-training free device memory, though the allocator was not short of it."""
    calls = ((case.trace or {}).get("host") or {}).get("runtime") or []
    freed = sum(one["count"] for one in calls if _FREES.search(one["name"]))
    short = (((case.show or {}).get("gpu") or {}).get("allocator_retries") or 0) > 0
    if case.device != "cuda" or short or not steps(case) or freed < _RARE * steps(case):
        return
    spent = sum(one["total_ns"] for one in calls if re.search(_CALLS, one["name"]))
    lost_ms = per_step(case, spent)
    predicted = case.predict(
        changes.drop_waits("empty_cache"),
        changes.drop_host(_CALLS),
        words="memory stays with the program from step to step",
    )
    if not matters(case, predicted, lost_ms):
        return
    where = _lines(case)
    a_step = freed / steps(case)
    yield Finding(
        id=SYNC_EMPTY_CACHE.id,
        title="GPU memory is given back and fetched anew in the loop",
        why=(
            f"The driver frees memory {times(a_step)} times a step, waiting for all work each"
            f" time, and then has to provide it again: {in_ms(lost_ms)} ms of each recorded step."
        ),
        advice=(
            "Delete torch.cuda.empty_cache() from the loop: the allocator hands memory on by"
            " itself, and a step needs what the one before had."
        ),
        share=share(case, predicted, part(case, lost_ms) * case.step_ms),
        evidence=(
            Evidence("memory freed by the driver", a_step, "times a step"),
            Evidence("freeing and allocating", lost_ms, "ms a recorded step"),
        ),
        where=where,
        predicted=predicted,
        effort="one line",
        kind="exact",
        confidence="high" if where else "medium",
    )


SYNC_EMPTY_CACHE = Rule(
    id="sync.empty_cache",
    cause="Memory is given back to the driver in the loop, and asked for again.",
    find=_sync_empty_cache,
)


def _lines(case: Case) -> tuple[Place, ...]:
    """Lines near those the run points at that ask for it."""
    found = dict[Place, None]()
    for site in (case.show or {}).get("sites") or ():
        at = Place(site.get("file"), site.get("line"))
        for number, line in lines_around(case, at, *_NEAR):
            if "empty_cache(" in line:
                found[Place(site["file"], number)] = None
    return tuple(found)
