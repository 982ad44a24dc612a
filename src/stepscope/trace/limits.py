"""What a recording may ask of this machine, and what its numbers may come to.

Everything after reading relies on it: sums of a column fit in 64 bits, and whatever is done once
per device is done a bounded number of times.
"""

from dataclasses import replace
from pathlib import Path
from stat import S_ISREG

import numpy as np

from stepscope.hardware.processor import free_bytes
from stepscope.record.errors import StepscopeError
from stepscope.record.timeline import (
    NOTHING,
    Column,
    DeviceEvents,
    HostEvents,
    MemoryEvents,
    Quality,
    Stream,
    SyncEvents,
)

MOST_EVENTS = 50_000_000
EVENT_BYTES = 700
"""Of memory that an event takes while it is read and analysed. `benchmarks/trace_shapes.py` found
245 to 647; an event with a name or a stream of its own takes up to twice as much."""
MOST_DEVICES = 64
LARGEST_SIZE = 2**60
"""Bytes of one copy, allocation or total; more is a mistake."""
_LARGEST_SUM = 2.0**62
_YEARS = int(_LARGEST_SUM / 1e9 / 3600 / 24 / 365)


def check_file(path: Path) -> None:
    """StepscopeError unless it is an ordinary file: others may block for ever or have no end."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise StepscopeError(f"{path}: {error.strerror or error}") from error
    if not S_ISREG(mode):
        raise StepscopeError(f"{path} is not a regular file")


class EventBudget:
    """How many events may be read here."""

    def __init__(self, most: int, memory: int | None = None) -> None:
        """`memory`: bytes that are free, None where the system does not say."""
        fitting = most if memory is None else memory // EVENT_BYTES
        self._most, self._memory = min(most, fitting), memory if fitting < most else None

    def check(self, events: int) -> None:
        """Raise StepscopeError where there are more."""
        if events <= self._most:
            return
        said = f"more than {self._most / 1e6:,.3g} million events"
        if self._memory is not None:
            said += f", all that fit in the {self._memory / 2**30:,.1f} GiB of memory free here"
        raise StepscopeError(f"{said}: record fewer steps at a time")

    def shared(self, readers: int) -> "EventBudget":
        """The part of one of several readers."""
        return EventBudget(self._most // readers, self._memory and self._memory // readers)


def event_budget() -> EventBudget:
    """By the memory that is free now."""
    return EventBudget(MOST_EVENTS, free_bytes())


def fold_devices(streams: list[Stream], stream: Column, quality: Quality) -> list[Stream]:
    """The streams with at most so many devices: work of all others is of an unknown one."""
    devices = np.array([one.device for one in streams], np.int64)
    known, which = np.unique(devices, return_inverse=True)
    if len(known) <= MOST_DEVICES:
        return streams
    work = np.bincount(which[stream[stream >= 0]], minlength=len(known))
    kept = set(known[np.argsort(-work, kind="stable")[:MOST_DEVICES]].tolist())
    left = len(known) - len(kept)
    quality.notes.append(f"{left:,} devices beyond the {MOST_DEVICES} busiest are taken as one")
    return [one if one.device in kept else replace(one, device=NOTHING) for one in streams]


def check_totals(
    host: HostEvents, device: DeviceEvents, memory: MemoryEvents, syncs: SyncEvents
) -> None:
    """StepscopeError where durations or sizes add up to more than 64 bits hold."""
    for what, columns, limit in (
        ("durations", (host.duration, device.duration, syncs.duration), f"{_YEARS} years"),
        ("sizes", (device.bytes, memory.bytes), "4 EiB"),
    ):
        if sum(float(np.abs(column).sum(dtype=np.float64)) for column in columns) >= _LARGEST_SUM:
            raise StepscopeError(f"the {what} of its events add up to over {limit}: damaged?")
