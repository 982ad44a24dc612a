"""Walking the critical path back from its end: at each time exactly one thing is on it."""

from dataclasses import dataclass, field

from stepscope.analyze.timeline.critical_device import DeviceOrder
from stepscope.analyze.timeline.critical_waits import Waits
from stepscope.record.timeline import NOTHING, Timeline


@dataclass(slots=True)
class Runs:
    """Stretches of the path, latest first; together they tile the window."""

    host: list[tuple[int, int, int]] = field(default_factory=list)  # thread, start, end
    device: list[tuple[int, int, int]] = field(default_factory=list)  # first, last, end
    launch: list[tuple[int, int, int]] = field(default_factory=list)  # device event, start, end
    between: list[tuple[int, int, int]] = field(default_factory=list)  # the same
    unknown: list[tuple[int, int]] = field(default_factory=list)  # start, end


class Walk:
    """One walk; time only ever goes back, in jumps from one wait to the one before."""

    def __init__(self, timeline: Timeline, order: DeviceOrder, waits: Waits, start_ns: int) -> None:
        self.timeline, self.order, self.waits, self.start = timeline, order, waits, start_ns
        self.runs = Runs()

    def back_from(self, end_ns: int) -> Runs:
        """The whole path that ends at a time."""
        now, work, thread = end_ns, self.order.running_at(end_ns), self.waits.main
        while now > self.start:
            if work >= 0:
                now, work, thread = self._device(now, work)
            elif thread >= 0:
                now, work, thread = self._host(now, thread)
            else:
                self.runs.unknown.append((self.start, now))
                break
        return self.runs

    def _device(self, now: int, work: int) -> tuple[int, int, int]:
        """Back along a stream to the work that did not wait for its predecessor."""
        order, timeline = self.order, self.timeline
        first = int(order.breaks[order.breaks.searchsorted(work, "right") - 1])
        self.runs.device.append((first, work, now))
        now, awaited = int(order.start[first]), int(order.awaited[first])
        index = order.index[first]
        launch = int(timeline.device.launch[index])
        if now <= self.start or (awaited < 0 and launch < 0):
            return now, NOTHING, self.waits.main
        thread = NOTHING if launch < 0 else int(timeline.host.thread[launch])
        cause = int(order.end[awaited] if awaited >= 0 else order.launched[first])
        if cause < now:
            pauses = self.runs.between if awaited >= 0 else self.runs.launch
            pauses.append((int(index), max(cause, self.start), now))
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
            self.runs.host.append((thread, until, now))
        return until, work, following

    def _called(self, now: int, thread: int) -> tuple[int, int]:
        """When the path came to this thread from another, and from which."""
        main = self.waits.main
        if thread != main:
            return self._began(now, thread), main
        best = (self.start, main)
        for servant, spans in self.waits.handovers.items():
            found = int(spans.start.searchsorted(now, "left")) - 1
            if found >= 0 and min(spans.end[found], now) > best[0]:
                best = min(int(spans.end[found]), now), servant
        return best

    def _began(self, now: int, thread: int) -> int:
        """When a thread other than the main one was set to the work it did at this time."""
        served = self.waits.handovers.get(thread)
        if served is not None:
            found = int(served.start.searchsorted(now, "right")) - 1
            if found >= 0 and now <= served.end[found]:
                return int(served.start[found])
        work = self.waits.work.spans(thread)
        found = int(work.start.searchsorted(now, "right")) - 1
        return int(work.start[found]) if found >= 0 else now
