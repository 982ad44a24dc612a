"""Memory over time, its peak and who owned it, and whether it grows from step to step."""

from dataclasses import dataclass

import numpy as np

from stepscope.analyze.timeline.owners import Owner, live_at, owners_of
from stepscope.analyze.timeline.steps import Step
from stepscope.record.timeline import NOTHING, Column, MemoryEvents, Timeline

_POINTS = 1000


@dataclass(frozen=True, slots=True)
class MemoryPoint:
    """Memory just after a change; None where the allocator did not say."""

    time_ns: int
    allocated_bytes: int
    reserved_bytes: int | None


@dataclass(frozen=True, slots=True)
class MemoryUse:
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
    owners: list[Owner]  # of the peak, largest first
    other_bytes: int  # of owners too small to list
    step_end_bytes: list[int]  # allocated at the end of each step
    growth_per_step_bytes: float | None  # None with fewer than three steps
    grows_every_step: bool | None  # the sign of a leak
    absolute: bool  # False: no totals were recorded, levels count from the lowest


def memory_use(timeline: Timeline, steps: list[Step]) -> list[MemoryUse] | None:
    """Each device's memory, or the host's where no device's was; None: memory was not recorded."""
    memory = timeline.memory
    if not len(memory):
        return None
    devices = np.unique(memory.device)
    devices = devices[devices != NOTHING] if (devices != NOTHING).any() else devices
    return [_use(timeline, steps, device) for device in devices.tolist()]


def _use(timeline: Timeline, steps: list[Step], device: int) -> MemoryUse:
    memory = timeline.memory
    rows = np.flatnonzero(memory.device == device)
    level, absolute = _allocated(memory, rows)
    time, reserved = memory.time[rows], memory.reserved[rows]
    peak = int(np.argmax(level))
    live = live_at(memory, rows, peak)
    owners, other = owners_of(timeline, live)
    held = _said(reserved[peak])
    at_ends = _at_ends(time, level, steps)
    # The first step may still allocate what stays, like an optimizer's state.
    changes = np.diff(at_ends)[1:]
    peak_bytes, at = int(level[peak]), int(time[peak])
    return MemoryUse(
        device=None if device == NOTHING else device,
        points=[
            MemoryPoint(when, allocated, _said(kept))
            for when, allocated, kept in np.stack((time, level, reserved))[:, _extremes(level)].T
            .tolist()
        ],
        events=len(rows),
        peak_bytes=peak_bytes,
        peak_time_ns=at,
        peak_step=next((s.name for s in steps if s.start_ns <= at < s.end_ns), None),
        peak_reserved_bytes=held,
        fragmented_bytes=None if held is None else max(held - peak_bytes, 0),
        before_bytes=max(peak_bytes - int(memory.bytes[live].sum()), 0),
        owners=owners,
        other_bytes=other,
        step_end_bytes=at_ends,
        growth_per_step_bytes=float(np.median(changes)) if len(changes) else None,
        grows_every_step=bool((changes > 0).all()) if len(changes) else None,
        absolute=absolute,
    )  # fmt: skip


def _said(value: int) -> int | None:
    return int(value) if value >= 0 else None


def _allocated(memory: MemoryEvents, rows: Column) -> tuple[Column, bool]:
    """Bytes allocated after each row, and whether they are the allocator's own totals."""
    told = memory.allocated[rows]
    known = np.flatnonzero(told >= 0)
    if len(known) == len(rows):
        return told, True
    level = np.cumsum(memory.bytes[rows])
    base = told[known[0]] - level[known[0]] if len(known) else -min(int(level.min()), 0)
    return level + base, bool(len(known))


def _extremes(level: Column) -> Column:
    """Where to sample: everything if that is little, else each bucket's low and high."""
    size = len(level)
    if size <= _POINTS:
        return np.arange(size)
    width = -(-size // (_POINTS // 2 - 1))
    padded = np.append(level, np.full(-size % width, level[-1])).reshape(-1, width)
    first = np.arange(len(padded)) * width
    lows, highs = first + padded.argmin(axis=1), first + padded.argmax(axis=1)
    kept: Column = np.unique(np.minimum(np.concatenate((lows, highs, [0, size - 1])), size - 1))
    return kept


def _at_ends(time: Column, level: Column, steps: list[Step]) -> list[int]:
    """The level when each step ended; a step before the first change has the level before it."""
    ends = np.array([step.end_ns for step in steps], np.int64)
    at = np.maximum(np.searchsorted(time, ends, "left") - 1, 0)
    levels: list[int] = level[at].tolist()
    return levels
