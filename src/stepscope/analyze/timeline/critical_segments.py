"""The critical path as a row of segments, in order of time, that tile the window."""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from stepscope.analyze.timeline.critical_device import DeviceOrder, device_order
from stepscope.analyze.timeline.critical_waits import find_waits
from stepscope.analyze.timeline.critical_walk import Runs, Walk
from stepscope.analyze.timeline.stretches import stretches, within
from stepscope.analyze.timeline.threads import ByThread, groups
from stepscope.record.timeline import NOTHING, Column, Timeline


class On(IntEnum):
    """What the path runs over."""

    DEVICE = 0  # kernels, copies, sets
    LAUNCH = 1  # from the end of the launching call to the start on the device
    BETWEEN = 2  # from the end of the work waited for to the start on the device
    HOST = 3
    UNKNOWN = 4


@dataclass(frozen=True, slots=True)
class Segments:
    """Each begins where the one before it ends."""

    start: Column
    end: Column
    on: Column  # uint8, On
    event: (
        Column  # into the device events (DEVICE, LAUNCH, BETWEEN) or the host's (HOST), or NOTHING
    )
    thread: Column  # of HOST segments, else NOTHING

    def __len__(self) -> int:
        return len(self.start)


def path_segments(timeline: Timeline, start_ns: int, end_ns: int) -> Segments:
    """The critical path through a window, walked back from its end."""
    order = device_order(timeline, start_ns, end_ns)
    waits = find_waits(timeline, order)
    runs = Walk(timeline, order, waits, start_ns).back_from(end_ns)
    parts = [*_device_parts(order, runs, start_ns), *_host_parts(timeline, runs)]
    for on, pauses in ((On.LAUNCH, runs.launch), (On.BETWEEN, runs.between)):
        event, begin, end = np.array(pauses, np.int64).reshape(-1, 3).T
        parts.append(_part(begin, end, on, event))
    parts += [_part([s], [e], On.UNKNOWN, [NOTHING]) for s, e in runs.unknown]
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    by_time = np.argsort(columns[0], kind="stable")
    return Segments(*(column[by_time] for column in columns))


def _device_parts(order: DeviceOrder, runs: Runs, start_ns: int) -> list[tuple[Column, ...]]:
    """The work of each run along a stream, and the pauses between."""
    first, last, until = np.array(runs.device, np.int64).reshape(-1, 3).T
    sizes = last - first + 1
    row = np.repeat(first - (np.cumsum(sizes) - sizes), sizes) + np.arange(int(sizes.sum()))
    tail = np.cumsum(sizes) - 1
    following = order.start[np.minimum(row + 1, len(order.start) - 1)]
    following[tail] = until
    begin, end = order.start[row], np.minimum(order.end[row], following)
    event = order.index[row]
    after = np.append(event[1:], NOTHING)[: len(row)]
    return [
        _clipped(begin, end, On.DEVICE, event, start_ns),
        _clipped(end, following, On.BETWEEN, after, start_ns),
    ]


def _clipped(
    start: Column, end: Column, on: On, event: Column, start_ns: int
) -> tuple[Column, ...]:
    start = np.maximum(start, start_ns)
    real = end > start
    return _part(start[real], end[real], on, event[real])


def _host_parts(timeline: Timeline, runs: Runs) -> list[tuple[Column, ...]]:
    """What each thread did while it was on the path."""
    every = np.array(runs.host[::-1], np.int64).reshape(-1, 3)
    every = every[np.argsort(every[:, 0], kind="stable")]
    events, parts = ByThread(timeline), []
    for thread, own in groups(every[:, 0]):
        _, begin, end = every[own].T
        whole = stretches(timeline.host, events.rows(thread), int(begin[0]), int(end[-1]))
        starts, ends, owners = within(whole, begin, end)
        parts.append(_part(starts, ends, On.HOST, owners, thread))
    return parts


def _part(
    start: Column | list[int], end: Column | list[int], on: On, event: Column | list[int],
    thread: int = NOTHING,
) -> tuple[Column, ...]:  # fmt: skip
    size = len(start)
    return (
        np.asarray(start, np.int64), np.asarray(end, np.int64), np.full(size, on, np.uint8),
        np.asarray(event, np.int32), np.full(size, thread, np.int32),
    )  # fmt: skip
