"""What the host did: operators, Python, threads, runtime calls, profiler overhead, serial time."""

from typing import Final

import numpy as np
from msgspec import Struct

from stepscope.analyze.timeline.attribution import is_operator, nearest
from stepscope.analyze.timeline.host_threads import (
    ByThread,
    busiest_threads,
    code_places,
    cut_stretches,
    is_work,
    self_time,
)
from stepscope.analyze.timeline.intervals import Spans, clip, merge, total
from stepscope.analyze.timeline.names import blocking_calls, user_frames
from stepscope.record.timeline import NOTHING, Column, HostKind, Timeline

_MOST_SERIAL_THREADS = 64
_LARGEST = 10


class SerialStretch(Struct, frozen=True):
    """One stretch; None where the recording does not tell."""

    start_ns: int
    duration_ns: int
    thread: str
    place: str | None  # what took most of it: the user's frame, else an operator or the like
    operator: str | None


class SerialTime(Struct, frozen=True):
    """All stretches together, and the largest."""

    total_ns: int
    share: float  # of the window
    largest: list[SerialStretch]


def serial_stretches(timeline: Timeline, start_ns: int, end_ns: int) -> SerialTime:
    """The serial stretches of a window.

    A thread works where it is inside operators, runtime calls or communication; where no thread
    is, one that is inside Python or an annotation does.
    """
    host = timeline.host
    begin, end, thread = _alone(timeline, start_ns, end_ns)
    every = ByThread(timeline)
    found = []
    for row in np.argsort(begin - end, kind="stable")[:_LARGEST].tolist():
        who, since, until = int(thread[row]), int(begin[row]), int(end[row])
        starts, ends, owners = cut_stretches(host, every.rows(who), since, until)
        known, place, operator = owners != NOTHING, None, None
        if known.any():  # what accounts for most of it
            events, which = np.unique(owners[known], return_inverse=True)
            at, spent = code_places(timeline, events), np.bincount(which, (ends - starts)[known])
            names, group = np.unique(at.where, return_inverse=True)
            most = int(np.argmax(np.bincount(group, spent)))
            heaviest = int(np.argmax(np.where(group == most, spent, -1)))
            place = timeline.name_of(int(names[most])) or None
            operator = timeline.name_of(int(at.operator[heaviest])) or None
        label = timeline.threads[who].name or f"thread {timeline.threads[who].tid}"
        found.append(SerialStretch(since, until - since, label, place, operator))
    total = int((end - begin).sum())
    return SerialTime(total, total / max(end_ns - start_ns, 1), found)


def _alone(timeline: Timeline, start_ns: int, end_ns: int) -> tuple[Column, Column, Column]:
    """Start, end and thread of each stretch, in order of time."""
    host, device = timeline.host, timeline.device
    inside = (host.kind == HostKind.PYTHON) | (host.kind == HostKind.ANNOTATION)
    layers = [_layer([(0, clip(merge(device.start, device.end), start_ns, end_ns))])]
    for chosen in (is_work(timeline), inside):
        threads = ByThread(timeline, chosen)
        most = busiest_threads(timeline, chosen, _MOST_SERIAL_THREADS)
        layers.append(_layer([(one, clip(threads.spans(one), start_ns, end_ns)) for one in most]))
    times = np.sort(np.concatenate([layer[0] for layer in layers]), kind="stable")
    (devices, _), (workers, worker), (insiders, insider) = (_at(layer, times) for layer in layers)
    alone = np.where(workers == 1, worker, NOTHING)
    alone = np.where((workers == 0) & (insiders == 1), insider, alone)
    alone = np.where(devices == 0, alone, NOTHING)
    changes = np.flatnonzero(np.diff(alone, prepend=-2)) if len(alone) else np.zeros(0, int)
    edges, who = np.append(times[changes], end_ns), alone[changes]
    real = who != NOTHING
    return edges[:-1][real], edges[1:][real], who[real]


_Layer = tuple[Column, Column, Column]
"""Times in order; how many are active and the sum of their numbers, from that time on."""


def _layer(active: list[tuple[int, Spans]]) -> _Layer:
    none = np.zeros(0, np.int64)
    times = np.concatenate([none, *(part for _, spans in active for part in spans)])
    signs = [np.repeat([1, -1], len(spans.start)) for _, spans in active]
    numbers = [n * sign for (n, _), sign in zip(active, signs, strict=True)]
    order = np.argsort(times, kind="stable")
    counted = np.cumsum(np.concatenate([none, *signs])[order])
    return times[order], counted, np.cumsum(np.concatenate([none, *numbers])[order])


def _at(layer: _Layer, times: Column) -> tuple[Column, Column]:
    """How many are active from each time on, and the one's number where it is one."""
    last = np.searchsorted(layer[0], times, "right")
    return np.append(0, layer[1])[last], np.append(0, layer[2])[last]


_MOST_ENTRIES: Final = 20
_MOST_THREADS: Final = 32
_WORDS: Final = ("operators", "annotations", "python", "runtime calls", "profiler")  # by HostKind


