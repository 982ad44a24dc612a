"""Who allocated what was live when memory was fullest."""

import re
from collections import Counter
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from stepscope.analyze.timeline.attribution import Attribution, attribute, is_operator, nearest
from stepscope.analyze.timeline.hostat import innermost
from stepscope.analyze.timeline.namematch import names_that
from stepscope.record.rows import STEP_PHASES
from stepscope.record.timeline import NOTHING, Column, DeviceEvents, MemoryEvents, Timeline, events

# Operators that only make room for others: the one that called them is the owner.
_ALLOCATES: Final = re.compile(r"aten::(new_)?(empty|resize|_?set_|zeros|ones|full)")
_MOST: Final = 20


@dataclass(frozen=True, slots=True)
class Owner:
    """Live allocations of one origin; None where the recording does not tell."""

    operator: str | None
    module: str | None
    line: str | None  # "file(line): function"
    phase: str | None
    bytes: int
    count: int


def live_at(memory: MemoryEvents, rows: Column, last: int) -> Column:
    """The allocations among rows[: last + 1], all of one device, that were not freed by then."""
    seen = rows[: last + 1][::-1]
    _, latest = np.unique(memory.address[seen], return_index=True)
    latest = seen[latest]
    return np.sort(latest[memory.bytes[latest] > 0])


def owners_of(timeline: Timeline, rows: Column) -> tuple[list[Owner], int]:
    """The largest owners of some allocations, largest first, and the bytes of all others."""
    memory = timeline.memory
    names, attribution = _origins(timeline, rows)
    size: Counter[tuple[int, ...]] = Counter()
    count: Counter[tuple[int, ...]] = Counter()
    columns = (names, attribution.module, attribution.line, attribution.phase)
    for *origin, taken in np.stack((*columns, memory.bytes[rows])).T.tolist():
        size[tuple(origin)] += taken
        count[tuple(origin)] += 1
    most = [
        Owner(
            operator=timeline.name_of(name) or None,
            module=attribution.modules[module] if module >= 0 else None,
            line=timeline.name_of(line) or None,
            phase=STEP_PHASES[phase] if name >= 0 or line >= 0 else None,
            bytes=taken,
            count=count[name, module, line, phase],
        )
        for (name, module, line, phase), taken in size.most_common(_MOST)
    ]
    return most, size.total() - sum(owner.bytes for owner in most)


def _origins(timeline: Timeline, rows: Column) -> tuple[Column, Attribution]:
    """The operator's name, and all else that is known, of where allocations were made.

    They are attributed as if each were work launched there.
    """
    memory, host = timeline.memory, timeline.host
    inside = innermost(timeline, memory.thread[rows], memory.time[rows])
    launched = events(DeviceEvents, launch=inside)
    attribution = attribute(replace(timeline, device=launched))
    makes_room = names_that(timeline, host.name, _ALLOCATES.match)
    caller = nearest(host.parent, is_operator(timeline) & ~makes_room)[inside]
    operator = np.where(caller != NOTHING, caller, attribution.operator)
    return np.append(host.name, np.int32(NOTHING))[operator], attribution
