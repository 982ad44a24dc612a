"""The replay: tasks tiled several times in a row, as their dependencies allow.

Nothing happens at a recorded time. The host goes along its chain; work begins when it has been
launched, when its stream is free and when what it waits for has ended; the host stops where it
waits for the device, or where too many launches are queued. The first tiles settle, the slope of
the others is the step.
"""

from collections import deque
from dataclasses import dataclass

import numpy as np

from stepscope.analyze.whatif.loading import batch_cost_ns, loader_slope_ns, processor_bound_ns
from stepscope.analyze.whatif.priors import BETWEEN_NS, GRAPH_BETWEEN_NS, LATENCY_NS
from stepscope.analyze.whatif.tasks import Tasks
from stepscope.record.timeline import Column

_LEAST_STEPS = 24
_LEAST_TILES = 4
_NEAR = 1.03  # so close to a limit, that is what decides


@dataclass(frozen=True, slots=True)
class Replayed:
    """Times of one step in ms; `step_ms` is the largest slope."""

    step_ms: float
    host_ms: float
    """The host's own time, without any waiting."""
    device_ms: float
    """The busiest stream's work, without any idle time but the pauses between kernels."""
    loader_ms: float
    """What the loader's workers need for a step's batches; 0 without workers."""
    limited_by: str
    """host, device, loader, or turns: host and device wait for each other."""


def replay(tasks: Tasks) -> Replayed:
    """Deterministic; the work grows with launches and waits, not with host events."""
    chain = host_times(tasks)
    total = float(chain.sum())
    tiles = max(_LEAST_TILES, -(-_LEAST_STEPS // tasks.steps))
    host_ends, device_ends = run_tiles(tasks, chain, tiles)
    settled = tiles // 2
    spans = (tiles - settled) * tasks.steps
    host = (host_ends[-1] - host_ends[settled - 1]) / spans
    device = (device_ends[-1] - device_ends[settled - 1]) / spans
    loader = loader_slope_ns(tasks)
    bound = processor_bound_ns(tasks, total / tasks.steps)
    step = max(host, device, loader, bound)
    own, busy = total / tasks.steps, _busy(tasks) / tasks.steps
    return Replayed(
        step_ms=step / 1e6,
        host_ms=own / 1e6,
        device_ms=busy / 1e6,
        loader_ms=loader / 1e6,
        limited_by=_limit(step, own, busy, max(loader, bound)),
    )


def host_times(tasks: Tasks) -> Column:
    """Each stretch of the host chain, with what taking or making batches costs there."""
    chain = tasks.host.duration.copy()
    if tasks.loader is not None and len(tasks.fetches):
        np.add.at(chain, tasks.fetches, batch_cost_ns(tasks.loader))
    return chain


def _busy(tasks: Tasks) -> float:
    """The busiest stream's work with the pauses between."""
    work = tasks.work
    alive = ~work.gone
    streams, which = np.unique(work.stream[alive], return_inverse=True)
    times = (work.duration + np.where(work.overlaps > 0, 0.0, _pauses(tasks)))[alive]
    return float(np.bincount(which, times, len(streams)).max(initial=0.0))


def _pauses(tasks: Tasks) -> Column:
    return np.where(tasks.work.graph, GRAPH_BETWEEN_NS, BETWEEN_NS)


def _limit(step: float, host: float, device: float, loader: float) -> str:
    if loader >= step:
        return "loader"
    if step <= _NEAR * host:
        return "host"
    return "device" if step <= _NEAR * device else "turns"


def run_tiles(tasks: Tasks, chain: Column, tiles: int) -> tuple[list[float], list[float]]:
    """When the host and the device were done with each tile."""
    reached = np.cumsum(chain)
    total = float(reached[-1]) if len(reached) else 0.0
    actions = _actions(tasks, reached)
    streams = int(tasks.work.stream.max(initial=-1)) + 1
    ends, begins = [-BETWEEN_NS] * streams, [0.0] * streams
    queues: list[deque[float]] = [deque(maxlen=tasks.queue) for _ in range(streams)]
    done = [0.0] * len(tasks.work)
    limit, offset, latest = tasks.queue, 0.0, 0.0
    host_ends, device_ends = [], []
    for _ in range(tiles):
        for when, item, stream, duration, between, overlaps, after, queues_up in actions:
            now = when + offset
            if duration < 0:  # a wait
                until = done[item] if item >= 0 else ends[stream] if stream >= 0 else latest
                if until > now:
                    offset += until - now
                continue
            if queues_up:
                queue = queues[stream]
                if len(queue) == limit and queue[0] > now:
                    offset += queue[0] - now
                    now = queue[0]
            begin = now + LATENCY_NS
            free = ends[stream] - overlaps if overlaps else ends[stream] + between
            if overlaps and begins[stream] > free:
                free = begins[stream]
            if free > begin:
                begin = free
            if after >= 0 and done[after] > begin:
                begin = done[after]
            end = begin + duration
            done[item] = end
            begins[stream] = begin
            if queues_up:
                queue.append(begin)
            if end > ends[stream]:
                ends[stream] = end
                if end > latest:
                    latest = end
        offset += total
        host_ends.append(offset)
        device_ends.append(max(latest, offset) if not streams else latest)
    return host_ends, device_ends


_Action = tuple[float, int, int, float, float, float, int, bool]


def _actions(tasks: Tasks, reached: Column) -> list[_Action]:
    """Launches and waits in the order the host comes to them.

    When the host's own time reaches it, the work (of a wait: waited for), its stream, its
    duration (-1: a wait), the pause before it, how long it may run beside the work before it, what
    it comes after, and whether it takes a place in the queue: a graph's work does not.
    """
    work, waits = tasks.work, tasks.waits
    rows, stops = np.flatnonzero(~work.gone), np.flatnonzero(~waits.gone)
    at = np.append(work.at[rows], waits.at[stops])
    held = np.append(np.zeros(len(rows)), np.ones(len(stops)))
    between = _pauses(tasks)[rows]
    size = len(stops)
    columns = (
        reached[at] if len(at) else at,
        np.append(rows, waits.work[stops]),
        np.append(work.stream[rows], waits.stream[stops]),
        np.append(work.duration[rows], np.full(size, -1.0)),
        np.append(between, np.zeros(size)),
        np.append(work.overlaps[rows], np.zeros(size)),
        np.append(work.after[rows], np.full(size, -1)),
        np.append(~work.graph[rows], np.zeros(size, bool)),
    )
    order = np.lexsort((held, at))
    return list(zip(*(column[order].tolist() for column in columns), strict=True))
