"""Device work and host waits as tasks, and what a host stretch costs without waiting."""

import re

import numpy as np

from stepscope.analyze.replay.host_chain import HostChain, StretchLabels
from stepscope.analyze.replay.tasks import RELEASE_NS, DeviceTasks, WaitKind, WaitTasks
from stepscope.analyze.timeline.attribution import attribute, event_categories, nearest
from stepscope.analyze.timeline.dependencies import device_order
from stepscope.analyze.timeline.host_threads import slices_by_value
from stepscope.analyze.timeline.names import blocking_calls, names_match, user_frames
from stepscope.record.row_log import STEP_PHASES
from stepscope.record.timeline import (
    NOTHING,
    Column,
    DeviceKind,
    HostKind,
    Timeline,
    distinct_values,
    percentiles,
)


def device_tasks(
    timeline: Timeline, chain: HostChain, labels: StretchLabels, step: Column
) -> DeviceTasks:
    """The work launched within the chain, in that order.

    Work launched before it is left out: replayed again and again, the window leads into itself.
    Work whose launch was not recorded goes with the work before it on its stream.
    """
    device = timeline.device
    index, at = _launched(timeline, chain)
    order = np.lexsort((index, at))  # device events are ordered by start
    index, at = index[order], at[order]
    attribution = attribute(timeline)
    stream = device.stream[index].astype(np.int64)
    overlaps = np.zeros(len(index), np.float64)
    for own in _by_value(stream).values():
        start = device.start[index[own]]
        ends = np.maximum.accumulate(start + device.duration[index[own]])
        overlaps[own[1:]] = np.maximum(ends[:-1] - start[1:], 0)
    graphs = names_match(timeline, timeline.host.name, lambda name: "GraphLaunch" in name)
    return DeviceTasks(
        duration=device.duration[index].astype(np.float64),
        at=at,
        stream=stream,
        overlaps=overlaps,
        after=_awaited(timeline, chain, index, at, stream),
        kind=device.kind[index],
        name=device.name[index],
        category=event_categories(timeline)[index],
        phase=labels.phase[at] if len(index) else attribution.phase[index],
        operator=timeline.host_names(attribution.operator[index]),
        call=np.where(device.launch[index] >= 0, labels.call[at], NOTHING) if len(index) else at,
        bytes=device.bytes[index],
        event=index,
        step=step[at] if len(index) else at,
        graph=(device.graph[index] > 0) | np.append(graphs, False)[device.launch[index]],
        gone=np.zeros(len(index), bool),
    )


def _launched(timeline: Timeline, chain: HostChain) -> tuple[Column, Column]:
    """Indices of the device events launched in the chain, and the stretches that did."""
    device, host = timeline.device, timeline.host
    known = np.flatnonzero(device.launch >= 0)
    call = device.launch[known]
    begun = host.start[call] if len(host) else call
    inside = (begun >= chain.start[0]) & (begun < chain.end[-1])
    known, call = known[inside], call[inside]
    at = chain.at(host.start[call] + host.duration[call])
    owned = _last_owned(chain, len(host))[call]
    at = np.where(owned >= 0, owned, at)
    lost = np.flatnonzero(device.launch < 0)
    if not len(lost) or not len(known):
        return known, at
    whole = np.append(known, lost)
    place = np.append(at, np.full(len(lost), NOTHING))
    order = np.lexsort((whole, device.stream[whole]))
    whole, place = whole[order], place[order]
    for first in np.flatnonzero(np.diff(device.stream[whole], prepend=-2)).tolist():
        if place[first] == NOTHING:
            place[first] = -2  # before any known work on its stream: not of this window
    filled = np.maximum.accumulate(np.where(place != NOTHING, np.arange(len(place)), 0))
    place = place[filled]
    return whole[place >= 0], place[place >= 0]


def _by_value(column: Column) -> dict[int, Column]:
    """The rows with each value, in order."""
    order = np.argsort(column, kind="stable")
    return {value: order[rows] for value, rows in slices_by_value(column[order])}


