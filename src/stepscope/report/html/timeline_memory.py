"""Allocated memory over time, for the timeline's counters."""

from typing import NamedTuple

import numpy as np

from stepscope.analyze.timeline.memory import memory_use
from stepscope.analyze.timeline.steps import Steps
from stepscope.record.timeline import NOTHING, Column, Timeline

_MOST = 40_000  # points of a counter


class Counter(NamedTuple):
    """A level that holds from each time until the next."""

    label: str
    device: int | None
    time: Column
    bytes: Column


def counters(timeline: Timeline, steps: Steps) -> list[Counter]:
    """One per device, or the host's where no device's memory was recorded."""
    found = []
    for use in memory_use(timeline, steps.steps) or []:
        memory = timeline.memory
        rows = np.flatnonzero(memory.device == (NOTHING if use.device is None else use.device))
        time, level = memory.time[rows], memory.allocated[rows]
        if len(rows) > _MOST or (level < 0).any():
            time = np.array([point.time_ns for point in use.points], np.int64)
            level = np.array([point.allocated_bytes for point in use.points], np.int64)
        where = "Host" if use.device is None else f"GPU {use.device}"
        found.append(Counter(f"{where} memory allocated", use.device, time, level))
    return found
