"""Sets of half-open intervals [start, end) in int64 nanoseconds, and each device's work as such.

`Spans` are in normal form: sorted, none empty, none overlapping or touching. `merge` makes it.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from stepscope.analyze.timeline.names import communication_kernels
from stepscope.record.timeline import (
    Column,
    DeviceKind,
    Timeline,
    distinct_values,
    once_per_timeline,
)


class Spans(NamedTuple):
    """Intervals in normal form."""

    start: Column
    end: Column


def merge(start: Column, end: Column) -> Spans:
    """The union of any intervals; empty ones vanish, touching ones become one."""
    real = end > start
    start, end = np.asarray(start[real], np.int64), np.asarray(end[real], np.int64)
    if not len(start):
        return Spans(start, end)
    if (start[1:] < start[:-1]).any():
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    first = np.concatenate(([True], start[1:] > reach[:-1]))
    return Spans(start[first], reach[np.concatenate((first[1:], [True]))])


def span(start: int, end: int) -> Spans:
    """One interval, or none where it would be empty."""
    return merge(np.array([start], np.int64), np.array([end], np.int64))


def union(a: Spans, b: Spans) -> Spans:
    """The union."""
    return merge(np.concatenate((a.start, b.start)), np.concatenate((a.end, b.end)))


def intersection(a: Spans, b: Spans) -> Spans:
    """The intersection."""
    return _combine(a, b, 3)


def difference(a: Spans, b: Spans) -> Spans:
    """The part of a outside b."""
    return _combine(a, b, 1)


def _combine(a: Spans, b: Spans, wanted: int) -> Spans:
    """Where the counts of a (1) and b (2) add up to a wanted value."""
    if not len(a.start) or not len(b.start):
        return a if wanted == 1 else Spans(a.start[:0], a.end[:0])
    times = np.concatenate((a.start, a.end, b.start, b.end))
    sizes = (len(a.start), len(a.end), len(b.start), len(b.end))
    change = np.repeat(np.array([1, -1, 2, -2], np.int8), sizes)
    order = np.argsort(times, kind="stable")
    times = times[order]
    inside = np.flatnonzero(np.cumsum(change[order], dtype=np.int8)[:-1] == wanted)
    return merge(times[inside], times[inside + 1])


def clip(spans: Spans, start: int, end: int) -> Spans:
    """What lies within [start, end)."""
    return merge(np.maximum(spans.start, start), np.minimum(spans.end, end))


def total(spans: Spans) -> int:
    """Their length."""
    return int((spans.end - spans.start).sum())


def covered(spans: Spans, times: Column) -> Column:
    """How much of the spans lies before each time: differences give lengths within windows."""
    if not len(spans.start):
        return np.zeros(np.shape(times), np.int64)
    lengths = np.concatenate(([0], np.cumsum(spans.end - spans.start)))
    before = np.searchsorted(spans.start, times, side="right")
    beyond = np.maximum(spans.end[np.maximum(before - 1, 0)] - times, 0)
    return lengths[before] - np.where(before > 0, beyond, 0)


def holder(spans: Spans, times: Column) -> Column:
    """The index of the span each time lies in, -1 where none does."""
    at = np.searchsorted(spans.start, times, side="right") - 1
    if not len(spans.start):
        return at
    return np.where((at >= 0) & (times < spans.end[np.maximum(at, 0)]), at, -1)


@dataclass(frozen=True, slots=True)
class DeviceWork:
    """One device's work, over all its streams; `events` are indices into the device events."""

    device: int
    events: Column
    busy: Spans
    compute: Spans
    communication: Spans
    copy: Spans  # copies in every direction, and memsets


@once_per_timeline
def device_of_events(timeline: Timeline) -> Column:
    """The device each device event ran on, -1 where its stream is not known."""
    devices = np.array([s.device for s in timeline.streams] + [-1], np.int64)
    return devices[timeline.device.stream]


@once_per_timeline
def device_work(timeline: Timeline) -> list[DeviceWork]:
    """The devices that did anything, by number."""
    events, owners = timeline.device, device_of_events(timeline)
    communicates = communication_kernels(timeline)
    copies = events.kind != DeviceKind.KERNEL
    found = []
    for device in distinct_values(owners).tolist():  # few: see `trace.limits`
        own = np.flatnonzero(owners == device)
        talks, moves = communicates[own], copies[own]
        start, end = events.start[own], events.start[own] + events.duration[own]
        kinds = (~(talks | moves), talks, moves)
        spans = [merge(start[kind], end[kind]) for kind in kinds]
        found.append(DeviceWork(device, own, merge(start, end), *spans))
    return found
