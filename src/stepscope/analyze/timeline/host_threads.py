"""Host threads: their events, what each was doing at a time, and where in the program."""

from typing import NamedTuple

import numpy as np

from stepscope.analyze.timeline.intervals import Spans, merge
from stepscope.analyze.timeline.names import starts_with, user_frames
from stepscope.record.timeline import (
    NOTHING,
    Column,
    HostEvents,
    HostKind,
    Timeline,
    once_per_timeline,
)


class CodePlaces(NamedTuple):
    """Names as indices into Timeline.names, NOTHING where there is none."""

    where: Column  # user's own frame, else outermost operator, frame, annotation, runtime call
    operator: Column  # the innermost operator


def innermost_at(timeline: Timeline, thread: Column, time: Column) -> Column:
    """The innermost host event open on each thread at each time, NOTHING where none is."""
    host = timeline.host
    found = np.full(len(time), NOTHING, np.int64)
    kept = host.kind != HostKind.OVERHEAD
    for one in np.unique(thread).tolist():
        own, asked = np.flatnonzero((host.thread == one) & kept), np.flatnonzero(thread == one)
        before = np.searchsorted(host.start[own], time[asked], side="right") - 1
        asked, before = asked[before >= 0], before[before >= 0]
        found[asked] = own[before]
    left = np.flatnonzero(found >= 0)
    while len(left):  # as often as events are nested
        event = found[left]
        left = left[host.start[event] + host.duration[event] <= time[left]]
        found[left] = host.parent[found[left]]
        left = left[found[left] >= 0]
    return found


def code_places(timeline: Timeline, events: Column) -> CodePlaces:
    """Where in the program host events are, from themselves and those around them."""
    host, user = timeline.host, user_frames(timeline)
    some, back = np.unique(events, return_inverse=True)
    firsts = {k: np.full(len(some), NOTHING, np.int64) for k in ("own", *HostKind)}
    outermost = np.full(len(some), NOTHING, np.int64)
    row = np.flatnonzero(some >= 0)
    event = some[row]
    while len(row):
        kind, name = host.kind[event], host.name[event].astype(np.int64)
        for key, first in firsts.items():
            new = (user[event] if key == "own" else kind == key) & (first[row] < 0)
            first[row[new]] = name[new]
        operator = kind == HostKind.OPERATOR
        outermost[row[operator]] = name[operator]
        event = host.parent[event]
        row, event = row[event >= 0], event[event >= 0]
    where = np.where(firsts["own"] >= 0, firsts["own"], outermost)
    for kind in (HostKind.PYTHON, HostKind.ANNOTATION, HostKind.RUNTIME):
        where = np.where(where >= 0, where, firsts[kind])
    return CodePlaces(where[back], firsts[HostKind.OPERATOR][back])


@once_per_timeline
def main_thread(timeline: Timeline) -> int:
    """The thread that drives the program: of the step marks, else of the most launches.

    NOTHING where no host event was recorded.
    """
    host = timeline.host
    marks = np.flatnonzero(host.kind == HostKind.ANNOTATION)
    marks = marks[starts_with(timeline, "ProfilerStep", "Optimizer.")[marks]]
    launches = timeline.device.launch[timeline.device.launch >= 0]
    for events in (marks, launches, np.arange(len(host))):
        if len(events):
            return int(np.bincount(host.thread[events]).argmax())
    return NOTHING


class ByThread:
    """Some host events, as indices in order of start, by thread."""

    def __init__(self, timeline: Timeline, chosen: Column | None = None) -> None:
        host = self._host = timeline.host
        rows = np.arange(len(host)) if chosen is None else np.flatnonzero(chosen)
        size = len(timeline.threads)
        thread = host.thread[rows].astype(np.uint16 if size < 1 << 16 else np.int32)
        self._rows = rows[np.argsort(thread, kind="stable")]
        self._bounds = np.append(0, np.cumsum(np.bincount(thread, minlength=size)))

    def rows(self, thread: int) -> Column:
        """The events of one thread."""
        return self._rows[self._bounds[thread] : self._bounds[thread + 1]]

    def spans(self, thread: int) -> Spans:
        """When any of them was open."""
        rows = self.rows(thread)
        return merge(self._host.start[rows], self._host.start[rows] + self._host.duration[rows])


def slices_by_value(ordered: Column) -> list[tuple[int, slice]]:
    """The values of a column in ascending order, and where each stands."""
    values, first = np.unique(ordered, return_index=True)
    last = np.append(first, len(ordered))[1:]
    return list(zip(values.tolist(), map(slice, first, last), strict=True))


