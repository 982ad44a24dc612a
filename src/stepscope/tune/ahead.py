"""Step times until the device was done, where the host ran ahead of it."""

import numpy as np

from stepscope.analyze.steps import Floats, Steps

_BELIEVED = 0.5  # of how far the device was behind at the end, by its own times
_AHEAD = 2.0  # usual steps: a host that was never further ahead shows the device's pace itself


def done_times(steps: Steps) -> Floats:
    """How long each step took until the device had finished it too, in nanoseconds.

    A host that only launches ends its steps early; what the device then still has to do grows from
    step to step and shows where the host waits for it, at the latest after the last one. How it
    grew is told by the device's own times where they were taken, else it is taken to have grown
    evenly.
    """
    if not len(steps):
        return steps.duration
    ahead = _fitted(_walk(steps), steps)
    if ahead is None:
        if steps.behind <= 0:
            return steps.duration
        ahead = np.linspace(0.0, steps.behind, len(steps) + 1)[1:]
    # A step is over for the device no earlier than the one before it.
    done: Floats = np.maximum(steps.duration + np.diff(ahead, prepend=0.0), 0.0)
    return done


def _fitted(ahead: Floats | None, steps: Steps) -> Floats | None:
    """The walk, made to end where the device was seen to be; None where it ends elsewhere."""
    if ahead is None or ahead.max() < _AHEAD * float(np.median(steps.duration)):
        return None
    off = steps.behind - float(ahead[-1])
    if abs(off) > _BELIEVED * max(steps.behind, float(ahead.max())):
        return None
    since = int(np.flatnonzero(ahead == 0.0)[-1]) + 1 if (ahead == 0.0).any() else 0
    more = np.linspace(0.0, off, len(ahead) - since + 1)[1:]
    return np.concatenate((ahead[:since], ahead[since:] + more))


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
