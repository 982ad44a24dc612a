"""The critical path through host and device: what the time of a window depended on."""

from collections import Counter
from dataclasses import dataclass

import numpy as np

from stepscope.analyze.timeline.attribution import attribute
from stepscope.analyze.timeline.categories import event_categories
from stepscope.analyze.timeline.critical_labels import add_up
from stepscope.analyze.timeline.critical_segments import Segments, path_segments
from stepscope.analyze.timeline.steps import Step
from stepscope.record.timeline import Column, Timeline

_TOP = 20


@dataclass(frozen=True, slots=True)
class PathShare:
    """One category's part of the path."""

    category: str
    side: str  # "device", "host", or "between" them
    ns: int
    share: float


@dataclass(frozen=True, slots=True)
class PathEntry:
    """All pieces of the path with one name: of a kernel, operator, Python function, call or,
    where nothing was recorded, a thread."""

    name: str
    category: str
    side: str
    ns: int
    share: float
    count: int


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """device_ns + host_ns + between_ns = total_ns = end_ns - start_ns, to the nanosecond."""

    start_ns: int
    end_ns: int
    total_ns: int
    device_ns: int
    host_ns: int
    between_ns: int  # launch latency, and pauses of the device between two pieces of work
    by_category: list[PathShare]  # largest first
    top: list[PathEntry]  # largest first
    segments: int


def path_window(
    timeline: Timeline, steps: list[Step], most_events: int = 500_000
) -> tuple[int, int]:
    """From a step's start until all that it and the steps after it launched is done.

    From the first step, or in a long recording as many of the last steps as hold so many host
    events: in a steady program they tell the same.
    """
    starts = np.array([step.start_ns for step in steps], np.int64)
    end = steps[-1].end_ns
    before = np.searchsorted(timeline.host.start, np.append(starts, end))
    few = np.flatnonzero(before[-1] - before[:-1] <= most_events)
    start = int(starts[few[0]] if len(few) else starts[-1])
    device, host = timeline.device, timeline.host
    launched = np.flatnonzero(device.launch >= 0)
    begun = host.start[device.launch[launched]]
    ours = launched[(begun >= start) & (begun < end)]
    done = device.start[ours] + device.duration[ours]
    return start, int(done.max(initial=end))


def critical_path(
    timeline: Timeline, start_ns: int, end_ns: int, categories: Column | None = None
) -> CriticalPath | None:
    """The path through a window, by category and by name; None for a window without length.

    `categories` are those of the device events, where they are at hand already.
    """
    if end_ns <= start_ns:
        return None
    if categories is None:
        categories = event_categories(timeline, attribute(timeline))
    return summarise(timeline, path_segments(timeline, start_ns, end_ns), categories)


def summarise(timeline: Timeline, path: Segments, categories: Column) -> CriticalPath:
    """The segments of a path added up."""
    start, end = int(path.start[0]), int(path.end[-1])
    total = end - start
    groups = add_up(timeline, path, categories)
    sides: Counter[str] = Counter()
    kinds: Counter[tuple[str, str]] = Counter()
    for (side, category, _), (ns, _) in groups.items():
        sides[side] += ns
        kinds[category, side] += ns
    largest = sorted(groups.items(), key=lambda item: -item[1][0])[:_TOP]
    return CriticalPath(
        start_ns=start,
        end_ns=end,
        total_ns=total,
        device_ns=sides["device"],
        host_ns=sides["host"],
        between_ns=sides["between"],
        by_category=[PathShare(c, s, ns, ns / total) for (c, s), ns in kinds.most_common()],
        top=[
            PathEntry(name, category, side, ns, ns / total, count)
            for (side, category, name), (ns, count) in largest
        ],
        segments=len(path),
    )
