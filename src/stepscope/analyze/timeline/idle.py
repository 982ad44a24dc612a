"""Why each device was idle within the steps, and where in the program the host was then.

A gap ends with some work, and that work's launch cuts it in two. Until the launch the device
waits for the host: the launching thread (or the main one, while that has nothing open) sat in a
loader, in a collective on the host, in a blocking copy to the device, in a synchronisation, or
was simply busy. From the launch on it is the launch's own latency.

A blocking call also costs what comes after it: had the host not been blocked while the device
worked, it would have been that much further ahead. So the host's busy time after the call is the
call's too, up to the time for which it blocked the host while the device was busy; only what is
left is the host's own slowness. A later call takes over where it blocked for longer than what is
left of that.
"""

import re
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from stepscope.analyze.timeline.host_threads import code_places, innermost_at, main_thread
from stepscope.analyze.timeline.intervals import (
    DeviceWork,
    Spans,
    covered,
    device_work,
    difference,
    intersection,
    merge,
    span,
    union,
)
from stepscope.analyze.timeline.names import (
    BlockingCalls,
    blocking_calls,
    communication_kernels,
    names_match,
)
from stepscope.analyze.timeline.steps import RecordedSteps
from stepscope.record.kinds import IdleCause
from stepscope.record.timeline import (
    NOTHING,
    Column,
    HostKind,
    Timeline,
    distinct_rows,
    distinct_values,
)

IDLE_CAUSES = tuple(IdleCause)


class IdlePieces(NamedTuple):
    """Parts of gaps, in order of time; together they are all the idle time."""

    start: Column
    end: Column
    cause: Column  # an index into IDLE_CAUSES
    event: Column  # the host event to blame; NOTHING: whatever the host did then


class _IdlePieceList:
    """Pieces as they are found."""

    def __init__(self) -> None:
        self._rows: list[tuple[Column, ...]] = []

    def add(
        self, which: Column, start: Column, end: Column, cause: IdleCause, event: Column | None
    ) -> None:
        """Those rows of the columns that are meant and not empty; without events whatever the host
        did then is to blame."""
        rows = np.flatnonzero(which & (end > start))
        code = np.full(len(rows), IDLE_CAUSES.index(cause))
        blamed = np.full(len(rows), NOTHING) if event is None else event[rows]
        self._rows.append((start[rows], end[rows], code, blamed))

    def sorted(self) -> IdlePieces:
        columns = [np.concatenate(column) for column in zip(*self._rows, strict=True)]
        order = np.argsort(columns[0], kind="stable")
        return IdlePieces(*(column[order] for column in columns))


@dataclass(frozen=True, slots=True)
class _Gaps:
    """One row per gap, in order of time."""

    start: Column
    end: Column
    next: Column  # the device event that ended it, NOTHING where none follows
    launch: Column  # the runtime call that launched that, as a host event, NOTHING if unknown
    launch_start: Column  # the gap's end where there is no such call
    launch_end: Column
    thread: Column  # that made the call, or the main thread


_MOST_LAUNCHERS = 64  # threads that are told apart; what others launched is taken as the main one's


def find_gaps(timeline: Timeline, work: DeviceWork, start: int, end: int, main: int) -> _Gaps:
    """The gaps of a device within [start, end)."""
    idle = difference(span(start, end), work.busy)
    host, device = timeline.host, timeline.device
    real = work.events[device.duration[work.events] > 0]
    at = np.searchsorted(device.start[real], idle.end, side="left")
    upcoming = np.append(real, NOTHING)[at]
    launch = np.append(device.launch, NOTHING)[upcoming]
    known = launch >= 0
    began, ended, thread = idle.end.copy(), idle.end.copy(), np.full(len(at), main, np.int64)
    began[known] = host.start[launch[known]]
    ended[known] = began[known] + host.duration[launch[known]]
    thread[known] = host.thread[launch[known]]
    if len(counts := np.bincount(thread[known])) > _MOST_LAUNCHERS:
        rare = np.argsort(-counts, kind="stable")[_MOST_LAUNCHERS:]
        thread[np.isin(thread, rare)] = main
    return _Gaps(idle.start, idle.end, upcoming, launch, began, ended, thread)


