"""The last steps: whether losses end alike, by an equivalence test over seeds."""

from dataclasses import dataclass
from math import sqrt
from typing import Final

import numpy as np

from stepscope.stats.intervals import student
from stepscope.stats.series import Floats
from stepscope.tune.proof_rounding import Limits

_SHARE: Final = 4  # the last quarter of the steps
_TIMES_CONTROL: Final = 4.0
_TIMES_SEEDS: Final = 0.5
_OF_FALL: Final = 0.002  # of what the loss has come down by: near nothing, shares of it are noise


@dataclass(frozen=True, slots=True)
class Tail:
    """The variant's mean loss less the baseline's, paired by seed, with a 95% interval."""

    value: float
    low: float
    high: float
    margin: float
    """The difference that counts as none: a few of the control's, half of what seeds differ by, or
    two thousandths of the loss's fall, whichever is most."""

    @property
    def within(self) -> bool:
        return -self.margin <= self.low and self.high <= self.margin

    @property
    def beyond(self) -> bool:
        return self.low > self.margin or self.high < -self.margin


def tail(base: Floats, control: Floats | None, variant: Floats, limit: Limits) -> Tail:
    """Rows are seeds, columns steps. The interval is without bound where nothing tells a spread."""
    length = max(1, base.shape[1] // _SHARE)
    start = base.shape[1] - length
    means = base[:, start:].mean(axis=1)
    fall = float(base[:, :length].mean() - means.mean())
    own = variant[:, start:].mean(axis=1) - means
    seeds = len(own)
    squares, degrees = float(((own - own.mean()) ** 2).sum()), seeds - 1
    margin = max(limit.floor * float(np.abs(means).mean()), _OF_FALL * fall)
    if seeds > 1:
        margin = max(margin, _TIMES_SEEDS * float(means.std(ddof=1)))
    if control is not None:
        shown = control[:, start:].mean(axis=1) - means
        squares, degrees = squares + float((shown**2).sum()), degrees + seeds
        margin = max(margin, _TIMES_CONTROL * sqrt(float((shown**2).mean())))
    value = float(own.mean())
    if degrees == 0:
        return Tail(value, -np.inf, np.inf, margin)
    reach = student(degrees) * sqrt(squares / degrees / seeds)
    return Tail(value, value - reach, value + reach, margin)
