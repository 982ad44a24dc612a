"""Step times until the device was done, where the host ran ahead of it."""

import numpy as np

from stepscope.analyze.steps import Floats, Steps

_BELIEVED = 0.5  # of how far the device was behind at the end, by its own times


def done_times(steps: Steps) -> Floats:
    """How long each step took until the device had finished it too, in nanoseconds.

    A host that only launches ends its steps early; what the device then still has to do grows from
    step to step and shows after the last one. How it grew is told by the device's own times where
    they were taken, else it is taken to have grown evenly.
    """
    if not len(steps) or steps.behind <= 0:
        return steps.duration
    ahead = _walk(steps)
    if ahead is None or ahead[-1] < _BELIEVED * steps.behind:
        ahead = np.linspace(0.0, steps.behind, len(steps) + 1)[1:]
    else:
        ahead *= steps.behind / ahead[-1]
    # A step is over for the device no earlier than the one before it.
    done: Floats = np.maximum(steps.duration + np.diff(ahead, prepend=0.0), 0.0)
    return done


def _walk(steps: Steps) -> Floats | None:
    """How far the host was ahead after each step; None where the device was not timed."""
    device = np.sum([*steps.device.values()], axis=0)
    known = device[~np.isnan(device)]
    if not known.size:
        return None
    device = np.where(np.isnan(device), np.median(known), device)
    ahead = np.zeros(len(steps))
    before = 0.0
    for index, change in enumerate(device - steps.duration):
        ahead[index] = before = max(0.0, before + float(change))
    return ahead
