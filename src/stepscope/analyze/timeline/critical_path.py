"""The critical path through host and device: what a window's time depended on.

The path is walked back from its end; at each time exactly one thing is on it, so its segments
tile the window. Each gets a side, a category and a name.
"""

import re
from collections import Counter
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np
from msgspec import Struct

from stepscope.analyze.timeline.attribution import CATEGORIES, event_categories
from stepscope.analyze.timeline.dependencies import (
    DeviceOrder,
    ThreadWaits,
    device_order,
    find_thread_waits,
)
from stepscope.analyze.timeline.host_threads import (
    ByThread,
    busiest_threads,
    cut_stretches,
    is_gloo,
    slices_by_value,
    stretches_within,
)
from stepscope.analyze.timeline.intervals import holder
from stepscope.analyze.timeline.names import blocking_calls, names_match
from stepscope.analyze.timeline.steps import RecordedStep
from stepscope.record.timeline import NOTHING, Column, Timeline, distinct_rows


class SegmentKind(IntEnum):
    """What the path runs over."""

    DEVICE = 0  # kernels, copies, sets
    LAUNCH = 1  # from the end of the launching call to the start on the device
    BETWEEN = 2  # from the end of the work waited for to the start on the device
    HOST = 3
    UNKNOWN = 4


_PathRuns = dict[SegmentKind, list[tuple[int, int, int]]]
"""Stretches of the path, latest first; together they tile the window. Of HOST a thread, start and
end; of DEVICE the first and last work of a stream, and its end; else a device event, start, end."""


class _PathWalk:
    """One walk; time only ever goes back, in jumps from one wait to the one before."""

    def __init__(
        self, timeline: Timeline, order: DeviceOrder, waits: ThreadWaits, start_ns: int
    ) -> None:
        self.timeline, self.order, self.waits, self.start = timeline, order, waits, start_ns
        self.runs: _PathRuns = {kind: [] for kind in SegmentKind}

    def walk_back_from(self, end_ns: int) -> _PathRuns:
        """The whole path that ends at a time."""
        now, work, thread = end_ns, self.order.running_at(end_ns), self.waits.main
        while now > self.start:
            if work >= 0:
                now, work, thread = self._device(now, work)
            elif thread >= 0:
                now, work, thread = self._host(now, thread)
            else:
                self.runs[SegmentKind.UNKNOWN].append((NOTHING, self.start, now))
                break
        return self.runs

    def _device(self, now: int, work: int) -> tuple[int, int, int]:
        """Back along a stream to the work that did not wait for its predecessor."""
        order, timeline = self.order, self.timeline
        first = int(order.breaks[order.breaks.searchsorted(work, "right") - 1])
        self.runs[SegmentKind.DEVICE].append((first, work, now))
        now, awaited = int(order.start[first]), int(order.awaited[first])
        index = order.index[first]
        launch = int(timeline.device.launch[index])
        if now <= self.start or (awaited < 0 and launch < 0):
            return now, NOTHING, self.waits.main
        thread = NOTHING if launch < 0 else int(timeline.host.thread[launch])
        cause = int(order.end[awaited] if awaited >= 0 else order.launched[first])
        if cause < now:
            pause = SegmentKind.BETWEEN if awaited >= 0 else SegmentKind.LAUNCH
            self.runs[pause].append((int(index), max(cause, self.start), now))
        return cause, awaited, thread

    def _host(self, now: int, thread: int) -> tuple[int, int, int]:
        """Back along a thread to where it last waited for the device or for another thread."""
        until, work, following = self.start, NOTHING, thread
        if thread in self.waits.releases:
            times, ended = self.waits.releases[thread]
            found = int(times.searchsorted(now, "right")) - 1
            if found >= 0 and times[found] > until:
                until, work = int(times[found]), int(ended[found])
        called, caller = self._called(now, thread)
        if called > until:
            until, work, following = called, NOTHING, caller
        if until < now:
            self.runs[SegmentKind.HOST].append((thread, until, now))
        return until, work, following

    def _called(self, now: int, thread: int) -> tuple[int, int]:
        """When the path came to this thread from another, and from which."""
        main = self.waits.main
        if thread != main:
            if served := self.waits.handovers.get(thread):
                found = int(served.start.searchsorted(now, "right")) - 1
                if found >= 0 and now <= served.end[found]:
                    return int(served.start[found]), main
            work = self.waits.work.spans(thread)
            found = int(work.start.searchsorted(now, "right")) - 1
            return int(work.start[found]) if found >= 0 else now, main
        best = (self.start, main)
        for helper, spans in self.waits.handovers.items():
            found = int(spans.start.searchsorted(now, "left")) - 1
            if found >= 0 and min(spans.end[found], now) > best[0]:
                best = min(int(spans.end[found]), now), helper
        return best