def _last_owned(chain: HostChain, size: int) -> Column:
    """For each host event the last stretch it owns, NOTHING for those without one."""
    last = np.full(size, NOTHING, np.int64)
    owned = np.flatnonzero(chain.owner >= 0)
    last[chain.owner[owned]] = owned
    return last


def _awaited(
    timeline: Timeline, chain: HostChain, index: Column, at: Column, stream: Column
) -> Column:
    """For work that another stream's work had to precede, that work; else NOTHING.

    Told by the profiler's own record of waits where there is one, else as the critical path has
    it: what visibly held work back after the host had made some stream wait.
    """
    after = np.full(len(index), NOTHING, np.int64)
    if len(distinct_values(stream)) < 2:
        return after
    host, syncs = timeline.host, timeline.syncs
    recorded = np.flatnonzero((syncs.stream >= 0) & (syncs.waits_for >= 0)).tolist()
    if recorded:
        calls = np.flatnonzero((host.kind == HostKind.RUNTIME) & (host.correlation >= 0))
        call_of = dict(zip(host.correlation[calls].tolist(), calls.tolist(), strict=True))
        rows_of = _by_value(stream)
        nothing = np.zeros(0, np.int64)
        for n in recorded:
            call = call_of.get(int(syncs.correlation[n]))
            if call is None or not chain.start[0] <= host.start[call] < chain.end[-1]:
                continue
            call_at = int(chain.at(host.start[[call]])[0])
            following = rows_of.get(int(syncs.stream[n]), nothing)
            earlier = rows_of.get(int(syncs.waits_for[n]), nothing)
            first = int(np.searchsorted(at, call_at, "right"))  # work in order of its launch
            begin, end = np.searchsorted(following, first), np.searchsorted(earlier, first)
            if begin < len(following) and end:
                after[following[begin]] = max(after[following[begin]], earlier[end - 1])
        return after
    order = device_order(timeline, int(chain.start[0]), int(timeline.span[1]))
    waiting = np.flatnonzero(order.awaited >= 0)
    place = np.full(len(timeline.device) + 1, NOTHING, np.int64)
    place[index] = np.arange(len(index))
    work, awaited = place[order.index[waiting]], place[order.index[order.awaited[waiting]]]
    known = (work >= 0) & (awaited >= 0) & (awaited < work)
    after[work[known]] = awaited[known]
    return after


_BY_OPERATOR = (
    (WaitKind.ITEM, re.compile(r"^aten::(item|_local_scalar_dense|is_nonzero)$")),
    (
        WaitKind.SHAPE,
        re.compile(r"^aten::(nonzero|masked_select|_?unique|bincount|repeat_interleave)"),
    ),
    (WaitKind.TO_HOST, re.compile(r"^aten::(to|_to_copy|copy_|contiguous)$")),
)
_LAUNCHES = re.compile(r"LaunchKernel|LaunchCooperative|MemsetAsync|GraphLaunch")
_MEMORY = re.compile(
    r"^((cuda|hip)(Malloc|Free|HostAlloc|FreeHost)|cuMem(Create|Map|Unmap|Release|SetAccess|Alloc"
    r"|Free|HostAlloc))(_v\d+)?$"
)
_CALLS_OF_ONE = 4.0  # times the usual launch: longer ones waited at a full queue


