"""Changes of whole phases, on host and device."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from stepscope.analyze.whatif.priors import FUSED_STEP_NS
from stepscope.analyze.whatif.tasks import Tasks
from stepscope.record.rows import STEP_PHASES
from stepscope.record.timeline import DeviceKind


def scale_phase(
    phase: str, factor: float, *, on_host: bool = True, on_device: bool = True
) -> Callable[[Tasks], Tasks]:
    """All of a phase takes `factor` times as long, on the host, the device or both.

    For "data_wait" that is making and taking batches.
    """
    number = STEP_PHASES.index(phase)

    def change(tasks: Tasks) -> Tasks:
        chain, work = tasks.host, tasks.work
        mine = (chain.phase == number) & on_host
        theirs = (work.phase == number) & on_device
        loader = tasks.loader
        if loader is not None and phase == "data_wait" and on_host:
            loader = replace(
                loader,
                batch_ms=loader.batch_ms * factor,
                hand_over_ms=loader.hand_over_ms * factor,
            )
        return replace(
            tasks,
            host=replace(chain, duration=np.where(mine, chain.duration * factor, chain.duration)),
            work=replace(work, duration=np.where(theirs, work.duration * factor, work.duration)),
            loader=loader,
        )

    return change


def remove_phase(phase: str) -> Callable[[Tasks], Tasks]:
    """A phase goes away: its host time, its work and its waits."""
    number = STEP_PHASES.index(phase)
    scaled = scale_phase(phase, 0.0)

    def change(tasks: Tasks) -> Tasks:
        tasks = scaled(tasks)
        work, waits = tasks.work, tasks.waits
        return replace(
            tasks,
            work=replace(work, gone=work.gone | (work.phase == number)),
            waits=replace(waits, gone=waits.gone | (waits.phase == number)),
        )

    return change


def fused_optimizer(
    device_factor: float = 1.0, host_ns: float | None = None
) -> Callable[[Tasks], Tasks]:
    """The optimizer becomes one kernel, and its host time that of a few launches.

    `device_factor`: its time over that of the present kernels together (by bytes: the roofline).
    `host_ns`: the host's part of a step, a prior of `priors` where there is a device. On the CPU
    pass it: there the work itself is host time.
    """
    number = STEP_PHASES.index("optimizer")

    def change(tasks: Tasks) -> Tasks:
        chain, work = tasks.host, tasks.work
        ours = (work.phase == number) & (work.kind == DeviceKind.KERNEL) & ~work.gone
        mine = chain.phase == number
        duration, gone, left = work.duration.copy(), work.gone.copy(), chain.duration.copy()
        for step in range(tasks.steps):
            kernels = np.flatnonzero(ours & (work.step == step))
            duration[kernels[:1]] = work.duration[kernels].sum() * device_factor
            gone[kernels[1:]] = True
            here = mine & (chain.step == step)
            target = FUSED_STEP_NS if host_ns is None else host_ns
            total = chain.duration[here].sum()
            if len(kernels) or host_ns is not None:
                left[here] *= min(1.0, target / total) if total > 0 else 1.0
        return replace(
            tasks,
            host=replace(chain, duration=left),
            work=replace(work, duration=duration, gone=gone),
        )

    return change