@dataclass(frozen=True, slots=True)
class _Segments:
    """Each begins where the one before it ends."""

    start: Column
    end: Column
    on: Column  # uint8, SegmentKind
    event: Column  # into the device events, of HOST into the host's; NOTHING
    thread: Column  # of HOST segments, else NOTHING

    def __len__(self) -> int:
        return len(self.start)


def path_segments(timeline: Timeline, start_ns: int, end_ns: int) -> _Segments:
    """The critical path through a window, walked back from its end."""
    order = device_order(timeline, start_ns, end_ns)
    waits = find_thread_waits(timeline, order)
    runs = _PathWalk(timeline, order, waits, start_ns).walk_back_from(end_ns)
    parts = _device_parts(order, runs, start_ns)
    every = np.array(runs[SegmentKind.HOST][::-1], np.int64).reshape(-1, 3)
    every, events = every[np.argsort(every[:, 0], kind="stable")], ByThread(timeline)
    for thread, own in slices_by_value(every[:, 0]):
        _, begin, end = every[own].T
        whole = cut_stretches(timeline.host, events.rows(thread), int(begin[0]), int(end[-1]))
        starts, ends, owners = stretches_within(whole, begin, end)
        parts.append(_part(starts, ends, SegmentKind.HOST, owners, thread))
    for on in (SegmentKind.LAUNCH, SegmentKind.BETWEEN, SegmentKind.UNKNOWN):
        event, begin, end = np.array(runs[on], np.int64).reshape(-1, 3).T
        parts.append(_part(begin, end, on, event))
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    by_time = np.argsort(columns[0], kind="stable")
    return _Segments(*(column[by_time] for column in columns))


def _device_parts(order: DeviceOrder, runs: _PathRuns, start_ns: int) -> list[tuple[Column, ...]]:
    """The work of each run along a stream, and the pauses between."""
    first, last, until = np.array(runs[SegmentKind.DEVICE], np.int64).reshape(-1, 3).T
    sizes = last - first + 1
    row = np.repeat(first - (np.cumsum(sizes) - sizes), sizes) + np.arange(int(sizes.sum()))
    tail = np.cumsum(sizes) - 1
    following = order.start[np.minimum(row + 1, len(order.start) - 1)]
    following[tail] = until
    begin, end = order.start[row], np.minimum(order.end[row], following)
    event = order.index[row]
    after = np.append(event[1:], NOTHING)[: len(row)]
    return [
        _part(np.maximum(begin, start_ns), end, SegmentKind.DEVICE, event),
        _part(np.maximum(end, start_ns), following, SegmentKind.BETWEEN, after),
    ]


def _part(
    start: Column, end: Column, on: SegmentKind, event: Column, thread: int = NOTHING
) -> tuple[Column, ...]:
    """Columns of `_Segments`; stretches without length are left out."""
    real = end > start
    start, end, event = start[real], end[real], event[real].astype(np.int32)
    size = len(start)
    return start, end, np.full(size, on, np.uint8), event, np.full(size, thread, np.int32)


SIDES: Final = ("device", "between", "host")
LABELS: Final = (
    *CATEGORIES,
    *("operator", "python", "runtime call", "synchronisation", "data loading", "profiler"),
    *("unrecorded", "launch latency", "between kernels"),
)
_SIDE_OF: Final = (0, 1, 1, 2, 2)  # by SegmentKind, into SIDES
_KINDS: Final = ("operator", "python", "python", "runtime call", "profiler")  # by HostKind
_LOADS: Final = re.compile(r"^enumerate\(DataLoader\)|(^|/)torch/utils/data/")
_MOST_LOADER_THREADS: Final = 64  # threads
_CHANGING: Final = re.compile(r" at 0x[0-9a-fA-F]+|#\d+$")  # an object's address, a step's number


