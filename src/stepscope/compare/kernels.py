"""What a typical recorded step did, kernel by kernel (or operator by operator), matched between two
results: new, gone, slower and faster, in numbers that add up.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Final, NamedTuple

import numpy as np

from stepscope.analyze.timeline.attribution import (
    AUTOGRAD_NODE,
    BACKWARD,
    DATA_WAIT,
    FORWARD,
    OPTIMIZER,
    attribute,
    is_operator,
    nearest,
)
from stepscope.analyze.timeline.kernels import operator_self_times
from stepscope.analyze.timeline.names import is_user_frame, names_match, starts_with
from stepscope.analyze.timeline.steps import find_steps
from stepscope.record.row_log import STEP_PHASES
from stepscope.record.timeline import NOTHING, Column, HostKind, Timeline
from stepscope.results.comparison import KernelComparison, KernelRow, WorkState, WorkUnit

_Key = tuple[str, str | None, str]
"""Name, operator and phase."""


@dataclass(frozen=True, slots=True)
class Work:
    """One kernel, copy or memset; without a device, one operator with its self time."""

    name: str
    ms: float
    operator: str | None
    phase: str
    line: str | None
    """`file(line): function` of the user's code; None if no stacks were recorded."""


@dataclass(frozen=True, slots=True)
class TypicalStep:
    unit: WorkUnit
    works: tuple[Work, ...]


def typical_step(timeline: Timeline, stacks: Timeline | None) -> TypicalStep:
    """The most frequent form of the step, each time the median over its occurrences.

    Lines come from the recording itself or, by operator and name, from one with stacks.
    """
    unit = WorkUnit.KERNELS if len(timeline.device) else WorkUnit.OPERATORS
    events = _events(timeline, unit)
    lines = _lines(_events(stacks, unit), stacks) if stacks is not None else {}
    chosen = _typical(timeline, events)
    names = timeline.names
    times = np.median([events.duration[step] for step in chosen], axis=0) / 1e6
    works = []
    for place, ms in zip(chosen[0].tolist(), times.tolist(), strict=True):
        name, operator = names[events.name[place]], _name(names, events.operator[place])
        phase = STEP_PHASES[events.phase[place]]
        line = _name(names, events.line[place]) or lines.get((name, operator, phase))
        works.append(Work(name, ms, operator, phase, line))
    return TypicalStep(unit, tuple(works))


class _WorkEvents(NamedTuple):
    """Columns with one entry per event; names are indices into the timeline's, or NOTHING."""

    begun: Column
    duration: Column
    name: Column
    operator: Column
    phase: Column
    line: Column


def _events(timeline: Timeline, unit: WorkUnit) -> _WorkEvents:
    if unit is WorkUnit.OPERATORS:
        return _host_events(timeline)
    device, host = timeline.device, timeline.host
    found = attribute(timeline)
    begun = device.start
    if len(host):
        begun = np.where(device.launch >= 0, host.start[device.launch], device.start)
    operator = timeline.host_names(found.operator)
    return _WorkEvents(begun, device.duration, device.name, operator, found.phase, found.line)


def _host_events(timeline: Timeline) -> _WorkEvents:
    """Operators by start, with their self time."""
    host = timeline.host

    def below(start: str) -> Column:
        found: Column = nearest(host.parent, starts_with(timeline, start))[chosen] != NOTHING
        return found

    chosen = np.flatnonzero(is_operator(timeline))
    phases = np.select(
        [below("Optimizer."), below(AUTOGRAD_NODE), below("enumerate(DataLoader)")],
        [OPTIMIZER, BACKWARD, DATA_WAIT],
        FORWARD,
    ).astype(np.uint8)
    frames = (host.kind == HostKind.PYTHON) & names_match(timeline, host.name, is_user_frame)
    lines = timeline.host_names(nearest(host.parent, frames)[chosen])
    # Backward and optimizers run where the loop calls them, not where their work comes from.
    lines = np.where(phases == FORWARD, lines, np.int32(NOTHING))
    name, duration = host.name[chosen], operator_self_times(timeline)[chosen]
    return _WorkEvents(host.start[chosen], duration, name, name, phases, lines)


def _typical(timeline: Timeline, events: _WorkEvents) -> Sequence[Column]:
    """The events of each step that has the most frequent sequence of names, in order."""
    inside = [
        np.flatnonzero((events.begun >= step.start_ns) & (events.begun < step.end_ns))
        for step in find_steps(timeline).steps
    ]
    spelt = [events.name[step].tobytes() for step in inside]
    usual, _ = Counter(spelt).most_common(1)[0]
    return [step for step, names in zip(inside, spelt, strict=True) if names == usual]