_LOADER = re.compile(
    r"^enumerate\(DataLoader\)#|^data_wait$|(^|/)torch/utils/data/dataloader\.py\("
    r"|(^|/)(multiprocessing/queues|queue)\.py\(\d{1,9}\): get$"
)
_RANKS = re.compile(r"^(gloo|mpi):|_distributed_c10d\.Work\b.{0,40}wait|wait.{0,40}c10d\.Work\b")


class HostWaits:
    """The waits of each thread as spans: `loader`, `other_ranks`, `copy`, `synchronisation`."""

    def __init__(self, timeline: Timeline, blocking: BlockingCalls) -> None:
        host = timeline.host
        events = np.flatnonzero(np.isin(host.kind, (HostKind.ANNOTATION, HostKind.PYTHON)))
        names = host.name[events]
        self._host = host
        self._by_cause = {
            IdleCause.LOADER: events[names_match(timeline, names, _LOADER.search)],
            IdleCause.OTHER_RANKS: events[names_match(timeline, names, _RANKS.search)],
            IdleCause.COPY: blocking.events[blocking.uploads],
            IdleCause.SYNCHRONISATION: blocking.events[~blocking.uploads],
        }

    def of_thread(self, thread: int) -> dict[IdleCause, Spans]:
        """One thread's waits; a cause takes precedence over those after it where they overlap."""
        return {
            cause: self._spans(events[self._host.thread[events] == thread])
            for cause, events in self._by_cause.items()
        }

    def of_main_while_idle(self, thread: int, main: int) -> dict[IdleCause, Spans]:
        """The main thread's waits while this thread had nothing open: it is the other's turn."""
        own = (self._host.thread == thread) & (self._host.kind != HostKind.OVERHEAD)
        active = self._spans(own)
        return {cause: difference(spans, active) for cause, spans in self.of_thread(main).items()}

    def _spans(self, events: Column) -> Spans:
        start = self._host.start[events]
        return merge(start, start + self._host.duration[events])


def _charge_blocking_calls(
    timeline: Timeline, work: DeviceWork, threads: Column, busy: Spans, parts: _IdlePieceList
) -> None:
    """Split idle time under a busy host between the host and the calls that blocked it."""
    host, blocking = timeline.host, blocking_calls(timeline)
    own = np.isin(host.thread[blocking.events], threads)
    calls, uploads = blocking.events[own], blocking.uploads[own]
    start, end = host.start[calls], host.end[calls]
    blocked_ns = covered(work.busy, end) - covered(work.busy, start)
    order = np.argsort(end, kind="stable")
    order = order[blocked_ns[order] > 0]
    sums = np.concatenate(([0], np.cumsum(busy.end - busy.start)))
    reached = np.append(covered(busy, end[order]), sums[-1]).tolist()
    charged: list[tuple[int, int, int]] = []  # from, to, in sums of idle time; call
    credit, owner, at = 0, NOTHING, 0
    blocks = [*zip(blocked_ns[order].tolist(), order.tolist(), strict=True), (0, NOTHING)]
    for now, (blocked, call) in zip(reached, blocks, strict=True):
        spent = min(credit, now - at)
        if spent:
            charged.append((at, at + spent, owner))
        credit, at = credit - spent, now
        if blocked > credit:
            credit, owner = blocked, call
    if not charged:
        parts.add(np.ones(len(busy.start), bool), *busy, IdleCause.HOST, None)
        return
    first, until, owners = np.array(charged, np.int64).T
    # The times by which the idle time has summed up so far.
    at_first = np.searchsorted(sums[:-1], first, side="right") - 1
    at_until = np.maximum(np.searchsorted(sums, until, side="left") - 1, 0)
    first = busy.start[at_first] + first - sums[at_first]
    until = busy.start[at_until] + until - sums[at_until]
    cuts = distinct_values(np.concatenate((busy.start, busy.end, first, until)))
    left, right = cuts[:-1], cuts[1:]
    inside = covered(busy, right) > covered(busy, left)
    left, right = left[inside], right[inside]
    at_call = np.searchsorted(first, left, side="right") - 1
    by_call = (at_call >= 0) & (left < until[np.maximum(at_call, 0)])
    call = owners[np.maximum(at_call, 0)]
    parts.add(~by_call, left, right, IdleCause.HOST, None)
    parts.add(by_call & uploads[call], left, right, IdleCause.COPY, calls[call])
    parts.add(by_call & ~uploads[call], left, right, IdleCause.SYNCHRONISATION, calls[call])


