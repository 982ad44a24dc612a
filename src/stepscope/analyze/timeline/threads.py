"""Host events thread by thread: one sort, then slices, however many threads there are."""

import numpy as np

from stepscope.analyze.timeline.hostat import main_thread
from stepscope.analyze.timeline.intervals import Spans, merge
from stepscope.analyze.timeline.namematch import names_that
from stepscope.record.timeline import NOTHING, Column, HostEvents, HostKind, Timeline


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


def groups(ordered: Column) -> list[tuple[int, slice]]:
    """The values of a column in ascending order, and where each stands."""
    values, first = np.unique(ordered, return_index=True)
    last = np.append(first, len(ordered))[1:]
    return list(zip(values.tolist(), map(slice, first, last), strict=True))


def works(timeline: Timeline) -> Column:
    """Which host events are work that was recorded: operators, runtime calls, communication.

    A Python function or an annotation may just as well wait inside.
    """
    kind = timeline.host.kind
    work: Column = (kind == HostKind.OPERATOR) | (kind == HostKind.RUNTIME) | gloo(timeline)
    return work


def gloo(timeline: Timeline) -> Column:
    """Which host events are communication that a host thread carries out."""
    return names_that(timeline, timeline.host.name, lambda name: name.startswith("gloo:"))


def busiest(timeline: Timeline, chosen: Column, most: int) -> list[int]:
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
    operators = np.bincount(
        host.thread[host.kind == HostKind.OPERATOR], minlength=len(timeline.threads)
    )
    others = np.where(backward, 0, operators)
    return main if marks.any() or not others.any() else int(np.argmax(others))


def backward_threads(timeline: Timeline) -> Column:
    """For each thread, whether autograd's engine ran nodes there."""
    host = timeline.host
    nodes = names_that(timeline, host.name, lambda n: n.startswith("autograd::engine::evaluate"))
    return np.bincount(host.thread[nodes], minlength=len(timeline.threads)) > 0