def _label(timeline: Timeline, path: _Segments) -> Column:
    """Into LABELS."""
    label = np.full(len(path), LABELS.index("unrecorded"), np.int64)
    device = path.on == SegmentKind.DEVICE
    label[device] = event_categories(timeline)[path.event[device]]
    label[path.on == SegmentKind.LAUNCH] = LABELS.index("launch latency")
    label[path.on == SegmentKind.BETWEEN] = LABELS.index("between kernels")
    on_host = np.flatnonzero((path.on == SegmentKind.HOST) & (path.event != NOTHING))
    event = path.event[on_host]
    host = timeline.host
    label[on_host] = np.array([LABELS.index(kind) for kind in _KINDS])[host.kind[event]]
    label[on_host[is_gloo(timeline)[event]]] = LABELS.index("communication")
    blocks = np.isin(event, blocking_calls(timeline).events)
    label[on_host[blocks]] = LABELS.index("synchronisation")
    loads = names_match(timeline, host.name, _LOADS.search)
    loading = ByThread(timeline, loads)
    for thread in busiest_threads(timeline, loads, _MOST_LOADER_THREADS):
        inside = (path.thread == thread) & (holder(loading.spans(thread), path.start) >= 0)
        label[inside] = LABELS.index("data loading")
    return label


def _name(timeline: Timeline, path: _Segments) -> Column:
    """Into the names, then the threads for what is not recorded there, then nothing."""
    names, threads = len(timeline.names), len(timeline.threads)
    name = np.full(len(path), names + threads, np.int64)
    unnamed = (path.on == SegmentKind.HOST) & (path.event == NOTHING)
    name[unnamed] = names + path.thread[unnamed]
    for on, table in ((SegmentKind.DEVICE, timeline.device), (SegmentKind.HOST, timeline.host)):
        rows = np.flatnonzero((path.on == on) & (path.event != NOTHING))
        named = table.name[path.event[rows]]
        name[rows[named >= 0]] = named[named >= 0]
    return name


def _text(timeline: Timeline, name: int) -> str:
    if name < len(timeline.names):
        return _CHANGING.sub("", timeline.names[name])
    thread = name - len(timeline.names)
    if thread == len(timeline.threads):
        return ""
    return timeline.threads[thread].name or f"thread {timeline.threads[thread].tid}"


_TOP = 20


class PathShare(Struct, frozen=True):
    """One category's part of the path."""

    category: str
    side: str  # "device", "host", or "between" them
    ns: int
    share: float


class PathEntry(Struct, frozen=True):
    """All pieces of the path with one name: of a kernel, operator, Python function, call or,
    where nothing was recorded, a thread."""

    name: str
    category: str
    side: str
    ns: int
    share: float
    count: int


class CriticalPath(Struct, frozen=True):
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
    timeline: Timeline, steps: list[RecordedStep], most_events: int = 500_000
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
    device = timeline.device
    launched = np.flatnonzero(device.launch >= 0)
    begun = timeline.host.start[device.launch[launched]]
    ours = launched[(begun >= start) & (begun < end)]
    return start, int(device.end[ours].max(initial=end))


def critical_path(timeline: Timeline, start_ns: int, end_ns: int) -> CriticalPath | None:
    """The path through a window, by category and by name; None for a window without length."""
    if end_ns <= start_ns:
        return None
    path = path_segments(timeline, start_ns, end_ns)
    start, end = int(path.start[0]), int(path.end[-1])
    total = end - start
    columns = [np.array(_SIDE_OF, np.int64)[path.on], _label(timeline, path), _name(timeline, path)]
    rows, which = distinct_rows(columns)
    sums, counts = np.bincount(which, path.end - path.start).astype(np.int64), np.bincount(which)
    sides, kinds = Counter[str](), Counter[tuple[str, str]]()
    groups, pieces = Counter[tuple[str, str, str]](), Counter[tuple[str, str, str]]()
    for row, ns, count in zip(rows, sums.tolist(), counts.tolist(), strict=True):
        side, category = SIDES[row[0]], LABELS[row[1]]
        group = (_text(timeline, row[2]) or category, category, side)
        sides[side] += ns
        kinds[category, side] += ns
        groups[group] += ns
        pieces[group] += count
    return CriticalPath(
        start_ns=start,
        end_ns=end,
        total_ns=total,
        device_ns=sides["device"],
        host_ns=sides["host"],
        between_ns=sides["between"],
        by_category=[PathShare(c, s, ns, ns / total) for (c, s), ns in kinds.most_common()],
        top=[
            PathEntry(*group, ns, ns / total, pieces[group])
            for group, ns in groups.most_common(_TOP)
        ],
        segments=len(path),
    )