class HostEntry(Struct, frozen=True):
    """All host events with one name."""

    name: str
    count: int
    self_ns: int  # not inside anything recorded within
    total_ns: int  # inside itself counted once


class PythonLine(Struct, frozen=True):
    """One function of the user's, "file(line): function"."""

    name: str
    count: int
    self_ns: int  # in its own Python code
    with_calls_ns: int  # with what it called, up to the next function of the user's
    total_ns: int


class ThreadUse(Struct, frozen=True):
    """One host thread."""

    name: str
    process: str
    busy_ns: int  # inside operators, runtime calls or communication
    busy_share: float  # of the recording
    blocked_ns: int  # of that, in calls that wait for the device
    events: dict[str, int]  # kinds of work -> how many


class Overhead(Struct, frozen=True):
    """The profiler's own work, where it recorded any."""

    total_ns: int  # overlaps counted once
    share: float  # of the recording
    by_name: list[HostEntry]


class HostUse(Struct, frozen=True):
    """Lists are largest first; `lines` is None where no Python was recorded."""

    operators: list[HostEntry]
    lines: list[PythonLine] | None
    threads: list[ThreadUse]
    runtime: list[HostEntry]
    overhead: Overhead
    serial: SerialTime


def host_use(timeline: Timeline) -> HostUse | None:
    """What the host did over the whole recording; None where nothing of it was recorded."""
    host = timeline.host
    if not len(host):
        return None
    own = self_time(host)
    runtime, overhead = host.kind == HostKind.RUNTIME, host.kind == HostKind.OVERHEAD
    length = max(timeline.span[1] - timeline.span[0], 1)
    lost = total(merge(host.start[overhead], host.end[overhead]))
    return HostUse(
        operators=_entries(timeline, is_operator(timeline), own),
        lines=_lines(timeline, own) if (host.kind == HostKind.PYTHON).any() else None,
        threads=_threads(timeline, length),
        runtime=_entries(timeline, runtime, own),
        overhead=Overhead(lost, lost / length, _entries(timeline, overhead, own)),
        serial=serial_stretches(timeline, *timeline.span),
    )


def _entries(timeline: Timeline, chosen: Column, own: Column) -> list[HostEntry]:
    """The names with the most self time among some events."""
    names, (count, self_ns, total_ns) = _sums(timeline, np.flatnonzero(chosen), own)
    return [
        HostEntry(timeline.name_of(n), int(count[n]), int(self_ns[n]), int(total_ns[n]))
        for n in names[np.argsort(-self_ns[names], kind="stable")][:_MOST_ENTRIES].tolist()
    ]


def _sums(timeline: Timeline, rows: Column, own: Column) -> tuple[Column, list[Column]]:
    """The names that occur; by name: count, self time, and total without direct recursion."""
    host, size = timeline.host, len(timeline.names)
    rows = rows[host.name[rows] >= 0]
    name = host.name[rows]
    parents = host.parent[rows]
    outer = (parents == NOTHING) | (host.name[parents] != name)
    count = np.bincount(name, minlength=size)
    spent = np.bincount(name, own[rows], minlength=size)
    whole = np.bincount(name[outer], host.duration[rows[outer]], minlength=size)
    return np.flatnonzero(count), [count, spent, whole]


def _lines(timeline: Timeline, own: Column) -> list[PythonLine]:
    """The user's functions in which, with library code they call, most time was spent."""
    host, size = timeline.host, len(timeline.names)
    frames = user_frames(timeline)
    names, (count, self_ns, total_ns) = _sums(timeline, np.flatnonzero(frames), own)
    frame = nearest(host.parent, frames)[:-1]
    inside = np.flatnonzero(frame != NOTHING)
    charged = np.bincount(host.name[frame[inside]], own[inside], minlength=size)
    charged = np.minimum(charged, total_ns)  # events that overlap count twice
    return [
        PythonLine(
            timeline.name_of(n), int(count[n]), int(self_ns[n]), int(charged[n]), int(total_ns[n])
        )
        for n in names[np.argsort(-charged[names], kind="stable")][:_MOST_ENTRIES].tolist()
    ]


def _threads(timeline: Timeline, length: int) -> list[ThreadUse]:
    host = timeline.host
    working = ByThread(timeline, is_work(timeline))
    blocked = np.isin(np.arange(len(host)), blocking_calls(timeline).events)
    blocking = ByThread(timeline, blocked)
    threads, size = len(timeline.threads), len(HostKind)
    kinds = np.bincount(host.thread.astype(np.int64) * size + host.kind, minlength=threads * size)
    kinds = kinds.reshape(threads, size)
    found = []
    for thread in busiest_threads(timeline, np.ones(len(host), bool), _MOST_THREADS):
        about, busy = timeline.threads[thread], total(working.spans(thread))
        found.append(
            ThreadUse(
                name=about.name or f"thread {about.tid}",
                process=about.pid,
                busy_ns=busy,
                busy_share=busy / length,
                blocked_ns=total(blocking.spans(thread)),
                events={_WORDS[k]: int(kinds[thread, k]) for k in HostKind if kinds[thread, k]},
            )
        )
    return sorted(found, key=lambda use: -use.busy_ns)
