"""The host chain: threads that take turns, as one row of stretches with the gaps between events."""

from dataclasses import dataclass

import numpy as np

from stepscope.analyze.timeline.critical_device import device_order
from stepscope.analyze.timeline.critical_waits import find_waits
from stepscope.analyze.timeline.intervals import Spans
from stepscope.analyze.timeline.stretches import stretches, within
from stepscope.analyze.timeline.threads import ByThread
from stepscope.record.timeline import NOTHING, Column, Timeline


@dataclass(frozen=True, slots=True)
class Chain:
    """Stretches in order; each begins where the one before it ends."""

    start: Column
    end: Column
    owner: Column  # the innermost host event, NOTHING between events
    thread: Column
    main: int

    def __len__(self) -> int:
        return len(self.start)

    @property
    def duration(self) -> Column:
        return self.end - self.start

    def at(self, times: Column) -> Column:
        """The stretch that each time lies in."""
        found: Column = np.searchsorted(self.start, times, "right") - 1
        return np.clip(found, 0, max(len(self) - 1, 0))

    def cut(self, times: Column) -> "Chain":
        """The same chain with stretches that begin at these times too."""
        times = np.unique(times[(times > self.start[0]) & (times < self.end[-1])])
        start = np.union1d(self.start, times)
        row = self.at(start)
        end = np.append(start[1:], self.end[-1])
        return Chain(start, end, self.owner[row], self.thread[row], self.main)


def host_chain(timeline: Timeline, start_ns: int, end_ns: int) -> Chain | None:
    """What drove the program between two times: the main thread, and while it stood still the
    thread that worked for it (autograd's). None where no host event was recorded.
    """
    waits = find_waits(timeline, device_order(timeline, start_ns, end_ns))
    if waits.main == NOTHING:
        return None
    turns = _turns(waits.main, waits.handovers, start_ns, end_ns)
    events, parts = ByThread(timeline), []
    for thread in sorted({thread for _, _, thread in turns}):
        own = np.array([(begin, end) for begin, end, t in turns if t == thread], np.int64)
        whole = stretches(timeline.host, events.rows(thread), int(own[0, 0]), int(own[-1, 1]))
        begin, end, owner = within(whole, own[:, 0], own[:, 1])
        parts.append((begin, end, owner, np.full(len(begin), thread)))
    starts, ends, owners, threads = (np.concatenate(part) for part in zip(*parts, strict=True))
    order = np.argsort(starts, kind="stable")
    return Chain(starts[order], ends[order], owners[order], threads[order], waits.main)


def _turns(
    main: int, handovers: dict[int, Spans], start_ns: int, end_ns: int
) -> list[tuple[int, int, int]]:
    """(start, end, thread) that tile the time; of several at work the first to begin has it."""
    spans = [
        (max(begin, start_ns), min(end, end_ns), thread)
        for thread, own in handovers.items()
        for begin, end in zip(own.start.tolist(), own.end.tolist(), strict=True)
    ]
    turns: list[tuple[int, int, int]] = []
    now = start_ns
    for begin, end, thread in sorted(spans):
        begin = max(begin, now)
        if end <= begin:
            continue
        if begin > now:
            turns.append((now, begin, main))
        turns.append((begin, end, thread))
        now = end
    if now < end_ns:
        turns.append((now, end_ns, main))
    return turns
