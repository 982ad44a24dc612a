"""How the host feeds the devices: launches, their latency and queue, copies and memsets."""

import numpy as np
from msgspec import Struct

from stepscope.analyze.timeline.communication import launched_at
from stepscope.analyze.timeline.host_threads import slices_by_value
from stepscope.analyze.timeline.intervals import (
    clip,
    covered,
    device_of_events,
    device_work,
    merge,
    total,
)
from stepscope.analyze.timeline.names import (
    CopyDirection,
    CopyMemory,
    CopyName,
    blocking_calls,
    names_match,
    read_copy_name,
)
from stepscope.analyze.timeline.steps import RecordedSteps
from stepscope.record.timeline import Column, DeviceKind, Timeline, distinct_values, percentiles

_POINTS = 500


class LaunchQueue(Struct, frozen=True):
    """Work launched on a device (the call has begun) and not yet started."""

    device: int
    longest: int
    mean: float
    empty_share: float  # of the time, nothing was waiting
    start_ns: int
    every_ns: float  # how far the points of `series` are apart
    series: list[float]  # the mean length in each such stretch of time, at most 500


def _launch_queue(timeline: Timeline, start: int, end: int) -> list[LaunchQueue]:
    """The queue of each device within [start, end); work without a known launch is not in it."""
    host, device = timeline.host, timeline.device
    owners = device_of_events(timeline)
    known = device.launch >= 0
    found = []
    for one in distinct_values(owners[known]).tolist():
        own = np.flatnonzero(known & (owners == one))
        launched, begun = host.start[device.launch[own]], device.start[own]
        waits = begun > launched
        entered, left = np.sort(launched[waits]), np.sort(begun[waits])
        # Since the start: floats do not tell late times apart.
        edges = np.linspace(0, end - start, min(_POINTS, end - start) + 1)
        waited = _elapsed(entered - start, edges) - _elapsed(left - start, edges)
        within = entered[(entered >= start) & (entered < end)]
        counts = (np.searchsorted(times, within, side="right") for times in (entered, left))
        lengths = np.subtract(*counts)
        already = int(np.searchsorted(entered, start) - np.searchsorted(left, start, side="right"))
        filled = total(clip(merge(launched, begun), start, end))
        found.append(
            LaunchQueue(
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


SHORT_NS = 5_000


class Spread(Struct, frozen=True):
    """Of some durations; all None where there are none."""

    mean_ns: float | None
    p10_ns: float | None
    p50_ns: float | None
    p90_ns: float | None
    p99_ns: float | None
    max_ns: int | None


class BlockedThread(Struct, frozen=True):
    """How long a host thread was blocked in calls that wait for the device."""

    thread: str  # its name, or its id where it has none
    blocked_ns: int
    calls: int


class Launches(Struct, frozen=True):
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
    blocked: list[BlockedThread]  # longest first
    queues: list[LaunchQueue]  # one per device


def study_launches(timeline: Timeline, steps: RecordedSteps) -> Launches:
    """Everything about launches; queues are seen within the steps."""
    host, device = timeline.host, timeline.device
    kernel = device.kind == DeviceKind.KERNEL
    known = device.launch >= 0
    calls, first = np.unique(device.launch[known], return_index=True)  # events are in start order
    latency = device.start[known][first] - host.start[calls]
    when = np.sort(launched_at(timeline, np.flatnonzero(kernel)))
    edges = np.array([steps.steps[0].start_ns, *(s.end_ns for s in steps.steps)])
    per_step = np.diff(np.searchsorted(when, edges))
    graphs = calls[names_match(timeline, host.name[calls], lambda name: "GraphLaunch" in name)]
    from_graph = kernel & ((device.graph > 0) | (known & np.isin(device.launch, graphs)))
    linked = np.flatnonzero(kernel & known & ~from_graph)
    waits, blocked = blocking_calls(timeline).events, []
    waits = waits[np.argsort(host.thread[waits], kind="stable")]
    for index, calling in slices_by_value(host.thread[waits]):
        own, thread = waits[calling], timeline.threads[index]
        spans = merge(host.start[own], host.start[own] + host.duration[own])
        blocked.append(BlockedThread(thread.name or thread.tid, total(spans), len(own)))
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
        blocked=sorted(blocked, key=lambda one: -one.blocked_ns),
        queues=_launch_queue(timeline, int(edges[0]), int(edges[-1])),
    )


def _spread(values: Column) -> Spread:
    if not len(values):
        return Spread(*(None,) * 6)
    p10, p50, p90, p99 = percentiles(values, 10, 50, 90, 99)
    return Spread(float(values.mean()), p10, p50, p90, p99, int(values.max()))


def _share(flags: Column) -> float | None:
    return float(flags.mean()) if len(flags) else None


SMALL_BYTES = 64 * 1024


class Copies(Struct, frozen=True):
    """Those of one direction and memory, over all devices, the whole recording."""

    direction: CopyDirection
    memory: CopyMemory
    count: int
    small: int  # of at most 64 KiB
    bytes: int | None  # None: not recorded for any
    total_ns: int  # durations added up
    bytes_per_s: float | None  # of those whose size was recorded
    overlapped: float  # share of the time during which a kernel computed on the same device


def study_copies(timeline: Timeline) -> list[Copies]:
    """A row per direction and memory, longest in time first."""
    device = timeline.device
    moves = np.flatnonzero(device.kind != DeviceKind.KERNEL)
    hidden = np.zeros(len(device), np.int64)
    for one in device_work(timeline):
        start, end = device.start[one.events], device.end[one.events]
        hidden[one.events] = covered(one.compute, end) - covered(one.compute, start)
    groups = dict[CopyName, list[Column]]()
    moves = moves[np.argsort(device.name[moves], kind="stable")]
    for name, named in slices_by_value(device.name[moves]):
        own = moves[named]
        sets = device.kind[own] == DeviceKind.SET
        groups.setdefault(read_copy_name(timeline.name_of(name)), []).append(own[~sets])
        groups.setdefault(CopyName(CopyDirection.MEMSET, CopyMemory.DEVICE), []).append(own[sets])
    rows = []
    for (direction, memory), parts in groups.items():
        events = np.concatenate(parts)
        duration, size = device.duration[events], device.bytes[events]
        sized = size >= 0
        moved, spent = int(size[sized].sum()), int(duration[sized].sum())
        total_ns = int(duration.sum())
        row = Copies(
            direction=direction,
            memory=memory,
            count=len(events),
            small=int((sized & (size <= SMALL_BYTES)).sum()),
            bytes=moved if sized.any() else None,
            total_ns=total_ns,
            bytes_per_s=moved / spent * 1e9 if spent else None,
            overlapped=int(hidden[events].sum()) / total_ns if total_ns else 0.0,
        )
        rows.append(row)
    return sorted((row for row in rows if row.count), key=lambda row: -row.total_ns)