def is_work(timeline: Timeline) -> Column:
    """Which host events are work that was recorded: operators, runtime calls, communication.

    A Python function or an annotation may just as well wait inside.
    """
    kind = timeline.host.kind
    work: Column = (kind == HostKind.OPERATOR) | (kind == HostKind.RUNTIME) | is_gloo(timeline)
    return work


@once_per_timeline
def is_gloo(timeline: Timeline) -> Column:
    """Which host events are communication that a host thread carries out."""
    return starts_with(timeline, "gloo:")


def busiest_threads(timeline: Timeline, chosen: Column, most: int) -> list[int]:
    """The threads with the most of some host events, at most so many, none without any."""
    counts = np.bincount(timeline.host.thread[chosen], minlength=len(timeline.threads))
    order = np.argsort(-counts, kind="stable")[:most]
    return [thread for thread in order.tolist() if counts[thread]]


def self_time(host: HostEvents) -> Column:
    """Nanoseconds of each host event that no event inside it accounts for, never below 0."""
    inner = np.flatnonzero(host.parent >= 0)
    inside = np.bincount(host.parent[inner], host.duration[inner], minlength=len(host))
    own: Column = np.maximum(host.duration - inside.astype(np.int64), 0)
    return own


def calling_thread(timeline: Timeline) -> int:
    """The main thread; where that is one of autograd's and marks no steps, the busiest other one.

    NOTHING when nothing was recorded on the host.
    """
    host, main, backward = timeline.host, main_thread(timeline), backward_threads(timeline)
    if main == NOTHING or not backward[main]:
        return main
    marks = (host.kind == HostKind.ANNOTATION) & (host.thread == main)
    operating = host.thread[host.kind == HostKind.OPERATOR]
    others = np.where(backward, 0, np.bincount(operating, minlength=len(timeline.threads)))
    return main if marks.any() or not others.any() else int(np.argmax(others))


def backward_threads(timeline: Timeline) -> Column:
    """For each thread, whether autograd's engine ran nodes there."""
    host = timeline.host
    nodes = starts_with(timeline, "autograd::engine::evaluate")
    return np.bincount(host.thread[nodes], minlength=len(timeline.threads)) > 0


Stretches = tuple[Column, Column, Column]
"""Starts, ends and owners (into the host events, NOTHING between events)."""


def cut_stretches(host: HostEvents, rows: Column, start_ns: int, end_ns: int) -> Stretches:
    """One thread (its host events) between two times, cut wherever the innermost event changes.

    In no order; together they tile the time exactly. Where events overlap without nesting, the
    later to start owns the rest.
    """
    begin, end = host.start[rows], host.start[rows] + host.duration[rows]
    inside = (begin < end_ns) & (end > start_ns)
    rows, begin, end = rows[inside], begin[inside], end[inside]
    following = np.append(begin, end_ns)[1:]
    head = np.full(1, start_ns), np.append(begin, end_ns)[:1], np.full(1, NOTHING)
    pieces = [head, (begin, np.minimum(end, following), rows)]
    left = np.flatnonzero(end < following)
    cursor, limit, owner = end[left], following[left], host.parent[rows[left]]
    # Climb out of what has ended: each event is left once, so the work is linear.
    while len(owner):
        around = np.where(owner >= 0, host.start[owner] + host.duration[owner], limit)
        stop = np.maximum(np.minimum(around, limit), cursor)
        pieces.append((cursor, stop, owner))
        on = (stop < limit) & (owner >= 0)
        cursor, limit, owner = stop[on], limit[on], host.parent[owner[on]]
    starts, ends, owners = (np.concatenate(part) for part in zip(*pieces, strict=True))
    starts, ends = np.maximum(starts, start_ns), np.minimum(ends, end_ns)
    real = ends > starts
    return starts[real], ends[real], owners[real]


def stretches_within(pieces: Stretches, starts: Column, ends: Column) -> Stretches:
    """The parts of stretches inside some disjoint intervals, which are in order of time."""
    begin, end, owner = pieces
    first = np.searchsorted(ends, begin, "right")
    count = np.maximum(np.searchsorted(starts, end, "left") - first, 0)
    row = np.repeat(np.arange(len(begin)), count)
    nth = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
    at = first[row] + nth
    return np.maximum(begin[row], starts[at]), np.minimum(end[row], ends[at]), owner[row]
