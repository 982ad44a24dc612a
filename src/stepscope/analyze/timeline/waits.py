"""When a host thread was waiting for something other than itself, by what it waited for."""

import re

import numpy as np

from stepscope.analyze.timeline.blocking import Blocking
from stepscope.analyze.timeline.intervals import Spans, difference, merge
from stepscope.analyze.timeline.namematch import names_that
from stepscope.record.timeline import Column, HostKind, Timeline

_LOADER = re.compile(
    r"^enumerate\(DataLoader\)#|^data_wait$|(^|/)torch/utils/data/dataloader\.py\("
    r"|(^|/)(multiprocessing/queues|queue)\.py\(\d{1,9}\): get$"
)
_RANKS = re.compile(r"^(gloo|mpi):|_distributed_c10d\.Work\b.{0,40}wait|wait.{0,40}c10d\.Work\b")


class HostWaits:
    """The waits of each thread as spans: `loader`, `other_ranks`, `copy`, `synchronisation`."""

    def __init__(self, timeline: Timeline, blocking: Blocking) -> None:
        host = timeline.host
        spoken = (host.kind == HostKind.ANNOTATION) | (host.kind == HostKind.PYTHON)
        events = np.flatnonzero(spoken)
        names = host.name[events]
        self._timeline = timeline
        self._by_cause = {
            "loader": events[names_that(timeline, names, _LOADER.search)],
            "other_ranks": events[names_that(timeline, names, _RANKS.search)],
            "copy": blocking.events[blocking.uploads],
            "synchronisation": blocking.events[~blocking.uploads],
        }

    def of(self, thread: int) -> dict[str, Spans]:
        """One thread's waits; a cause takes precedence over those after it where they overlap."""
        host = self._timeline.host
        return {
            cause: self._spans(events[host.thread[events] == thread])
            for cause, events in self._by_cause.items()
        }

    def of_others(self, thread: int, main: int) -> dict[str, Spans]:
        """The main thread's waits while this thread had nothing open: it is the other's turn."""
        host = self._timeline.host
        active = self._spans((host.thread == thread) & (host.kind != HostKind.OVERHEAD))
        return {cause: difference(spans, active) for cause, spans in self.of(main).items()}

    def _spans(self, events: Column) -> Spans:
        start = self._timeline.host.start[events]
        return merge(start, start + self._timeline.host.duration[events])
