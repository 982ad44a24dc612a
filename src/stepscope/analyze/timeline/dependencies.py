"""What waited for what: device work for launches and streams, host threads for either."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from stepscope.analyze.timeline.host_threads import (
    ByThread,
    backward_threads,
    busiest_threads,
    calling_thread,
    is_gloo,
    is_work,
    slices_by_value,
)
from stepscope.analyze.timeline.intervals import Spans
from stepscope.analyze.timeline.names import blocking_calls, names_match
from stepscope.record.timeline import NOTHING, Column, DeviceKind, HostKind, Timeline

NEVER = np.iinfo(np.int64).min


@dataclass(frozen=True, slots=True)
class DeviceOrder:
    """Device work stream by stream, in order of start.

    Work without duration, or hidden under earlier work of its stream, is left out. An entry
    outside `breaks` could begin because the entry before it ended; one in `breaks` began because
    it was launched, or because entry `awaited` (-1: none) on another stream ended.
    """

    index: Column  # into the device events
    start: Column
    end: Column
    launched: Column  # when the host had launched it, never after its start; NEVER if not recorded
    breaks: Column  # positions, ascending
    awaited: Column  # positions
    by_end: Column  # positions, ordered by end

    def running_at(self, time: int) -> int:
        """Position of the work running just before a time (of several the last to end), or -1."""
        running = np.flatnonzero((self.start < time) & (self.end >= time))
        return int(running[np.argmax(self.end[running])]) if len(running) else -1


def device_order(timeline: Timeline, start_ns: int, end_ns: int) -> DeviceOrder:
    """The device work that overlaps a window, with what each piece waited for."""
    device = timeline.device
    inside = (device.start < end_ns) & (device.end > start_ns) & (device.duration > 0)
    index = np.flatnonzero(inside)
    index = index[np.argsort(device.stream[index], kind="stable")]
    index = index[_visible(device.stream[index], device.end[index])]
    stream, start, end = device.stream[index], device.start[index], device.end[index]
    returned = np.append(timeline.host.end, NEVER)[device.launch[index]]
    launched = np.minimum(returned, start)
    head = np.append(True, stream[1:] != stream[:-1])[: len(index)]
    before = np.where(head, NEVER, np.append(NEVER, end[:-1])[: len(index)])
    ready = np.maximum(before, launched)
    by_end = np.argsort(end, kind="stable")
    awaited = _awaited(timeline, index, head, ready, by_end)
    breaks = np.flatnonzero(head | (launched > before) | (awaited >= 0))
    return DeviceOrder(index, start, end, launched, breaks, awaited, by_end)


def _visible(stream: Column, end: Column) -> Column:
    """Which entries end after all that came before them on their stream."""
    keep = np.ones(len(end), bool)
    bounds = np.append(np.flatnonzero(np.diff(stream, prepend=-2)), len(end))
    for first, last in pairwise(bounds.tolist()):
        reach = np.maximum.accumulate(end[first:last])
        keep[first + 1 : last] = end[first + 1 : last] > reach[:-1]
    return keep


def _awaited(
    timeline: Timeline, index: Column, head: Column, ready: Column, by_end: Column
) -> Column:
    """The work on another stream that held an entry back (a stream waited for an event), or -1.

    Which event was waited for is seldom recorded: the last work to end before the entry began is
    taken, where the host had made some stream wait since the entry before was launched.
    """
    device, host, syncs = timeline.device, timeline.host, timeline.syncs
    awaited = np.full(len(index), -1)
    waiting = names_match(timeline, host.name, lambda name: "StreamWaitEvent" in name)
    calls = np.flatnonzero((host.kind == HostKind.RUNTIME) & waiting)
    if not len(calls) or len(timeline.streams) < 2:
        return awaited
    stream, start = device.stream[index], device.start[index]
    launch = device.launch[index]
    launched = np.where(launch >= 0, host.start[launch], start)
    since = np.where(head, NEVER, np.append(NEVER, launched[:-1]))
    devices = np.array([one.device for one in timeline.streams], np.int64)
    for number in _busiest(stream):
        own = np.flatnonzero(stream == number)
        elsewhere = syncs.correlation[(syncs.stream >= 0) & (syncs.stream != number)]
        others = np.isin(host.correlation[calls], elsewhere[elsewhere >= 0])
        times = host.start[calls[~others]]
        waited = np.searchsorted(times, launched[own]) > np.searchsorted(times, since[own])
        own = own[waited]
        is_near = devices == devices[number]
        is_near[number] = False
        others = by_end[is_near[stream[by_end]]]
        ends = device.end[index[others]]
        found = np.searchsorted(ends, start[own], "right") - 1
        own, found = own[found >= 0], found[found >= 0]
        late = ends[found] > ready[own]
        awaited[own[late]] = others[found[late]]
    return awaited


_MOST_STREAMS = 64


def _busiest(stream: Column) -> list[int]:
    """The streams that occur most often, as many as are looked at one by one, in order."""
    known, counts = np.unique(stream, return_counts=True)
    chosen: list[int] = np.sort(known[np.argsort(-counts, kind="stable")[:_MOST_STREAMS]]).tolist()
    return chosen


_MOST_HELPERS = 64


@dataclass(frozen=True, slots=True)
class ThreadWaits:
    """When each thread went on because something else had ended; times ascend."""

    main: int  # thread, NOTHING without host events
    releases: dict[int, tuple[Column, Column]]  # thread -> when, and the device work that ended
    handovers: dict[int, Spans]  # thread -> when it worked and the main thread waited for it
    work: ByThread


def find_thread_waits(timeline: Timeline, order: DeviceOrder) -> ThreadWaits:
    """All waits of all threads; the main one waits for autograd's, those that launch kernels, and
    gloo's."""
    host, device, main = timeline.host, timeline.device, calling_thread(timeline)
    work, handovers = ByThread(timeline, is_work(timeline)), {}
    if main != NOTHING:
        serves = backward_threads(timeline)
        launch = device.launch[(device.kind == DeviceKind.KERNEL) & (device.launch >= 0)]
        serves[host.thread[launch]] = True
        serves[host.thread[is_gloo(timeline)]] = True
        serves[main] = False
        for helper in busiest_threads(timeline, serves[host.thread], _MOST_HELPERS):
            handovers[helper] = _waited_for(work.spans(main), work.spans(helper))
    return ThreadWaits(main, _releases(timeline, order), handovers, work)


