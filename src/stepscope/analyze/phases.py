"""A step's phases as they are reported: waits charged to what was waited for."""

import numpy as np

from stepscope.analyze.steps import DEVICE, HOST, Steps
from stepscope.record.rows import STEP_PHASES
from stepscope.stats.series import Bools

_COMPUTED = ("h2d", "forward", "backward", "optimizer")


def host_means(steps: Steps, use: Bools) -> dict[str, float]:
    """Mean host time per phase in ms, waits for the device apart."""
    means = {name: float(steps.host[name][use].mean()) / 1e6 for name in HOST}
    means["wait"] += steps.fell_behind(use) / int(use.sum()) / 1e6
    return means


def device_means(steps: Steps, use: Bools) -> dict[str, float] | None:
    """Mean device time per phase in ms over the steps that were timed; None when none was."""
    timed = use & ~np.isnan(sum(steps.device[name] for name in DEVICE))
    if not timed.any():
        return None
    return {name: float(steps.device[name][timed].mean()) / 1e6 for name in DEVICE}


def by_device(device: dict[str, float], mean_ms: float) -> dict[str, float]:
    """Phases as the device saw them, scaled to the mean step: for steps the device decides.

    There the host runs ahead and blocks wherever the queue happens to be full, which says nothing.
    """
    total = sum(device.values())
    phases = dict.fromkeys(STEP_PHASES, 0.0)
    for name, value in device.items():
        phases[name] = value * mean_ms / total
    return phases


def charged(host: dict[str, float], device: dict[str, float] | None) -> dict[str, float]:
    """Phases that add up to the step: the host's, with its waits given to the phases whose work
    on the device went on meanwhile, in proportion to how far the device was behind in each.

    A pageable copy waits for all work before it: what its device time does not explain is a wait.
    """
    phases = {name: host[name] for name in STEP_PHASES}
    waits = host["wait"]
    if device is None:
        phases["other"] += waits
        return phases
    surplus = max(0.0, phases["h2d"] - device["h2d"])
    phases["h2d"] -= surplus
    waits += surplus
    behind = {name: max(0.0, device[name] - phases[name]) for name in _COMPUTED}
    total = sum(behind.values())
    if total <= 0:
        phases["other"] += waits
        return phases
    given = min(waits, total)
    for name, share in behind.items():
        phases[name] += given * share / total
    phases["other"] += waits - given
    return phases
