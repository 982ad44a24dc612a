"""The device's side of the critical path: what each piece of work had to wait for."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from stepscope.analyze.timeline.namematch import names_that
from stepscope.record.timeline import Column, HostKind, Timeline

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

    def last_ended(self, times: Column) -> Column:
        """Position of the work that ended last, at or before each time; -1 where none had."""
        found = np.searchsorted(self.end[self.by_end], times, "right") - 1
        return np.where(found >= 0, self.by_end[found], -1) if len(self.by_end) else found

    def running_at(self, time: int) -> int:
        """Position of the work running just before a time (of several the last to end), or -1."""
        running = np.flatnonzero((self.start < time) & (self.end >= time))
        return int(running[np.argmax(self.end[running])]) if len(running) else -1


def _launched(timeline: Timeline, index: Column) -> Column:
    device, host = timeline.device, timeline.host
    if not len(host):
        return np.full(len(index), NEVER)
    launch = device.launch[index]
    returned = host.start[launch] + host.duration[launch]
    return np.where(launch >= 0, np.minimum(returned, device.start[index]), NEVER)


def device_order(timeline: Timeline, start_ns: int, end_ns: int) -> DeviceOrder:
    """The device work that overlaps a window, with what each piece waited for."""
    device = timeline.device
    inside = (device.start < end_ns) & (device.end > start_ns) & (device.duration > 0)
    index = np.flatnonzero(inside)
    index = index[np.argsort(device.stream[index], kind="stable")]
    index = index[_visible(device.stream[index], device.end[index])]
    stream, start, end = device.stream[index], device.start[index], device.end[index]
    launched = _launched(timeline, index)
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
    taken, where the host had asked some stream to wait since the entry before was launched.
    """
    device, host = timeline.device, timeline.host
    awaited = np.full(len(index), -1)
    waiting = names_that(timeline, host.name, lambda name: "StreamWaitEvent" in name)
    calls = np.flatnonzero((host.kind == HostKind.RUNTIME) & waiting)
    if not len(calls) or len(timeline.streams) < 2:
        return awaited
    stream, start = device.stream[index], device.start[index]
    launch = device.launch[index]
    asked = np.where(launch >= 0, host.start[launch], start)
    since = np.where(head, NEVER, np.append(NEVER, asked[:-1]))
    for number in np.unique(stream):
        own = np.flatnonzero(stream == number)
        times = host.start[calls[_may_concern(timeline, calls, int(number))]]
        waited = np.searchsorted(times, asked[own]) > np.searchsorted(times, since[own])
        own = own[waited]
        place = timeline.streams[number].device
        near = [n for n, s in enumerate(timeline.streams) if s.device == place and n != number]
        others = by_end[np.isin(stream[by_end], near)]
        ends = device.end[index[others]]
        found = np.searchsorted(ends, start[own], "right") - 1
        own, found = own[found >= 0], found[found >= 0]
        late = ends[found] > ready[own]
        awaited[own[late]] = others[found[late]]
    return awaited


def _may_concern(timeline: Timeline, calls: Column, stream: int) -> Column:
    """Which calls may have made this stream wait: all but those known to concern another."""
    syncs = timeline.syncs
    others = syncs.correlation[(syncs.stream >= 0) & (syncs.stream != stream)]
    return ~np.isin(timeline.host.correlation[calls], others[others >= 0])
