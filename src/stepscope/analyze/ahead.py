"""How far the host ran ahead of the device.

A host that only launches ends its steps early; what the device then still has to do grows from
step to step and shows where the host waits for it, at the latest after the last one.
"""

from typing import Any

import numpy as np

from stepscope.stats.series import Bools, Floats

_BELIEVED = 0.5  # of how far the device was behind at the end, by its own times
_AHEAD = 2.0  # usual steps: a host that was never further ahead shows the device's pace itself


def ahead_after(duration: Floats, device: Floats, waited: Bools, behind: float) -> Floats:
    """How far the host was ahead after each step, in nanoseconds.

    `device` are the device's own times of the steps, NaN where not taken; in steps that have
    `waited` the host waited for the device elsewhere; `behind` is what the device still had to do
    after the last step. Without times that fit this, the host is taken to have run ahead evenly.
    """
    walk = _walk(duration, device, waited)
    if walk is not None and walk.max() >= _AHEAD * float(np.median(duration)):
        off = behind - float(walk[-1])
        if abs(off) <= _BELIEVED * max(behind, float(walk.max())):
            return _ended(walk, off)
    return np.linspace(0.0, behind, len(duration) + 1)[1:]


def done_times(duration: Floats, ahead: Floats) -> Floats:
    """How long each step took until the device had finished it too, which is no earlier than it
    finished the one before."""
    done: Floats = np.maximum(duration + np.diff(ahead, prepend=0.0), 0.0)
    return done


def _walk(duration: Floats, device: Floats, waited: Bools) -> Floats | None:
    """The sum of what the device took longer, never below zero; None where it was not timed."""
    known = device[~np.isnan(device)]
    if not known.size:
        return None
    change = np.where(np.isnan(device), np.median(known), device) - duration
    change[waited] = -float(np.abs(change).sum())
    sums: Any = np.cumsum(change)
    walk: Floats = sums - np.minimum(np.minimum.accumulate(sums), 0.0)
    return walk


def _ended(walk: Floats, off: float) -> Floats:
    """The walk, made to end where the device was seen to be, from where they last met on."""
    met = np.flatnonzero(walk == 0.0)
    since = int(met[-1]) + 1 if met.size else 0
    more = np.linspace(0.0, off, len(walk) - since + 1)[1:]
    return np.concatenate((walk[:since], walk[since:] + more))
