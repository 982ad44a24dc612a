"""The loader as a queue: what making and taking batches costs a step.

Workers make batches, each one after the other, and at most `prefetch` each lie ready. All times
being steady, the queue's slope is a worker's time for a batch over their number: prefetching only
smooths. So it needs no simulation; the step is no shorter than that slope.
"""

from stepscope.analyze.whatif.tasks import Loader, Tasks


def batch_cost_ns(loader: Loader) -> float:
    """What one batch costs the host: making it, or taking it from a worker."""
    if not loader.workers:
        return loader.batch_ms * 1e6
    return loader.hand_over_ms * 1e6 + late_ns(loader)


def late_ns(loader: Loader) -> float:
    """What unsteady delivery costs a batch: it averages out over workers."""
    known = loader.measured or loader.workers
    return loader.late_ms * 1e6 * min(1.0, known / max(1, loader.workers))


def loader_slope_ns(tasks: Tasks) -> float:
    """How long the workers take for the batches of a step; 0 without workers."""
    loader = tasks.loader
    if loader is None or not loader.workers:
        return 0.0
    batches = len(tasks.fetches) / tasks.steps
    return batches * (loader.batch_ms * 1e6 / at_once(loader) + late_ns(loader))


def at_once(loader: Loader) -> float:
    """How many batches are made at a time, in units of the measured time of one."""
    known = loader.workers if loader.measured is None else loader.measured
    cores = max(1.0, loader.cores)
    slowed = max(1.0, known / cores)  # by so much the measured time was, for want of cores
    return min(float(loader.workers), cores) * slowed


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
    slowed = max(1.0, loader.measured / max(1.0, loader.cores))
    work = batches * loader.batch_ms * 1e6 / slowed + host_ns * loader.host_cores
    return work / max(1.0, loader.cores)
