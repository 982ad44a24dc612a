"""How far a variant's losses go from the baseline's, against how far one rounding takes them.

Training is chaotic: the smallest change grows. What counts is whether the variant's grew to more
than the control's had, in all seeds alike; a changed update shows in the first steps, by orders
of magnitude, before the control's has grown.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from stepscope.stats.series import Floats
from stepscope.tune.proof_rounding import Limits
from stepscope.tune.proof_series import rms

_BLOCK: Final = 5  # steps whose divergence is looked at together


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where the variant went furthest beyond the control."""

    ratio: float
    """Its divergence there over the control's."""
    column: int
    """The last one of that block of steps."""


def divergence(base: Floats, control: Floats, variant: Floats, limit: Limits) -> Divergence:
    """Rows are seeds, columns steps; all are finite. The first step is judged apart."""
    floor = max(limit.floor * float(np.abs(base).mean()), np.finfo(np.float64).tiny)
    shown = np.array([max(floor, rms(block)) for block in _split(control - base)])
    gone = np.array([_typical(np.abs(block), floor) for block in _split(variant - base)])
    # What one rounding makes dies away where training settles; that of every step does not.
    ratios = gone / np.maximum.accumulate(shown)
    place = int(np.argmax(ratios))
    return Divergence(float(ratios[place]), min(base.shape[1] - 1, (place + 1) * _BLOCK))


def _split(values: Floats) -> list[Floats]:
    """All but the first step, in blocks of steps that follow each other."""
    return [values[:, at : at + _BLOCK] for at in range(1, values.shape[1], _BLOCK)]


def _typical(values: Floats, floor: float) -> float:
    """The geometric mean: one seed that runs away, or one wild step, is not a change in all."""
    return float(np.exp(np.mean(np.log(values + floor / 8))))
