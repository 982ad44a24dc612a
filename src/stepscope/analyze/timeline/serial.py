"""Serial stretches: one host thread worked alone and no device did anything."""

from dataclasses import dataclass

import numpy as np

from stepscope.analyze.timeline.hostat import places
from stepscope.analyze.timeline.intervals import Spans, clip, merge
from stepscope.analyze.timeline.stretches import stretches
from stepscope.analyze.timeline.threads import ByThread, busiest, works
from stepscope.record.timeline import NOTHING, Column, HostKind, Timeline

_THREADS = 64
_LARGEST = 10


@dataclass(frozen=True, slots=True)
class SerialStretch:
    """One stretch; None where the recording does not tell."""

    start_ns: int
    duration_ns: int
    thread: str
    place: str | None  # what took most of it: the user's frame, else an operator or the like
    operator: str | None


@dataclass(frozen=True, slots=True)
class Serial:
    """All stretches together, and the largest."""

    total_ns: int
    share: float  # of the window
    largest: list[SerialStretch]


def serial(timeline: Timeline, start_ns: int, end_ns: int) -> Serial:
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
        starts, ends, owners = stretches(host, every.rows(who), since, until)
        place, operator = _most(timeline, ends - starts, owners)
        label = timeline.threads[who].name or f"thread {timeline.threads[who].tid}"
        found.append(SerialStretch(since, until - since, label, place, operator))
    total = int((end - begin).sum())
    return Serial(total, total / max(end_ns - start_ns, 1), found)


def _most(timeline: Timeline, length: Column, owners: Column) -> tuple[str | None, str | None]:
    """Place and operator that account for most of some stretches."""
    known = owners != NOTHING
    if not known.any():
        return None, None
    events, which = np.unique(owners[known], return_inverse=True)
    at = places(timeline, events)
    spent = np.bincount(which, length[known])
    names, group = np.unique(at.where, return_inverse=True)
    most = int(np.argmax(np.bincount(group, spent)))
    heaviest = int(np.argmax(np.where(group == most, spent, -1)))
    return (
        timeline.name_of(int(names[most])) or None,
        timeline.name_of(int(at.operator[heaviest])) or None,
    )


def _alone(timeline: Timeline, start_ns: int, end_ns: int) -> tuple[Column, Column, Column]:
    """Start, end and thread of each stretch, in order of time."""
    host, device = timeline.host, timeline.device
    work = works(timeline)
    inside = (host.kind == HostKind.PYTHON) | (host.kind == HostKind.ANNOTATION)
    busy = clip(merge(device.start, device.start + device.duration), start_ns, end_ns)
    layers = [_layer([(0, busy)])]
    for chosen in (work, inside):
        threads = ByThread(timeline, chosen)
        layers.append(
            _layer(
                [
                    (thread, clip(threads.spans(thread), start_ns, end_ns))
                    for thread in busiest(timeline, chosen, _THREADS)
                ]
            )
        )
    times = np.sort(np.concatenate([layer[0] for layer in layers]), kind="stable")
    (devices, _), (workers, worker), (insiders, insider) = (_at(layer, times) for layer in layers)
    alone = np.where(workers == 1, worker, NOTHING)
    alone = np.where((workers == 0) & (insiders == 1), insider, alone)
    alone = np.where(devices == 0, alone, NOTHING)
    changes = np.flatnonzero(np.diff(alone, prepend=-2)) if len(alone) else np.zeros(0, int)
    edges, who = times[changes], alone[changes]
    after = np.append(edges[1:], end_ns)[: len(edges)]
    real = who != NOTHING
    return edges[real], after[real], who[real]


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
