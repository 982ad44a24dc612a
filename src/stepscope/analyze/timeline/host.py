"""What the host did: operators, Python, threads, runtime calls, the profiler's own work."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from stepscope.analyze.timeline.attribution import is_operator, nearest
from stepscope.analyze.timeline.blocking import blocking_calls
from stepscope.analyze.timeline.intervals import merge, total
from stepscope.analyze.timeline.namematch import names_that
from stepscope.analyze.timeline.serial import Serial, serial
from stepscope.analyze.timeline.threads import ByThread, busiest, self_time, works
from stepscope.analyze.timeline.userframes import is_users_frame
from stepscope.record.timeline import NOTHING, Column, HostKind, Timeline

_MOST: Final = 20
_THREADS: Final = 32
_WORDS: Final = {
    HostKind.OPERATOR: "operators", HostKind.ANNOTATION: "annotations", HostKind.PYTHON: "python",
    HostKind.RUNTIME: "runtime calls", HostKind.OVERHEAD: "profiler",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class HostEntry:
    """All host events with one name."""

    name: str
    count: int
    self_ns: int  # not inside anything recorded within
    total_ns: int  # inside itself counted once


@dataclass(frozen=True, slots=True)
class PythonLine:
    """One function of the user's, "file(line): function"."""

    name: str
    count: int
    self_ns: int  # in its own Python code
    with_calls_ns: int  # with what it called, up to the next function of the user's
    total_ns: int


@dataclass(frozen=True, slots=True)
class ThreadUse:
    """One host thread."""

    name: str
    process: str
    busy_ns: int  # inside operators, runtime calls or communication
    busy_share: float  # of the recording
    blocked_ns: int  # of that, in calls that wait for the device
    events: dict[str, int]  # kinds of work -> how many


@dataclass(frozen=True, slots=True)
class Overhead:
    """The profiler's own work, where it recorded any."""

    total_ns: int  # overlaps counted once
    share: float  # of the recording
    by_name: list[HostEntry]


@dataclass(frozen=True, slots=True)
class HostUse:
    """Lists are largest first; `lines` is None where no Python was recorded."""

    operators: list[HostEntry]
    lines: list[PythonLine] | None
    threads: list[ThreadUse]
    runtime: list[HostEntry]
    overhead: Overhead
    serial: Serial


def host_use(timeline: Timeline) -> HostUse | None:
    """What the host did over the whole recording; None where nothing of it was recorded."""
    host = timeline.host
    if not len(host):
        return None
    own = self_time(host)
    runtime, overhead = host.kind == HostKind.RUNTIME, host.kind == HostKind.OVERHEAD
    length = max(timeline.span[1] - timeline.span[0], 1)
    lost = total(merge(host.start[overhead], host.start[overhead] + host.duration[overhead]))
    return HostUse(
        operators=_entries(timeline, is_operator(timeline), own),
        lines=_lines(timeline, own) if (host.kind == HostKind.PYTHON).any() else None,
        threads=_threads(timeline, length),
        runtime=_entries(timeline, runtime, own),
        overhead=Overhead(lost, lost / length, _entries(timeline, overhead, own)),
        serial=serial(timeline, *timeline.span),
    )


def _entries(timeline: Timeline, chosen: Column, own: Column) -> list[HostEntry]:
    """The names with the most self time among some events."""
    names, (count, self_ns, total_ns) = _sums(timeline, np.flatnonzero(chosen), own)
    return [
        HostEntry(timeline.name_of(n), int(count[n]), int(self_ns[n]), int(total_ns[n]))
        for n in names[np.argsort(-self_ns[names], kind="stable")][:_MOST].tolist()
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
    frames = (host.kind == HostKind.PYTHON) & names_that(timeline, host.name, is_users_frame)
    names, (count, self_ns, total_ns) = _sums(timeline, np.flatnonzero(frames), own)
    frame = nearest(host.parent, frames)[:-1]
    inside = np.flatnonzero(frame != NOTHING)
    charged = np.bincount(host.name[frame[inside]], own[inside], minlength=size)
    charged = np.minimum(charged, total_ns)  # events that overlap count twice
    return [
        PythonLine(
            timeline.name_of(n), int(count[n]), int(self_ns[n]), int(charged[n]), int(total_ns[n])
        )
        for n in names[np.argsort(-charged[names], kind="stable")][:_MOST].tolist()
    ]


def _threads(timeline: Timeline, length: int) -> list[ThreadUse]:
    host = timeline.host
    working = ByThread(timeline, works(timeline))
    blocked = np.zeros(len(host), bool)
    blocked[blocking_calls(timeline).events] = True
    blocking = ByThread(timeline, blocked)
    kinds = np.bincount(
        host.thread.astype(np.int64) * len(HostKind) + host.kind,
        minlength=len(timeline.threads) * len(HostKind),
    ).reshape(-1, len(HostKind))
    found = []
    for thread in busiest(timeline, np.ones(len(host), bool), _THREADS):
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