SOON_NS = 20_000  # a device needs no longer from one queued kernel to the next, nor to start one


def find_idle_causes(
    timeline: Timeline,
    work: DeviceWork,
    gaps: _Gaps,
    blocking: BlockingCalls,
    waits: HostWaits,
    main: int,
) -> IdlePieces:
    """The pieces of a device's gaps."""
    last = gaps.next < 0
    known = gaps.launch >= 0
    queued = (known & (gaps.launch_end <= gaps.start)) | (~known & ~last)
    short = gaps.end - gaps.start <= SOON_NS
    late = ~queued if main != NOTHING else ~queued & known
    reach = np.clip(gaps.launch_start, gaps.start, gaps.end)
    started = np.where(last, gaps.end, np.maximum(gaps.launch_end, reach) + SOON_NS)
    started = np.minimum(started, gaps.end)
    uploads = late & np.isin(gaps.launch, blocking.events[blocking.uploads])
    talks = communication_kernels(timeline)[gaps.next] & ~last

    parts = _IdlePieceList()
    parts.add(queued & short, gaps.start, gaps.end, IdleCause.BETWEEN_KERNELS, gaps.launch)
    stalled = queued & ~short
    parts.add(stalled & talks & known, gaps.start, gaps.end, IdleCause.OTHER_RANKS, gaps.launch)
    parts.add(stalled & ~(talks & known), gaps.start, gaps.end, IdleCause.UNKNOWN, gaps.launch)
    parts.add(~queued & ~late, gaps.start, gaps.end, IdleCause.UNKNOWN, gaps.launch)
    parts.add(uploads, reach, gaps.end, IdleCause.COPY, gaps.launch)
    rest = late & ~uploads
    parts.add(rest & talks, started, gaps.end, IdleCause.OTHER_RANKS, gaps.launch)
    parts.add(rest & ~talks, started, gaps.end, IdleCause.UNKNOWN, gaps.launch)

    busy = merge(reach[rest], started[rest])
    for thread in distinct_values(gaps.thread[late]).tolist():
        own = late & (gaps.thread == thread)
        left = merge(gaps.start[own], reach[own])
        sources = [waits.of_thread(thread)]
        if thread != main:
            sources.append(waits.of_main_while_idle(thread, main))
        for source in sources:
            for cause, spans in source.items():
                hit = intersection(left, spans)
                left = difference(left, hit)
                parts.add(np.ones(len(hit.start), bool), *hit, cause, None)
        busy = union(busy, left)
    threads = distinct_values(np.append(gaps.thread[late], main))
    _charge_blocking_calls(timeline, work, threads, busy, parts)
    return parts.sorted()


_LISTED = 10
_SAMPLE_NS = 50_000  # long pieces are looked at this often,
_SAMPLES = 20  # but not more often than so


class IdlePlace(Struct, frozen=True):
    """A place and the idle time due to it."""

    where: str | None  # source line or operator on the host; None: nothing was recorded there
    operator: str | None  # the innermost operator, None outside of any
    total_ns: int


class _PlaceSamples(NamedTuple):
    """Looks at the host during the pieces; their weights add up to the pieces' lengths."""

    piece: Column
    weight: Column
    where: Column  # into Timeline.names
    operator: Column


