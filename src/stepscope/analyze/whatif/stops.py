"""Where the host waits for the device, as tasks, and what a stretch costs without the waiting."""

import re

import numpy as np

from stepscope.analyze.timeline.attribution import nearest
from stepscope.analyze.timeline.blocking import blocking_calls
from stepscope.analyze.timeline.namematch import names_that
from stepscope.analyze.timeline.userframes import is_users_frame
from stepscope.analyze.whatif.chain import Chain
from stepscope.analyze.whatif.labels import Labels
from stepscope.analyze.whatif.priors import RELEASE_NS
from stepscope.analyze.whatif.tasks import Waited, Waits, Work
from stepscope.record.rows import STEP_PHASES
from stepscope.record.timeline import NOTHING, Column, DeviceKind, HostKind, Timeline

_BY_OPERATOR = (
    (Waited.ITEM, re.compile(r"^aten::(item|_local_scalar_dense|is_nonzero)$")),
    (Waited.SHAPE, re.compile(r"^aten::(nonzero|masked_select|unique|_unique|unique_dim|bincount"
                              r"|repeat_interleave)")),
    (Waited.TO_HOST, re.compile(r"^aten::(to|_to_copy|copy_|contiguous)$")),
)  # fmt: skip
_LAUNCHES = re.compile(r"LaunchKernel|LaunchCooperative|MemsetAsync|GraphLaunch")
_MEMORY = re.compile(
    r"^((cuda|hip)(Malloc|Free|HostAlloc|FreeHost)|cuMem(Create|Map|Unmap|Release|SetAccess|Alloc"
    r"|Free|HostAlloc))(_v\d+)?$"
)
_CALLS_OF_ONE = 4.0  # times the usual launch: beyond, it stood at a full queue


def host_waits(timeline: Timeline, chain: Chain, labels: Labels, work: Work, step: Column) -> Waits:
    """Blocking calls of the chain. Without a stream's number the whole device is waited for."""
    host = timeline.host
    blocking = blocking_calls(timeline)
    last = np.full(len(host) + 1, NOTHING, np.int64)
    owned = np.flatnonzero(chain.owner >= 0)
    last[chain.owner[owned]] = owned
    inside = last[blocking.events] >= 0
    calls, uploads = blocking.events[inside], blocking.uploads[inside]
    at = last[calls]
    order = np.argsort(at, kind="stable")
    calls, uploads, at = calls[order], uploads[order], at[order]
    frames = (host.kind == HostKind.PYTHON) & names_that(timeline, host.name, is_users_frame)
    names = np.append(host.name, np.int32(NOTHING))
    return Waits(
        at=at,
        what=_kinds(timeline, calls, uploads),
        work=_own_copy(timeline, work, calls),
        stream=_streams(timeline, calls),
        phase=labels.phase[at],
        place=names[nearest(host.parent, frames)[calls]],
        operator=names[labels.operator[at]],
        step=step[at],
        gone=np.zeros(len(calls), bool),
    )


def own_cost(timeline: Timeline, chain: Chain, waits: Waits) -> Column:
    """Each stretch without what it waited: blocking calls, and launches into a full queue."""
    host, owner = timeline.host, chain.owner
    duration: Column = chain.duration.astype(np.float64)
    duration[waits.at] = np.minimum(duration[waits.at], RELEASE_NS)
    launches = (host.kind == HostKind.RUNTIME) & names_that(timeline, host.name, _LAUNCHES.search)
    rows = np.flatnonzero((owner >= 0) & launches[owner])
    for name in np.unique(host.name[owner[rows]]).tolist():
        own = rows[host.name[owner[rows]] == name]
        usual = float(np.percentile(duration[own], 25))
        duration[own[duration[own] > _CALLS_OF_ONE * usual]] = float(np.median(duration[own]))
    return duration


def by_driver(timeline: Timeline, chain: Chain) -> Column:
    """Which stretches are the driver's own long work, getting or giving back memory: recording
    adds microseconds to such a call, not a share of it."""
    host, owner = timeline.host, chain.owner
    calls = (host.kind == HostKind.RUNTIME) & names_that(timeline, host.name, _MEMORY.search)
    mask: Column = np.append(calls, False)[owner]
    return mask


def queued_shares(chain: Chain, labels: Labels, waits: Waits, own: Column) -> Column:
    """Of each phase's recorded host time, the share that launches stood at a full queue."""
    whole = np.bincount(labels.phase, chain.duration, len(STEP_PHASES))
    lost = chain.duration - own
    lost[waits.at] = 0.0
    stood = np.bincount(labels.phase, lost, len(STEP_PHASES))
    shares: Column = np.divide(stood, whole, out=np.zeros(len(whole)), where=whole > 0)
    return shares


def _kinds(timeline: Timeline, calls: Column, uploads: Column) -> Column:
    host = timeline.host
    what = np.full(len(calls), Waited.OTHER, np.uint8)
    named = host.name[calls]
    what[names_that(timeline, named, lambda n: "Synchronize" in n)] = Waited.SYNCHRONIZE
    inside = nearest(host.parent, host.kind == HostKind.OPERATOR)[host.parent[calls]] != NOTHING
    what[inside] = Waited.OTHER
    for kind, pattern in reversed(_BY_OPERATOR):
        marked = (host.kind == HostKind.OPERATOR) & names_that(timeline, host.name, pattern.search)
        what[nearest(host.parent, marked)[calls] != NOTHING] = kind
    what[uploads] = Waited.TO_DEVICE
    what[names_that(timeline, named, lambda n: "Free" in n)] = Waited.FREE
    return what


def _own_copy(timeline: Timeline, work: Work, calls: Column) -> Column:
    """The copy that a call made and waits for, NOTHING for plain synchronisations."""
    found = np.full(len(timeline.host) + 1, NOTHING, np.int64)
    copies = np.flatnonzero(work.kind == DeviceKind.COPY)
    found[timeline.device.launch[work.event[copies]]] = copies
    found[-1] = NOTHING
    return found[calls]


def _streams(timeline: Timeline, calls: Column) -> Column:
    syncs, host = timeline.syncs, timeline.host
    known = np.flatnonzero(
        (syncs.correlation >= 0) & ((syncs.stream >= 0) | (syncs.waits_for >= 0))
    )
    told = {
        int(syncs.correlation[n]): int(
            syncs.stream[n] if syncs.stream[n] >= 0 else syncs.waits_for[n]
        )
        for n in known.tolist()
    }
    numbers = (told.get(number, NOTHING) for number in host.correlation[calls].tolist())
    return np.fromiter(numbers, np.int64, len(calls))
