"""Device work as tasks: what launched it, and what it has to wait for."""

import numpy as np

from stepscope.analyze.timeline.attribution import attribute
from stepscope.analyze.timeline.categories import event_categories
from stepscope.analyze.timeline.critical_device import device_order
from stepscope.analyze.timeline.namematch import names_that
from stepscope.analyze.whatif.chain import Chain
from stepscope.analyze.whatif.labels import Labels
from stepscope.analyze.whatif.tasks import Work
from stepscope.record.timeline import NOTHING, Column, HostKind, Timeline


def device_tasks(timeline: Timeline, chain: Chain, labels: Labels, step: Column) -> Work:
    """The work launched within the chain, in that order.

    Work launched before it is left out: replayed again and again, the window leads into itself.
    Work whose launch was not recorded goes with the work before it on its stream.
    """
    device, host = timeline.device, timeline.host
    index, at = _launched(timeline, chain)
    order = np.lexsort((index, at))  # device events are ordered by start
    index, at = index[order], at[order]
    attribution = attribute(timeline)
    known = device.launch[index] >= 0
    own = np.where(known, labels.call[at], NOTHING) if len(index) else at
    operator = np.append(host.name, np.int32(NOTHING))[attribution.operator[index]]
    stream = device.stream[index].astype(np.int64)
    return Work(
        duration=device.duration[index].astype(np.float64),
        at=at,
        stream=stream,
        overlaps=_overlaps(timeline, index, stream),
        after=_awaited(timeline, chain, index, at, stream),
        kind=device.kind[index],
        name=device.name[index],
        category=event_categories(timeline, attribution)[index],
        phase=labels.phase[at] if len(index) else attribution.phase[index],
        operator=operator,
        call=own,
        bytes=device.bytes[index],
        event=index,
        step=step[at] if len(index) else at,
        graph=_from_graph(timeline, index),
        gone=np.zeros(len(index), bool),
    )


def _launched(timeline: Timeline, chain: Chain) -> tuple[Column, Column]:
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
            place[first] = -2  # before anything known on its stream: not of this window
    filled = np.maximum.accumulate(np.where(place != NOTHING, np.arange(len(place)), 0))
    place = place[filled]
    return whole[place >= 0], place[place >= 0]


def _last_owned(chain: Chain, size: int) -> Column:
    """For each host event the last stretch it owns, NOTHING for those without one."""
    last = np.full(size, NOTHING, np.int64)
    owned = np.flatnonzero(chain.owner >= 0)
    last[chain.owner[owned]] = owned
    return last


def _overlaps(timeline: Timeline, index: Column, stream: Column) -> Column:
    """How long before the end of the work before it on its stream work began; 0 for most."""
    device = timeline.device
    found = np.zeros(len(index), np.float64)
    for one in np.unique(stream).tolist():
        own = np.flatnonzero(stream == one)
        start = device.start[index[own]]
        ends = np.maximum.accumulate(start + device.duration[index[own]])
        found[own[1:]] = np.maximum(ends[:-1] - start[1:], 0)
    return found


def _awaited(timeline: Timeline, chain: Chain, index: Column, at: Column, stream: Column) -> Column:
    """For work that another stream's work had to precede, that work; else NOTHING.

    Told by the profiler's own record of waits where there is one, else as the critical path has
    it: what visibly held work back after the host had made some stream wait.
    """
    after = np.full(len(index), NOTHING, np.int64)
    if len(np.unique(stream)) < 2:
        return after
    told = (timeline.syncs.stream >= 0) & (timeline.syncs.waits_for >= 0)
    if told.any():
        return _told(timeline, chain, at, stream, after)
    order = device_order(timeline, int(chain.start[0]), int(timeline.span[1]))
    held = np.flatnonzero(order.awaited >= 0)
    place = np.full(len(timeline.device) + 1, NOTHING, np.int64)
    place[index] = np.arange(len(index))
    work, awaited = place[order.index[held]], place[order.index[order.awaited[held]]]
    known = (work >= 0) & (awaited >= 0) & (awaited < work)
    after[work[known]] = awaited[known]
    return after


def _told(timeline: Timeline, chain: Chain, at: Column, stream: Column, after: Column) -> Column:
    """The first work of a stream after the call that made it wait, and what was waited for."""
    host, syncs = timeline.host, timeline.syncs
    calls = np.flatnonzero((host.kind == HostKind.RUNTIME) & (host.correlation >= 0))
    call_of = dict(zip(host.correlation[calls].tolist(), calls.tolist(), strict=True))
    for n in np.flatnonzero((syncs.stream >= 0) & (syncs.waits_for >= 0)).tolist():
        call = call_of.get(int(syncs.correlation[n]))
        if call is None or not chain.start[0] <= host.start[call] < chain.end[-1]:
            continue
        place = int(chain.at(host.start[[call]])[0])
        following = np.flatnonzero((at > place) & (stream == syncs.stream[n]))
        earlier = np.flatnonzero((at <= place) & (stream == syncs.waits_for[n]))
        if len(following) and len(earlier):
            after[following[0]] = max(after[following[0]], earlier[-1])
    return after


def _from_graph(timeline: Timeline, index: Column) -> Column:
    device, host = timeline.device, timeline.host
    launch = device.launch[index]
    graphs = names_that(timeline, host.name, lambda name: "GraphLaunch" in name)
    found: Column = (device.graph[index] > 0) | (np.append(graphs, False)[launch])
    return found