def _sample_places(
    timeline: Timeline, pieces: IdlePieces, thread: Column, main: int
) -> _PlaceSamples:
    """Where the host was in each piece; thread is the launching one of each.

    A piece without an event to blame is given to what its thread, or else the main one, was doing,
    seen at evenly spread times.
    """
    length = pieces.end - pieces.start
    parts = np.where(pieces.event >= 0, 1, np.clip(length // _SAMPLE_NS, 1, _SAMPLES))
    piece = np.repeat(np.arange(len(length)), parts)
    nth = np.arange(len(piece)) - np.repeat(np.cumsum(parts) - parts, parts)
    begin = _part_of(length[piece], nth, parts[piece])
    weight = _part_of(length[piece], nth + 1, parts[piece]) - begin
    event = pieces.event[piece].astype(np.int64)
    looked = np.flatnonzero(event < 0)
    time = pieces.start[piece[looked]] + begin[looked] + weight[looked] // 2
    event[looked] = innermost_at(timeline, thread[piece[looked]], time)
    bare = event[looked] < 0
    event[looked[bare]] = innermost_at(timeline, np.full(int(bare.sum()), main), time[bare])
    return _PlaceSamples(piece, weight, *code_places(timeline, event))


def _part_of(length: Column, nth: Column, parts: Column) -> Column:
    """`length * nth // parts`, also where the product needs more than 64 bits."""
    whole: Column = length // parts * nth + length % parts * nth // parts
    return whole


def _costliest_places(timeline: Timeline, samples: _PlaceSamples) -> list[IdlePlace]:
    places, member = distinct_rows([samples.where, samples.operator])
    totals = np.bincount(member, samples.weight, len(places)).astype(np.int64)
    found = []
    for n in np.argsort(-totals, kind="stable")[:_LISTED].tolist():
        where, operator = (timeline.name_of(name) or None for name in places[n])
        found.append(IdlePlace(where, operator, int(totals[n])))
    return found


_LARGEST = 5


class IdleGap(Struct, frozen=True):
    """What one cause had of one gap."""

    device: int
    step: str
    start_ns: int  # of the first part that is this cause's
    duration_ns: int  # of all those parts
    where: str | None  # source line or operator on the host; None: nothing was recorded there
    operator: str | None


class IdleTime(Struct, frozen=True):
    """One cause of a device's idle time."""

    total_ns: int
    gaps: int  # how many had a part due to it
    steps_ns: list[int]  # its time in each step
    largest: list[IdleGap]
    places: list[IdlePlace]  # costliest first


@dataclass(frozen=True, slots=True)
class DeviceIdle:
    """A device's idle time within the steps; the causes add up to it exactly."""

    device: int
    idle_ns: int
    causes: dict[IdleCause, IdleTime]


def explain_idle(timeline: Timeline, steps: RecordedSteps) -> list[DeviceIdle]:
    """The idle time of each device that did anything, by cause."""
    blocking = blocking_calls(timeline)
    waits, main = HostWaits(timeline, blocking), main_thread(timeline)
    start, end = steps.steps[0].start_ns, steps.steps[-1].end_ns
    found = []
    for one in device_work(timeline):
        gaps = find_gaps(timeline, one, start, end, main)
        pieces = find_idle_causes(timeline, one, gaps, blocking, waits, main)
        idle = int((gaps.end - gaps.start).sum())
        gap = np.searchsorted(gaps.start, pieces.start, side="right") - 1
        samples = _sample_places(timeline, pieces, gaps.thread[gap], main)
        causes = {
            cause: _idle_cause(timeline, steps, one.device, pieces, gap, samples, code)
            for code, cause in enumerate(IDLE_CAUSES)
        }
        found.append(DeviceIdle(one.device, idle, causes))
    return found


def _idle_cause(
    timeline: Timeline,
    steps: RecordedSteps,
    device: int,
    pieces: IdlePieces,
    gap: Column,
    samples: _PlaceSamples,
    code: int,
) -> IdleTime:
    """One cause's share; `gap` is the gap that each piece is part of."""
    samples = _PlaceSamples(*(column[pieces.cause[samples.piece] == code] for column in samples))
    mine = pieces.cause == code
    begin, length, gap_of_piece = pieces.start[mine], (pieces.end - pieces.start)[mine], gap[mine]
    edges = np.array([steps.steps[0].start_ns, *(s.end_ns for s in steps.steps)])
    in_steps = np.diff(covered(merge(begin, begin + length), edges))
    members, first = np.unique(gap_of_piece, return_index=True)
    sums = np.add.reduceat(length, first) if len(first) else length
    largest = []
    for index in np.argsort(-sums, kind="stable")[:_LARGEST].tolist():
        start = int(begin[first[index]])
        own = gap[samples.piece] == members[index]
        place = _costliest_places(timeline, _PlaceSamples(*(column[own] for column in samples)))[0]
        step = steps.steps[int(np.searchsorted(edges, start, side="right")) - 1].name
        duration = int(sums[index])
        largest.append(IdleGap(device, step, start, duration, place.where, place.operator))
    return IdleTime(
        total_ns=int(sums.sum()),
        gaps=len(members),
        steps_ns=in_steps.tolist(),
        largest=largest,
        places=_costliest_places(timeline, samples),
    )
