"""Memory over time, its peak and who owned it, and whether it grows from step to step."""

import re
from collections import Counter
from dataclasses import replace
from typing import Final

import numpy as np
from msgspec import Struct

from stepscope.analyze.timeline.attribution import attribute, is_operator, nearest
from stepscope.analyze.timeline.host_threads import innermost_at
from stepscope.analyze.timeline.names import names_match
from stepscope.analyze.timeline.steps import RecordedStep, step_at
from stepscope.record.row_log import STEP_PHASES
from stepscope.record.timeline import (
    NOTHING,
    Column,
    DeviceEvents,
    Timeline,
    distinct_values,
    make_events,
)

# Operators that only make room for others: the one that called them is the owner.
_ALLOCATES: Final = re.compile(r"aten::(new_)?(empty|resize|_?set_|zeros|ones|full)")
_MOST_OWNERS: Final = 20


class MemoryOwner(Struct, frozen=True):
    """Live allocations of one origin; None where the recording does not tell."""

    operator: str | None
    module: str | None
    line: str | None  # "file(line): function"
    phase: str | None
    bytes: int
    count: int


def _owners_of(timeline: Timeline, rows: Column) -> tuple[list[MemoryOwner], int]:
    """The largest owners of some allocations, largest first, and the bytes of all others.

    Allocations are attributed as if each were work launched where they were made.
    """
    memory, host = timeline.memory, timeline.host
    inside = innermost_at(timeline, memory.thread[rows], memory.time[rows])
    launched = make_events(DeviceEvents, launch=inside)
    attribution = attribute(replace(timeline, device=launched))
    makes_room = names_match(timeline, host.name, _ALLOCATES.match)
    caller = nearest(host.parent, is_operator(timeline) & ~makes_room)[inside]
    names = timeline.host_names(np.where(caller != NOTHING, caller, attribution.operator))
    size: Counter[tuple[int, ...]] = Counter()
    count: Counter[tuple[int, ...]] = Counter()
    columns = (names, attribution.module, attribution.line, attribution.phase)
    for *origin, taken in np.stack((*columns, memory.bytes[rows])).T.tolist():
        size[tuple(origin)] += taken
        count[tuple(origin)] += 1
    most = [
        MemoryOwner(
            operator=timeline.name_of(name) or None,
            module=attribution.modules[module] if module >= 0 else None,
            line=timeline.name_of(line) or None,
            phase=STEP_PHASES[phase] if name >= 0 or line >= 0 else None,
            bytes=taken,
            count=count[name, module, line, phase],
        )
        for (name, module, line, phase), taken in size.most_common(_MOST_OWNERS)
    ]
    return most, size.total() - sum(owner.bytes for owner in most)


_POINTS = 1000
_MOST_DEVICES = 16  # those with the most events


class MemoryPoint(Struct, frozen=True):
    """Memory just after a change; None where the allocator did not say."""

    time_ns: int
    allocated_bytes: int
    reserved_bytes: int | None


class MemoryUse(Struct, frozen=True):
    """One device's memory; `device` None is the host's.

    peak_bytes = before_bytes + all owners' bytes + other_bytes.
    """

    device: int | None
    points: list[MemoryPoint]  # at most 1,000, each low and high kept
    events: int
    peak_bytes: int
    peak_time_ns: int
    peak_step: str | None  # None outside the steps
    peak_reserved_bytes: int | None
    fragmented_bytes: int | None  # reserved and not allocated, at the peak
    before_bytes: int  # live at the peak and allocated before the recording
    owners: list[MemoryOwner]  # of the peak, largest first
    other_bytes: int  # of owners too small to list
    step_end_bytes: list[int]  # allocated at the end of each step
    growth_per_step_bytes: float | None  # None with fewer than three steps
    grows_every_step: bool | None  # the sign of a leak
    absolute: bool  # False: no totals were recorded, levels count from the lowest


def memory_use(timeline: Timeline, steps: list[RecordedStep]) -> list[MemoryUse] | None:
    """Each device's memory, or the host's where no device's was; None: memory was not recorded."""
    memory = timeline.memory
    if not len(memory):
        return None
    known = memory.device[memory.device != NOTHING]
    devices, events = np.unique(known if len(known) else memory.device, return_counts=True)
    devices = np.sort(devices[np.argsort(-events, kind="stable")[:_MOST_DEVICES]])
    return [_use(timeline, steps, device) for device in devices.tolist()]


def _use(timeline: Timeline, steps: list[RecordedStep], device: int) -> MemoryUse:
    memory = timeline.memory
    rows = np.flatnonzero(memory.device == device)
    # Where the allocator's own totals are missing, from the first of them, else from the lowest.
    level, known = memory.allocated[rows], np.flatnonzero(memory.allocated[rows] >= 0)
    if len(known) < len(rows):
        totals, level = level, np.cumsum(memory.bytes[rows])
        level += totals[known[0]] - level[known[0]] if len(known) else -min(int(level.min()), 0)
    time, reserved = memory.time[rows], memory.reserved[rows]
    peak = int(np.argmax(level))
    seen = rows[: peak + 1][::-1]
    latest = seen[np.unique(memory.address[seen], return_index=True)[1]]
    live = np.sort(latest[memory.bytes[latest] > 0])  # not freed by the peak
    owners, other = _owners_of(timeline, live)
    points = np.stack((time, level, reserved))[:, _extremes(level)].T.tolist()
    peak_reserved = _known_bytes(reserved[peak])
    # A step before the first change has the level before it.
    ends = np.array([step.end_ns for step in steps], np.int64)
    at_ends = level[np.maximum(np.searchsorted(time, ends, "left") - 1, 0)].tolist()
    # The first step may still allocate what stays, like an optimizer's state.
    changes = np.diff(at_ends)[1:]
    peak_bytes, at = int(level[peak]), int(time[peak])
    return MemoryUse(
        device=None if device == NOTHING else device,
        points=[MemoryPoint(when, live, _known_bytes(kept)) for when, live, kept in points],
        events=len(rows),
        peak_bytes=peak_bytes,
        peak_time_ns=at,
        peak_step=step_at(steps, at),
        peak_reserved_bytes=peak_reserved,
        fragmented_bytes=None if peak_reserved is None else max(peak_reserved - peak_bytes, 0),
        before_bytes=max(peak_bytes - int(memory.bytes[live].sum()), 0),
        owners=owners,
        other_bytes=other,
        step_end_bytes=at_ends,
        growth_per_step_bytes=float(np.median(changes)) if len(changes) else None,
        grows_every_step=bool((changes > 0).all()) if len(changes) else None,
        absolute=len(known) > 0,
    )


def _known_bytes(value: int) -> int | None:
    return int(value) if value >= 0 else None


def _extremes(level: Column) -> Column:
    """Where to sample: everything if that is little, else each bucket's low and high."""
    size = len(level)
    if size <= _POINTS:
        return np.arange(size)
    width = -(-size // (_POINTS // 2 - 1))
    padded = np.append(level, np.full(-size % width, level[-1])).reshape(-1, width)
    first = np.arange(len(padded)) * width
    lows, highs = first + padded.argmin(axis=1), first + padded.argmax(axis=1)
    kept: Column = distinct_values(
        np.minimum(np.concatenate((lows, highs, [0, size - 1])), size - 1)
    )
    return kept
