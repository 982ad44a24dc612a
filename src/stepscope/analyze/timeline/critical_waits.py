"""The host's side of the critical path: where a thread waits for the device or another thread."""

from dataclasses import dataclass

import numpy as np

from stepscope.analyze.timeline.blocking import blocking_calls
from stepscope.analyze.timeline.critical_device import DeviceOrder
from stepscope.analyze.timeline.intervals import Spans
from stepscope.analyze.timeline.threads import (
    ByThread,
    backward_threads,
    busiest,
    calling_thread,
    gloo,
    groups,
    works,
)
from stepscope.record.timeline import NOTHING, Column, DeviceKind, Timeline

_SERVANTS = 64


@dataclass(frozen=True, slots=True)
class Waits:
    """When each thread went on because something else had ended; times ascend."""

    main: int  # thread, NOTHING without host events
    releases: dict[int, tuple[Column, Column]]  # thread -> when, and the device work that ended
    handovers: dict[int, Spans]  # thread -> when it worked and the main thread waited for it
    work: ByThread


def find_waits(timeline: Timeline, order: DeviceOrder) -> Waits:
    """All waits of all threads."""
    main = calling_thread(timeline)
    work = ByThread(timeline, works(timeline))
    servants = _servants(timeline, main)
    handovers = {one: _waited_for(work.spans(main), work.spans(one)) for one in servants}
    return Waits(main, _releases(timeline, order), handovers, work)


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
    held = (ended >= 0) & (when > begin) & (when <= begin + host.duration[calls])
    calls, ended, when = calls[held], ended[held], when[held]
    rows = np.lexsort((when, host.thread[calls]))
    when, ended = when[rows], ended[rows]
    return {thread: (when[own], ended[own]) for thread, own in groups(host.thread[calls[rows]])}


def _ended_last(timeline: Timeline, order: DeviceOrder, calls: Column) -> Column:
    """The work that ended last before each call returned, or -1.

    On the stream that was waited for where that is known, else on any.
    """
    host, syncs = timeline.host, timeline.syncs
    returned = host.start[calls] + host.duration[calls]
    ended = order.last_ended(returned)
    on = np.where(syncs.stream >= 0, syncs.stream, syncs.waits_for)
    work = timeline.device.stream[order.index]
    for stream in np.unique(on[on >= 0]).tolist():
        told = syncs.correlation[(on == stream) & (syncs.correlation >= 0)]
        mine = np.flatnonzero(np.isin(host.correlation[calls], told))
        own = np.flatnonzero(work == stream)
        found = np.searchsorted(order.end[own], returned[mine], "right")
        ended[mine] = np.append(-1, own)[found]
    return ended


def _servants(timeline: Timeline, main: int) -> list[int]:
    """Threads the main thread waits for: autograd's, those that launch kernels, gloo's."""
    host, device = timeline.host, timeline.device
    if main == NOTHING:
        return []
    serves = backward_threads(timeline)
    launch = device.launch[(device.kind == DeviceKind.KERNEL) & (device.launch >= 0)]
    serves[host.thread[launch]] = True
    serves[host.thread[gloo(timeline)]] = True
    serves[main] = False
    return busiest(timeline, serves[host.thread], _SERVANTS)


def _waited_for(main: Spans, servant: Spans) -> Spans:
    """From the first to the last work of a thread in each pause of the main thread.

    Only where that work began in the pause: otherwise the two just ran side by side.
    """
    far = np.iinfo(np.int64)
    begin, end = np.append(far.min, main.end), np.append(main.start, far.max)
    first = np.searchsorted(servant.start, begin, "left")
    last = np.searchsorted(servant.start, end, "left") - 1
    some = (first <= last) & (first < len(servant.start))
    some &= ~((first > 0) & (np.append(far.min, servant.end)[first] > begin))
    first, last, end = first[some], last[some], end[some]
    return Spans(servant.start[first], np.minimum(servant.end[last], end))
