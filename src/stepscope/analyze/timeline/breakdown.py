"""Where each device's time went, step by step, adding up to the wall time to the nanosecond."""

from dataclasses import dataclass

import numpy as np

from stepscope.analyze.timeline.devicework import DeviceWork, device_work
from stepscope.analyze.timeline.intervals import Spans, covered, difference
from stepscope.analyze.timeline.steps import Steps
from stepscope.record.timeline import Column, Timeline


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Nanoseconds of one device within a window of time; what overlaps is counted once.

    compute + exposed_communication + exposed_copy + idle = wall. Copies are those in every
    direction, within the device too, and memsets.
    """

    compute: int  # any kernel that computes was running
    copy: int  # any copy or memset was
    communication: int  # any communication kernel was
    exposed_communication: int  # communication, and nothing computed
    exposed_copy: int  # copies, and nothing computed or communicated
    idle: int  # nothing ran
    wall: int


@dataclass(frozen=True, slots=True)
class DeviceBreakdown:
    """One device: each step, all steps together, and the recording from its first to last event."""

    device: int
    steps: list[Breakdown]
    total: Breakdown
    whole: Breakdown


def break_down(
    timeline: Timeline, steps: Steps, work: list[DeviceWork] | None = None
) -> list[DeviceBreakdown]:
    """A breakdown per device that did anything; work that crosses a step's end counts in both."""
    starts = [s.start_ns for s in steps.steps]
    ends = [s.end_ns for s in steps.steps]
    whole = timeline.span
    found = []
    for one in device_work(timeline) if work is None else work:
        rows = within(one, [*starts, starts[0], whole[0]], [*ends, ends[-1], whole[1]])
        found.append(DeviceBreakdown(one.device, rows[:-2], rows[-2], rows[-1]))
    return found


def within(work: DeviceWork, starts: list[int], ends: list[int]) -> list[Breakdown]:
    """The breakdown of a device in each window [start, end)."""
    talks = difference(work.communication, work.compute)
    moves = difference(difference(work.copy, work.compute), work.communication)
    begin, finish = np.asarray(starts, np.int64), np.asarray(ends, np.int64)
    kinds = (work.compute, work.copy, work.communication, talks, moves, work.busy)
    columns = [_lengths(spans, begin, finish) for spans in kinds]
    return [
        Breakdown(compute, copy, communication, talk, move, end - start - busy, end - start)
        for compute, copy, communication, talk, move, busy, start, end in zip(
            *columns, starts, ends, strict=True
        )
    ]


def _lengths(spans: Spans, starts: Column, ends: Column) -> list[int]:
    lengths: list[int] = (covered(spans, ends) - covered(spans, starts)).tolist()
    return lengths
