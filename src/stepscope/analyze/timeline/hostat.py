"""What a host thread was doing at a time, and where in the program that is."""

from functools import cache
from typing import NamedTuple

import numpy as np

from stepscope.analyze.timeline.namematch import names_that
from stepscope.analyze.timeline.userframes import is_users_frame
from stepscope.record.timeline import NOTHING, Column, HostKind, Timeline


class At(NamedTuple):
    """Names as indices into Timeline.names, NOTHING where there is none."""

    where: Column  # user's own frame, else outermost operator, frame, annotation, runtime call
    operator: Column  # the innermost operator


def innermost(timeline: Timeline, thread: Column, time: Column) -> Column:
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


def places(timeline: Timeline, events: Column) -> At:
    """Where in the program host events are, from themselves and those around them."""
    host, is_own = timeline.host, cache(is_users_frame)
    some, back = np.unique(events, return_inverse=True)
    firsts = {k: np.full(len(some), NOTHING, np.int64) for k in ("own", *HostKind)}
    outermost = np.full(len(some), NOTHING, np.int64)
    row = np.flatnonzero(some >= 0)
    event = some[row]
    while len(row):
        kind, name = host.kind[event], host.name[event].astype(np.int64)
        own = (kind == HostKind.PYTHON) & names_that(timeline, name, is_own)
        for key, first in firsts.items():
            new = (own if key == "own" else kind == key) & (first[row] < 0)
            first[row[new]] = name[new]
        operator = kind == HostKind.OPERATOR
        outermost[row[operator]] = name[operator]
        event = host.parent[event]
        row, event = row[event >= 0], event[event >= 0]
    where = np.where(firsts["own"] >= 0, firsts["own"], outermost)
    for kind in (HostKind.PYTHON, HostKind.ANNOTATION, HostKind.RUNTIME):
        where = np.where(where >= 0, where, firsts[kind])
    return At(where[back], firsts[HostKind.OPERATOR][back])


def main_thread(timeline: Timeline) -> int:
    """The thread that drives the program: of the step marks, else of the most launches.

    NOTHING where no host event was recorded.
    """
    host = timeline.host
    marks = np.flatnonzero(host.kind == HostKind.ANNOTATION)
    steps = ("ProfilerStep", "Optimizer.")
    marks = marks[names_that(timeline, host.name[marks], lambda name: name.startswith(steps))]
    launches = timeline.device.launch[timeline.device.launch >= 0]
    for events in (marks, launches, np.arange(len(host))):
        if len(events):
            return int(np.bincount(host.thread[events]).argmax())
    return NOTHING