def _releases(timeline: Timeline, order: DeviceOrder) -> dict[int, tuple[Column, Column]]:
    """Calls that came back because device work had ended inside them.

    A call that copies waits for its own copy; any other for the last work to end before it returns.
    """
    host, device = timeline.host, timeline.device
    calls = blocking_calls(timeline).events
    if not len(order.index) or not len(calls):
        return {}
    copies = np.flatnonzero(
        (device.kind[order.index] == DeviceKind.COPY) & np.isin(device.launch[order.index], calls)
    )
    copying = device.launch[order.index[copies]]
    calls = calls[~np.isin(calls, copying)]
    ended = np.append(_ended_last(timeline, order, calls), copies)
    calls = np.append(calls, copying)
    when, begin = order.end[ended], host.start[calls]
    released = (ended >= 0) & (when > begin) & (when <= host.end[calls])
    calls, ended, when = calls[released], ended[released], when[released]
    rows = np.lexsort((when, host.thread[calls]))
    when, ended = when[rows], ended[rows]
    return {
        thread: (when[own], ended[own]) for thread, own in slices_by_value(host.thread[calls[rows]])
    }


def _ended_last(timeline: Timeline, order: DeviceOrder, calls: Column) -> Column:
    """The work that ended last before each call returned, or -1.

    On the stream that was waited for where that is known, else on any.
    """
    host, syncs = timeline.host, timeline.syncs
    returned = host.end[calls]
    before = np.searchsorted(order.end[order.by_end], returned, "right")
    ended = np.append(-1, order.by_end)[before]
    on = np.where(syncs.stream >= 0, syncs.stream, syncs.waits_for)
    work = timeline.device.stream[order.index]
    for stream in _busiest(on[on >= 0]):
        correlations = syncs.correlation[(on == stream) & (syncs.correlation >= 0)]
        mine = np.flatnonzero(np.isin(host.correlation[calls], correlations))
        own = np.flatnonzero(work == stream)
        found = np.searchsorted(order.end[own], returned[mine], "right")
        ended[mine] = np.append(-1, own)[found]
    return ended


def _waited_for(main: Spans, helper: Spans) -> Spans:
    """From the first to the last work of a thread in each pause of the main thread.

    Only where that work began in the pause: otherwise the two just ran side by side.
    """
    far = np.iinfo(np.int64)
    begin, end = np.append(far.min, main.end), np.append(main.start, far.max)
    first = np.searchsorted(helper.start, begin, "left")
    last = np.searchsorted(helper.start, end, "left") - 1
    some = (first <= last) & (first < len(helper.start))
    some &= ~((first > 0) & (np.append(far.min, helper.end)[first] > begin))
    first, last, end = first[some], last[some], end[some]
    return Spans(helper.start[first], np.minimum(helper.end[last], end))
