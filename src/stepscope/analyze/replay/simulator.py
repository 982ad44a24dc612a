"""The replay: tasks repeated several times in a row, as dependencies allow.

Nothing happens at a recorded time. The host goes along its chain; work begins when it has been
launched, when its stream is free and when what it waits for has ended; the host stops where it
waits for the device, or where too many launches are queued. The first tiles settle, the slope of
the others is the step.

The loader is a queue: workers make batches, each one after the other, a few ahead. All times being
steady, its slope is a worker's time for a batch over their number: it needs no simulation, the
step is no shorter than that slope. Starting workers anew in each epoch is spread over its steps.
"""

from collections import deque
from dataclasses import dataclass

import numpy as np

from stepscope.analyze.replay.tasks import (
    BETWEEN_NS,
    FORK_MS,
    FORK_MS_PER_GB,
    GRAPH_BETWEEN_NS,
    HAND_OVER_MS_PER_MB,
    LATENCY_NS,
    PINNING_MS_PER_MB,
    RECYCLED_SHARE,
    WORKER_LIFE_MS,
    WORKER_LIFE_MS_PER_GB,
    WORKER_MS_PER_MB,
    LoaderQueue,
    Tasks,
)
from stepscope.record.timeline import Column

_SHARED = 0.95  # of the cores' time, where host and workers fill them: they also wait in turn


def making_ns(loader: LoaderQueue) -> float:
    """A worker's time for a batch if nothing else competes."""
    carried = _carrying(loader, WORKER_MS_PER_MB, _fresh(loader))
    return max(0.0, loader.batch_ms + carried) * 1e6


def _fresh(loader: LoaderQueue) -> float:
    """The remaining share of the cost of fresh memory."""
    return RECYCLED_SHARE if loader.recycled else 1.0


def _carrying(loader: LoaderQueue, ms_per_mb: float, now: float) -> float:
    """Ms of getting a batch from a worker to the host beyond what was measured, which had none of
    it where there were no workers, and all of it where there were. `now`: the part that is left."""
    before = 0.0 if loader.measured == 0 else 1.0
    return loader.batch_mb * ms_per_mb * (now - before) if loader.workers else 0.0


def delay_ns(loader: LoaderQueue) -> float:
    """The cost of unsteady delivery per batch; it averages out over workers."""
    known = loader.measured or loader.workers
    return loader.late_ms * 1e6 * min(1.0, known / max(1, loader.workers))


def restarting_ns(loader: LoaderQueue, host_ns: float) -> float:
    """What starting workers adds to each batch of an epoch beyond what was measured; `host_ns` is
    the host's time for a batch.

    They are forked one after the other, begin and end on the cores they share with the host, and
    nothing hides the first batch, or with a slow loader the steps of the last ones.
    """
    known = loader.workers if loader.measured is None else loader.measured
    if not loader.workers or loader.kept or loader.epoch <= 0 or known == loader.workers:
        return 0.0

    def once(workers: int) -> float:
        if not workers:
            return 0.0
        forks = workers * (FORK_MS + FORK_MS_PER_GB * loader.memory_gb) * 1e6
        life_ms = WORKER_LIFE_MS + WORKER_LIFE_MS_PER_GB * loader.memory_gb
        lives = workers * (loader.import_ms or life_ms) * 1e6
        first = min(making_ns(loader), workers * host_ns)
        return max(forks, (forks + lives) / max(1.0, loader.cores)) + first

    return max(0.0, once(loader.workers) - once(known)) / loader.epoch


def _loader_limits(tasks: Tasks, host_ns: float) -> tuple[float, float]:
    """How long the workers take for the batches of a step, or the thread that pins them; and the
    least a step can take on these cores, where workers join that were not measured. 0 without any.
    """
    loader = tasks.loader
    if loader is None or not loader.workers:
        return 0.0, 0.0
    batches = len(tasks.fetches) / tasks.steps
    known = loader.workers if loader.measured is None else loader.measured
    most = max(1.0, loader.cores) / max(loader.processor, 1e-3)  # what these cores have room for
    slowed = max(1.0, known / most)  # how much the measured time was stretched by too few cores
    made = making_ns(loader) / (min(float(loader.workers), most) * slowed) + delay_ns(loader)
    each = _fresh(loader) * HAND_OVER_MS_PER_MB + PINNING_MS_PER_MB
    pinned = loader.batch_mb * each * 1e6 if loader.pinned else 0.0
    slope = batches * max(made, pinned)
    if known == loader.workers:
        return slope, 0.0
    # Making batches takes processor time from the host, which on the CPU computes there too.
    slowed = max(1.0, known * loader.processor / max(1.0, loader.cores))
    making = batches * making_ns(loader) * loader.processor / slowed
    work = making + host_ns * loader.host_cores
    return slope, work / (max(1.0, loader.cores) * _SHARED)