def _lines(events: _WorkEvents, stacks: Timeline) -> dict[_Key, str]:
    """The most frequent line behind each kind of work."""
    counts: defaultdict[_Key, Counter[str]] = defaultdict(Counter)
    names = stacks.names
    for place in np.flatnonzero(events.line != NOTHING).tolist():
        phase = STEP_PHASES[events.phase[place]]
        key = names[events.name[place]], _name(names, events.operator[place]), phase
        counts[key][names[events.line[place]]] += 1
    return {key: count.most_common(1)[0][0] for key, count in counts.items()}


def _name(names: Sequence[str], number: int) -> str | None:
    return None if number == NOTHING else names[number]


_MOST: Final = 6_000_000
"""Most comparisons spent on aligning two steps; beyond that, the n-th use of a name matches the
n-th."""


class Matched(NamedTuple):
    """Positions in both steps: matched pairs, and those without a partner."""

    pairs: list[tuple[int, int]]
    gone: list[int]
    new: list[int]


def match_work(base: Sequence[Work], other: Sequence[Work]) -> Matched:
    """Work in the same order is the same work; the rest is gone or new."""
    ours, theirs = [one.name for one in base], [one.name for one in other]
    counts = Counter(theirs)
    if sum(counts[name] for name in ours) <= _MOST:  # comparisons an alignment may take
        blocks = SequenceMatcher(None, ours, theirs, autojunk=False).get_matching_blocks()
        pairs = [(block.a + n, block.b + n) for block in blocks for n in range(block.size)]
    else:
        places: defaultdict[str, deque[int]] = defaultdict(deque)
        for place, name in enumerate(theirs):
            places[name].append(place)
        pairs = [(at, places[name].popleft()) for at, name in enumerate(ours) if places[name]]
    kept, met = {a for a, _ in pairs}, {b for _, b in pairs}
    return Matched(
        pairs,
        [place for place in range(len(ours)) if place not in kept],
        [place for place in range(len(theirs)) if place not in met],
    )


_SAME: Final = 0.03  # of its time, a share: smaller changes of a kernel count as none
_SHORTEST: Final = 0.002  # ms per step: smaller changes are neither slower nor faster


def _state(row: KernelRow) -> WorkState:
    if not row.base_count:
        return WorkState.NEW
    if not row.other_count:
        return WorkState.GONE
    if row.base_count != row.other_count:
        return WorkState.MORE if row.other_count > row.base_count else WorkState.FEWER
    if abs(row.delta_ms) <= max(_SHORTEST, _SAME * row.base_ms):
        return WorkState.SAME
    return WorkState.SLOWER if row.delta_ms > 0 else WorkState.FASTER


def kernel_rows(base: Sequence[Work], other: Sequence[Work]) -> list[KernelRow]:
    """How much each changed, largest first. The deltas add up to that of the whole step."""
    found: dict[_Key, KernelRow] = {}

    def row_of(work: Work) -> KernelRow:
        key = work.name, work.operator, work.phase
        row = found.setdefault(key, KernelRow(*key, work.line))
        row.line = row.line or work.line
        return row

    matched = match_work(base, other)
    for ours, theirs in matched.pairs:
        row = row_of(other[theirs])
        row.base_count += 1
        row.other_count += 1
        row.base_ms += base[ours].ms
        row.other_ms += other[theirs].ms
    for work in (base[place] for place in matched.gone):
        row = row_of(work)
        row.base_count += 1
        row.gone += 1
        row.base_ms += work.ms
        row.gone_ms += work.ms
    for work in (other[place] for place in matched.new):
        row = row_of(work)
        row.other_count += 1
        row.new += 1
        row.other_ms += work.ms
        row.new_ms += work.ms
    for row in found.values():
        row.delta_ms = row.other_ms - row.base_ms
        row.change = _state(row)
    return sorted(found.values(), key=lambda row: -abs(row.delta_ms))


def compare_kernels(base: TypicalStep, other: TypicalStep) -> KernelComparison | None:
    """The table with its sums; None if only one side has a device."""
    if base.unit is not other.unit:
        return None
    rows = tuple(kernel_rows(base.works, other.works))
    return KernelComparison(
        unit=base.unit,
        base_count=len(base.works),
        other_count=len(other.works),
        base_ms=float(sum(work.ms for work in base.works)),
        other_ms=float(sum(work.ms for work in other.works)),
        delta_ms=float(sum(row.delta_ms for row in rows)),
        new=sum(row.new for row in rows),
        gone=sum(row.gone for row in rows),
        rows=rows,
    )
