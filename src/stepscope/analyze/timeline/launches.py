"""How the host feeds the devices: launches, their latency, and the queue they make."""

from dataclasses import dataclass

import numpy as np

from stepscope.analyze.timeline.blocking import blocking_calls
from stepscope.analyze.timeline.intervals import merge, total
from stepscope.analyze.timeline.launchqueue import Queue, launch_queue
from stepscope.analyze.timeline.namematch import names_that
from stepscope.analyze.timeline.steps import Steps
from stepscope.record.timeline import Column, DeviceKind, Timeline

SHORT_NS = 5_000


@dataclass(frozen=True, slots=True)
class Spread:
    """Of some durations; all None where there are none."""

    mean_ns: float | None
    p10_ns: float | None
    p50_ns: float | None
    p90_ns: float | None
    p99_ns: float | None
    max_ns: int | None


@dataclass(frozen=True, slots=True)
class Blocked:
    """How long a host thread stood still in calls that wait for the device."""

    thread: str  # its name, or its id where it has none
    blocked_ns: int
    calls: int


@dataclass(frozen=True, slots=True)
class Launches:
    """Launches of a whole recording."""

    kernels: int
    kernels_per_step: list[int]  # by the time of their launch, or of their start without one
    latency: Spread  # from a call's start to that of the first thing it launched, queueing included
    skewed: int  # launches whose work seems to start before them; not in `latency`
    call: Spread  # the runtime call's own duration
    shorter_than_launch: float | None  # share of kernels with a launch of their own, not a graph's
    shorter_than_5us: float | None  # share of all kernels
    graph_launches: int
    graph_kernels: int
    graph_ns: int  # of those: no operator on the host accounts for it
    without_launch: int  # kernels, copies and memsets whose launch was not recorded
    without_launch_ns: int
    blocked: list[Blocked]  # longest first
    queues: list[Queue]  # one per device


def study_launches(timeline: Timeline, steps: Steps) -> Launches:
    """Everything about launches; queues are seen within the steps."""
    host, device = timeline.host, timeline.device
    kernel = device.kind == DeviceKind.KERNEL
    known = device.launch >= 0
    calls, first = np.unique(device.launch[known], return_index=True)  # events are in start order
    latency = device.start[known][first] - host.start[calls]
    when = device.start.copy()
    when[known] = host.start[device.launch[known]]
    edges = np.array([steps.steps[0].start_ns, *(s.end_ns for s in steps.steps)])
    per_step = np.diff(np.searchsorted(np.sort(when[kernel]), edges))
    graphs = calls[names_that(timeline, host.name[calls], lambda name: "GraphLaunch" in name)]
    from_graph = kernel & ((device.graph > 0) | (known & np.isin(device.launch, graphs)))
    linked = np.flatnonzero(kernel & known & ~from_graph)
    return Launches(
        kernels=int(kernel.sum()),
        kernels_per_step=per_step.tolist(),
        latency=_spread(latency[latency >= 0]),
        skewed=int((latency < 0).sum()),
        call=_spread(host.duration[calls]),
        shorter_than_launch=_share(device.duration[linked] < host.duration[device.launch[linked]]),
        shorter_than_5us=_share(device.duration[kernel] < SHORT_NS),
        graph_launches=len(graphs),
        graph_kernels=int(from_graph.sum()),
        graph_ns=int(device.duration[from_graph].sum()),
        without_launch=int((~known).sum()),
        without_launch_ns=int(device.duration[~known].sum()),
        blocked=_blocked(timeline),
        queues=launch_queue(timeline, int(edges[0]), int(edges[-1])),
    )


def _spread(values: Column) -> Spread:
    if not len(values):
        return Spread(None, None, None, None, None, None)
    p10, p50, p90, p99 = np.percentile(values, (10, 50, 90, 99)).tolist()
    return Spread(float(values.mean()), p10, p50, p90, p99, int(values.max()))


def _share(flags: Column) -> float | None:
    return float(flags.mean()) if len(flags) else None


def _blocked(timeline: Timeline) -> list[Blocked]:
    host, events = timeline.host, blocking_calls(timeline).events
    found = []
    for index in np.unique(host.thread[events]).tolist():
        own = events[host.thread[events] == index]
        thread = timeline.threads[index]
        spans = merge(host.start[own], host.start[own] + host.duration[own])
        found.append(Blocked(thread.name or thread.tid, total(spans), len(own)))
    return sorted(found, key=lambda one: -one.blocked_ns)
