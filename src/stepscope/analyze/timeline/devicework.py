"""What each device was doing, as spans: compute, communication, copies."""

from dataclasses import dataclass

import numpy as np

from stepscope.analyze.timeline.communicates import communication_kernels
from stepscope.analyze.timeline.intervals import Spans, merge
from stepscope.record.timeline import Column, DeviceKind, Timeline


@dataclass(frozen=True, slots=True)
class DeviceWork:
    """One device's work, over all its streams; `events` are indices into the device events."""

    device: int
    events: Column
    busy: Spans
    compute: Spans
    communication: Spans
    copy: Spans  # copies in every direction, and memsets


def device_of_events(timeline: Timeline) -> Column:
    """The device each device event ran on, -1 where its stream is not known."""
    devices = np.array([s.device for s in timeline.streams] + [-1], np.int64)
    return devices[timeline.device.stream]


def device_work(timeline: Timeline) -> list[DeviceWork]:
    """The devices that did anything, by number."""
    events, owners = timeline.device, device_of_events(timeline)
    communicates = communication_kernels(timeline)
    copies = events.kind != DeviceKind.KERNEL
    found = []
    for device in np.unique(owners).tolist():
        own = np.flatnonzero(owners == device)
        talks, moves = communicates[own], copies[own]
        start, end = events.start[own], events.start[own] + events.duration[own]
        computes = ~(talks | moves)
        found.append(
            DeviceWork(
                device=device,
                events=own,
                busy=merge(start, end),
                compute=merge(start[computes], end[computes]),
                communication=merge(start[talks], end[talks]),
                copy=merge(start[moves], end[moves]),
            )
        )
    return found