def host_waits(
    timeline: Timeline, chain: HostChain, labels: StretchLabels, work: DeviceTasks, step: Column
) -> WaitTasks:
    """Blocking calls of the chain. Without a stream's number the whole device is waited for."""
    host = timeline.host
    blocking = blocking_calls(timeline)
    last = _last_owned(chain, len(host))[blocking.events]
    order = np.argsort(last, kind="stable")
    order = order[last[order] >= 0]
    calls, uploads, at = blocking.events[order], blocking.uploads[order], last[order]
    copies = np.flatnonzero(work.kind == DeviceKind.COPY)
    own_copy = np.full(len(host) + 1, NOTHING, np.int64)
    own_copy[timeline.device.launch[work.event[copies]]] = copies
    own_copy[-1] = NOTHING
    return WaitTasks(
        at=at,
        what=_kinds(timeline, calls, uploads),
        work=own_copy[calls],
        stream=_streams(timeline, calls),
        phase=labels.phase[at],
        place=timeline.host_names(nearest(host.parent, user_frames(timeline))[calls]),
        operator=timeline.host_names(labels.operator[at]),
        step=step[at],
        gone=np.zeros(len(calls), bool),
    )


def cost_without_waits(timeline: Timeline, chain: HostChain, waits: WaitTasks) -> Column:
    """Each stretch's duration without its waits: blocking calls, and launches into a full queue."""
    host, owner = timeline.host, chain.owner
    duration: Column = chain.duration.astype(np.float64)
    duration[waits.at] = np.minimum(duration[waits.at], RELEASE_NS)
    launches = (host.kind == HostKind.RUNTIME) & names_match(timeline, host.name, _LAUNCHES.search)
    rows = np.flatnonzero((owner >= 0) & launches[owner])
    for named in _by_value(host.name[owner[rows]]).values():
        own = rows[named]
        (usual,) = percentiles(duration[own], 25)
        duration[own[duration[own] > _CALLS_OF_ONE * usual]] = float(np.median(duration[own]))
    return duration


def is_driver_memory_call(timeline: Timeline, chain: HostChain) -> Column:
    """Which stretches are the driver's own long work, getting or giving back memory: recording
    adds microseconds to such a call, not a share of it."""
    host, owner = timeline.host, chain.owner
    calls = (host.kind == HostKind.RUNTIME) & names_match(timeline, host.name, _MEMORY.search)
    mask: Column = np.append(calls, False)[owner]
    return mask


def queued_shares(chain: HostChain, labels: StretchLabels, waits: WaitTasks, own: Column) -> Column:
    """The share of each phase's recorded host time that launches waited at a full queue."""
    whole = np.bincount(labels.phase, chain.duration, len(STEP_PHASES))
    lost = chain.duration - own
    lost[waits.at] = 0.0
    stood = np.bincount(labels.phase, lost, len(STEP_PHASES))
    shares: Column = np.divide(stood, whole, out=np.zeros(len(whole)), where=whole > 0)
    return shares


def _kinds(timeline: Timeline, calls: Column, uploads: Column) -> Column:
    host = timeline.host
    what = np.full(len(calls), WaitKind.OTHER, np.uint8)
    named = host.name[calls]
    what[names_match(timeline, named, lambda n: "Synchronize" in n)] = WaitKind.SYNCHRONIZE
    inside = nearest(host.parent, host.kind == HostKind.OPERATOR)[host.parent[calls]] != NOTHING
    what[inside] = WaitKind.OTHER
    for kind, pattern in reversed(_BY_OPERATOR):
        marked = (host.kind == HostKind.OPERATOR) & names_match(timeline, host.name, pattern.search)
        what[nearest(host.parent, marked)[calls] != NOTHING] = kind
    what[uploads] = WaitKind.TO_DEVICE
    what[names_match(timeline, named, lambda n: "Free" in n)] = WaitKind.FREE
    return what


def _streams(timeline: Timeline, calls: Column) -> Column:
    syncs, host = timeline.syncs, timeline.host
    stream = np.where(syncs.stream >= 0, syncs.stream, syncs.waits_for)
    known = (syncs.correlation >= 0) & (stream >= 0)
    stream_of = dict(zip(syncs.correlation[known].tolist(), stream[known].tolist(), strict=True))
    numbers = (stream_of.get(number, NOTHING) for number in host.correlation[calls].tolist())
    return np.fromiter(numbers, np.int64, len(calls))
