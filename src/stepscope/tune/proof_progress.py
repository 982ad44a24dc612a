"""Whether a variant learns as much per step as the baseline does.

A smaller learning rate, a dropped step or a gradient clipped otherwise makes training run through
the same curve of losses at another pace. So the paired differences are held against the shape
that a slower pace would give them: a measure that small systematic changes cannot hide from, and
whose uncertainty, known from the control and the seeds, says what could have been seen at all.
"""

from dataclasses import dataclass
from math import sqrt
from typing import Final

import numpy as np

from stepscope.stats.intervals import student
from stepscope.stats.series import Floats
from stepscope.tune.proof_curve import FEWEST, curve

MARGIN: Final = 0.03  # of the pace: a third of what a learning rate times 0.9 changes
_SHARES: Final = (1.0, 0.5, 0.25, 0.125)  # of the steps: chaos has not set in early on
_PACE: Final = 0.1  # the change of pace the shape is made with
_CLEAR: Final = 5.0  # standard errors the loss must have fallen by: noise is not taken for a shape


@dataclass(frozen=True, slots=True)
class Pace:
    """The variant's pace less the baseline's, as a share, with a 95% interval; -0.1: slower."""

    value: float
    low: float
    high: float
    steps: int
    """From the first on, over which it was taken."""

    @property
    def within(self) -> bool:
        return self.low > -MARGIN and self.high < MARGIN

    @property
    def beyond(self) -> bool:
        return self.low > MARGIN or self.high < -MARGIN


def paces(base: Floats, control: Floats | None, variant: Floats) -> list[Pace]:
    """Over all steps and over the first ones only. Empty where the losses do not fall clearly.

    Rows are seeds, columns steps. Without a control the seeds alone tell the spread.
    """
    known = curve(base.mean(axis=0))
    if known is None:
        return []
    total = base.shape[1]
    at = np.arange(total, dtype=np.float64)
    shape = (np.interp(at * (1 - _PACE), at, known.values) - known.values) / _PACE
    ends = sorted({max(FEWEST, int(total * share)) for share in _SHARES}, reverse=True)
    return [
        _pace(
            base[:, :end],
            None if control is None else control[:, :end],
            variant[:, :end],
            shape[:end],
        )
        for end in ends
        if known.fall(end) > _CLEAR
    ]


def too_small(base: Floats, variant: Floats, update: float | None) -> bool:
    """Whether differences are so small throughout that no change of the updates can hide in them.

    `update` is what one update changes the loss by, in its own batch; in others it may be far
    less. None: not known.
    """
    return update is not None and bool(np.abs(variant - base).max() < _PACE / 10 * update)


def _pace(base: Floats, control: Floats | None, variant: Floats, shape: Floats) -> Pace:
    own = _fitted(variant - base, shape)
    centre, squares, degrees = float(own.mean()), float(((own - own.mean()) ** 2).sum()), len(own)
    degrees -= 1
    if control is not None:
        # The control's true mean is none: each seed is a degree of freedom.
        squares += float((_fitted(control - base, shape) ** 2).sum())
        degrees += len(own)
    if degrees == 0:
        return Pace(centre, -np.inf, np.inf, len(shape))
    reach = student(degrees) * sqrt(squares / degrees / len(own))
    return Pace(centre, centre - reach, centre + reach, len(shape))


def _fitted(differences: Floats, shape: Floats) -> Floats:
    """By how much of the pace each seed's differences are explained; more loss: a slower one."""
    return np.array([-float(row @ shape) / float(shape @ shape) for row in differences])
