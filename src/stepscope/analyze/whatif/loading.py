"""The loader as a queue: what making and taking batches costs a step.

Workers make batches, each one after the other, and at most `prefetch` each lie ready. All times
being steady, the queue's slope is a worker's time for a batch over their number: prefetching only
smooths. So it needs no simulation; the step is no shorter than that slope.
"""

from stepscope.analyze.whatif.priors import (
    HAND_OVER_MS_PER_MB,
    PINNING_MS_PER_MB,
    RECYCLED,
    WORKER_MS_PER_MB,
)
from stepscope.analyze.whatif.tasks import Loader, Tasks

_SHARED = 0.95  # of the cores' time, where host and workers fill them: they also wait in turn


def batch_cost_ns(loader: Loader) -> float:
    """What one batch costs the host: making it, or taking it from a worker."""
    if not loader.workers:
        return loader.batch_ms * 1e6
    now = 0.0 if loader.pinned else _fresh(loader)
    carried = loader.hand_over_ms + _carrying(loader, HAND_OVER_MS_PER_MB, now)
    return max(0.0, carried) * 1e6 + late_ns(loader)


def made_ns(loader: Loader) -> float:
    """What a worker takes for a batch while no other work is in its way."""
    carried = _carrying(loader, WORKER_MS_PER_MB, _fresh(loader))
    return max(0.0, loader.batch_ms + carried) * 1e6


def _fresh(loader: Loader) -> float:
    """The part of what fresh memory costs that is left."""
    return RECYCLED if loader.recycled else 1.0


def _carrying(loader: Loader, ms_per_mb: float, now: float) -> float:
    """Ms of getting a batch from a worker to the host beyond what was measured, which had none of
    it where there were no workers, and all of it where there were. `now`: the part that is left."""
    before = 0.0 if loader.measured == 0 else 1.0
    return loader.batch_mb * ms_per_mb * (now - before) if loader.workers else 0.0


def late_ns(loader: Loader) -> float:
    """What unsteady delivery costs a batch: it averages out over workers."""
    known = loader.measured or loader.workers
    return loader.late_ms * 1e6 * min(1.0, known / max(1, loader.workers))


def loader_slope_ns(tasks: Tasks) -> float:
    """How long the workers take for the batches of a step, or the thread that pins them; 0 without
    workers."""
    loader = tasks.loader
    if loader is None or not loader.workers:
        return 0.0
    batches = len(tasks.fetches) / tasks.steps
    made = made_ns(loader) / at_once(loader) + late_ns(loader)
    each = _fresh(loader) * HAND_OVER_MS_PER_MB + PINNING_MS_PER_MB
    pinned = loader.batch_mb * each * 1e6 if loader.pinned else 0.0
    return batches * max(made, pinned)


def at_once(loader: Loader) -> float:
    """How many batches are made at a time, in units of the measured time of one."""
    known = loader.workers if loader.measured is None else loader.measured
    most = max(1.0, loader.cores) / max(loader.processor, 1e-3)  # what these cores have room for
    slowed = max(1.0, known / most)  # by so much the measured time was, for want of cores
    return min(float(loader.workers), most) * slowed


def processor_bound_ns(tasks: Tasks, host_ns: float) -> float:
    """The least a step can take on these cores, where workers join that were not measured.

    Making batches then takes processor time from the host, which on the CPU computes there too.
    """
    loader = tasks.loader
    if loader is None or not loader.workers:
        return 0.0
    if loader.measured is None or loader.measured == loader.workers:
        return 0.0
    batches = len(tasks.fetches) / tasks.steps
    slowed = max(1.0, loader.measured * loader.processor / max(1.0, loader.cores))
    making = batches * made_ns(loader) * loader.processor / slowed
    work = making + host_ns * loader.host_cores
    return work / (max(1.0, loader.cores) * _SHARED)
