"""How much launched work was waiting to start, over time."""

from dataclasses import dataclass

import numpy as np

from stepscope.analyze.timeline.devicework import device_of_events
from stepscope.analyze.timeline.intervals import clip, merge, total
from stepscope.record.timeline import Column, Timeline

_POINTS = 500


@dataclass(frozen=True, slots=True)
class Queue:
    """Work launched on a device (the call has begun) and not yet started."""

    device: int
    longest: int
    mean: float
    empty_share: float  # of the time, nothing was waiting
    start_ns: int
    every_ns: float  # how far the points of `series` are apart
    series: list[float]  # the mean length in each such stretch of time, at most 500


def launch_queue(timeline: Timeline, start: int, end: int) -> list[Queue]:
    """The queue of each device within [start, end); work without a known launch is not in it."""
    host, device = timeline.host, timeline.device
    owners = device_of_events(timeline)
    known = device.launch >= 0
    found = []
    for one in np.unique(owners[known]).tolist():
        own = np.flatnonzero(known & (owners == one))
        launched, begun = host.start[device.launch[own]], device.start[own]
        waits = begun > launched
        entered, left = np.sort(launched[waits]), np.sort(begun[waits])
        edges = np.linspace(start, end, min(_POINTS, end - start) + 1)
        waited = _elapsed(entered, edges) - _elapsed(left, edges)
        lengths = np.searchsorted(entered, entered, side="right") - np.searchsorted(
            left, entered, side="right"
        )
        lengths = lengths[(entered >= start) & (entered < end)]
        already = int(np.searchsorted(entered, start) - np.searchsorted(left, start, side="right"))
        filled = total(clip(merge(launched, begun), start, end))
        found.append(
            Queue(
                device=one,
                longest=int(lengths.max(initial=already)),
                mean=float((waited[-1] - waited[0]) / (end - start)),
                empty_share=1 - filled / (end - start),
                start_ns=start,
                every_ns=float(edges[1] - edges[0]),
                series=(np.diff(waited) / np.diff(edges)).tolist(),
            )
        )
    return found


def _elapsed(times: Column, until: Column) -> Column:
    """The sum, over the times before each `until`, of how long before it they lie."""
    if not len(times):
        return np.zeros(len(until))
    origin = times[0]
    sums = np.concatenate(([0.0], np.cumsum(times - origin, dtype=np.float64)))
    before = np.searchsorted(times, until)
    elapsed: Column = before * (until - origin) - sums[before]
    return elapsed