_LEAST_STEPS = 24
_LEAST_TILES = 4
_NEAR = 1.03  # so close to a limit, that is what decides


@dataclass(frozen=True, slots=True)
class ReplayedStep:
    """Times of one step in ms; `step_ms` is the largest slope."""

    step_ms: float
    host_ms: float  # the host's own time, without any waiting
    device_ms: float
    """The busiest stream's work, without any idle time but the pauses between kernels."""
    loader_ms: float  # what the loader's workers need for a step's batches; 0 without workers
    limited_by: str  # host, device, loader, or turns: host and device wait for each other


def replay_tasks(tasks: Tasks) -> ReplayedStep:
    """Deterministic; the work grows with launches and waits, not with host events."""
    chain = host_times(tasks)
    total = float(chain.sum())
    tiles = max(_LEAST_TILES, -(-_LEAST_STEPS // tasks.steps))
    host_ends, device_ends = run_tiles(tasks, chain, tiles)
    settled = tiles // 2
    spans = (tiles - settled) * tasks.steps
    host = (host_ends[-1] - host_ends[settled - 1]) / spans
    device = (device_ends[-1] - device_ends[settled - 1]) / spans
    loader, bound = _loader_limits(tasks, total / tasks.steps)
    own, busy = total / tasks.steps, _busy(tasks) / tasks.steps
    steady = max(host, device, loader, bound)
    step = steady + _restarting(tasks, own)
    if max(loader, bound) >= steady:
        limit = "loader"
    elif steady <= _NEAR * own:
        limit = "host"
    else:
        limit = "device" if steady <= _NEAR * busy else "turns"
    return ReplayedStep(step / 1e6, own / 1e6, busy / 1e6, loader / 1e6, limited_by=limit)


def _restarting(tasks: Tasks, host_ns: float) -> float:
    """What starting workers adds to a step."""
    batches = len(tasks.fetches) / tasks.steps
    if tasks.loader is None or not batches:
        return 0.0
    return batches * restarting_ns(tasks.loader, host_ns / batches)


def host_times(tasks: Tasks) -> Column:
    """Each stretch of the host chain, including the cost of making batches or taking them from
    workers."""
    chain, loader = tasks.host.duration.copy(), tasks.loader
    if loader is None:
        return chain
    cost = loader.batch_ms * 1e6
    if loader.workers:
        now = 0.0 if loader.pinned else _fresh(loader)
        carried = loader.hand_over_ms + _carrying(loader, HAND_OVER_MS_PER_MB, now)
        cost = max(0.0, carried) * 1e6 + delay_ns(loader)
    np.add.at(chain, tasks.fetches, cost)
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


def run_tiles(tasks: Tasks, chain: Column, tiles: int) -> tuple[list[float], list[float]]:
    """When the host and the device finished each repetition."""
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


def _actions(
    tasks: Tasks, reached: Column
) -> list[tuple[float, int, int, float, float, float, int, bool]]:
    """Launches and waits in the order the host comes to them.

    When the host's own time reaches it, the work (of a wait: waited for), its stream, its
    duration (-1: a wait), the pause before it, how long it may run beside the work before it, what
    it comes after, and whether it takes a place in the queue: a graph's work does not.
    """
    work, waits = tasks.work, tasks.waits
    rows, stops = np.flatnonzero(~work.gone), np.flatnonzero(~waits.gone)
    at = np.append(work.at[rows], waits.at[stops])
    size = len(stops)
    is_wait = np.append(np.zeros(len(rows)), np.ones(size))
    columns = (
        reached[at] if len(at) else at,
        np.append(rows, waits.work[stops]),
        np.append(work.stream[rows], waits.stream[stops]),
        np.append(work.duration[rows], np.full(size, -1.0)),
        np.append(_pauses(tasks)[rows], np.zeros(size)),
        np.append(work.overlaps[rows], np.zeros(size)),
        np.append(work.after[rows], np.full(size, -1)),
        np.append(~work.graph[rows], np.zeros(size, bool)),
    )
    order = np.lexsort((is_wait, at))
    return list(zip(*(column[order].tolist() for column in columns), strict=True))
