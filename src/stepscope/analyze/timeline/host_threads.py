"""Host threads: their events, what each was doing at a time, and where in the program."""

from typing import NamedTuple

import numpy as np

from stepscope.analyze.timeline.attribution import nearest
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

_OTHERWISE = (HostKind.PYTHON, HostKind.ANNOTATION, HostKind.RUNTIME)
_USUAL_DEPTH = 32  # more than a program's events nest in that end before the one around them
_FEW = 64  # events to climb out of at once: fewer go one by one, as an array of them costs as much


class CodePlaces(NamedTuple):
    """Names as indices into Timeline.names, NOTHING where there is none."""

    where: Column  # user's own frame, else outermost operator, frame, annotation, runtime call
    operator: Column  # the innermost operator


def innermost_at(timeline: Timeline, thread: Column, time: Column) -> Column:
    """The innermost host event open on each thread at each time, NOTHING where none is."""
    host = timeline.host
    found = np.full(len(time), NOTHING, np.int64)
    order = np.argsort(thread, kind="stable")
    for one, own in slices_by_value(thread[order]):
        asked = order[own]
        rows = _without_overhead(timeline).rows(one)
        at = np.searchsorted(host.start[rows], time[asked], side="right") - 1
        found[asked] = np.append(rows, NOTHING)[at]
        # Climb out of what has ended.
        for _ in range(_USUAL_DEPTH):
            asked = asked[found[asked] >= 0]
            event = found[asked]
            over = host.start[event] + host.duration[event] <= time[asked]
            asked = asked[over]
            if not len(asked):
                break
            found[asked] = host.parent[event[over]]
        else:  # linear in the thread's events, however deep they nest
            starts, _, owners = cut_stretches(
                host, rows, int(time[asked].min()), int(time[asked].max()) + 1
            )
            by_time = np.argsort(starts, kind="stable")
            at = np.searchsorted(starts[by_time], time[asked], side="right") - 1
            found[asked] = owners[by_time[at]]
    return found


@once_per_timeline
def _without_overhead(timeline: Timeline) -> "ByThread":
    return ByThread(timeline, timeline.host.kind != HostKind.OVERHEAD)


def code_places(timeline: Timeline, events: Column) -> CodePlaces:
    """Where in the program host events are, from themselves and those around them."""
    places = _all_places(timeline)
    return CodePlaces(places.where[events], places.operator[events])


@once_per_timeline
def _all_places(timeline: Timeline) -> CodePlaces:
    """Of every host event, and at the end of none."""
    host = timeline.host

    def innermost(marked: Column) -> Column:
        return timeline.host_names(nearest(host.parent, marked)).astype(np.int64)

    operators = host.kind == HostKind.OPERATOR
    outermost = operators & (nearest(host.parent, operators)[host.parent] == NOTHING)
    where = innermost(user_frames(timeline))
    for marked in (outermost, *(host.kind == kind for kind in _OTHERWISE)):
        where = np.where(where >= 0, where, innermost(marked))
    return CodePlaces(where, innermost(operators))


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
        self._spans: dict[int, Spans] = {}

    def rows(self, thread: int) -> Column:
        """The events of one thread."""
        return self._rows[self._bounds[thread] : self._bounds[thread + 1]]

    def spans(self, thread: int) -> Spans:
        """When any of them was open."""
        if thread not in self._spans:
            rows = self.rows(thread)
            start = self._host.start[rows]
            self._spans[thread] = merge(start, start + self._host.duration[rows])
        return self._spans[thread]


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
    while len(owner) > _FEW:
        around = np.where(owner >= 0, host.start[owner] + host.duration[owner], limit)
        stop = np.maximum(np.minimum(around, limit), cursor)
        pieces.append((cursor, stop, owner))
        on = (stop < limit) & (owner >= 0)
        cursor, limit, owner = stop[on], limit[on], host.parent[owner[on]]
    pieces.append(_climbed(host, cursor, limit, owner))
    starts, ends, owners = (np.concatenate(part) for part in zip(*pieces, strict=True))
    starts, ends = np.maximum(starts, start_ns), np.minimum(ends, end_ns)
    real = ends > starts
    return starts[real], ends[real], owners[real]


def _climbed(host: HostEvents, cursor: Column, limit: Column, owner: Column) -> Stretches:
    """The stretches from each cursor up to its limit, climbing out of what has ended."""
    made: list[tuple[int, int, int]] = []
    for at, until, event in zip(cursor.tolist(), limit.tolist(), owner.tolist(), strict=True):
        while event >= 0 and at < until:
            stop = max(min(host.start.item(event) + host.duration.item(event), until), at)
            made.append((at, stop, event))
            at, event = stop, host.parent.item(event)
        made.append((at, until, NOTHING))
    starts, ends, owners = np.array(made, np.int64).reshape(-1, 3).T
    return starts, ends, owners


def stretches_within(pieces: Stretches, starts: Column, ends: Column) -> Stretches:
    """The parts of stretches inside some disjoint intervals, which are in order of time."""
    begin, end, owner = pieces
    first = np.searchsorted(ends, begin, "right")
    count = np.maximum(np.searchsorted(starts, end, "left") - first, 0)
    row = np.repeat(np.arange(len(begin)), count)
    nth = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
    at = first[row] + nth
    return np.maximum(begin[row], starts[at]), np.minimum(end[row], ends[at]), owner[row]
