"""The curve a baseline's losses follow, without the noise of single batches."""

from dataclasses import dataclass
from math import hypot, sqrt
from typing import Final

import numpy as np

from stepscope.stats.series import Floats

FEWEST: Final = 10  # steps
_FIRST: Final = 5  # steps between the first two knots: losses fall fastest at first
_PARTS: Final = 6  # no two knots are further apart than this part of all steps


@dataclass(frozen=True, slots=True)
class Curve:
    """Straight lines between knots, never rising."""

    values: Floats
    """One a step."""
    errors: Floats
    """The standard error of each."""

    def fall(self, steps: int) -> float:
        """How much the loss falls over the first steps, in standard errors of that."""
        error = hypot(float(self.errors[0]), float(self.errors[steps - 1]))
        fallen = float(self.values[0] - self.values[steps - 1])
        return fallen / error if error else (np.inf if fallen else 0.0)


def curve(losses: Floats) -> Curve | None:
    """Fitted by least squares; None of too few steps."""
    steps = len(losses)
    if steps < FEWEST:
        return None
    at = np.arange(steps, dtype=np.float64)
    knots = _knots(steps)
    basis = np.stack([np.interp(at, knots, unit) for unit in np.eye(len(knots))], axis=1)
    inverse = np.linalg.pinv(basis.T @ basis)
    heights = inverse @ basis.T @ losses
    left = losses - basis @ heights
    spread = sqrt(float(left @ left) / (steps - len(knots)))
    errors = spread * np.sqrt(np.maximum(np.diag(inverse), 0.0))
    return Curve(
        np.interp(at, knots, never_rising(heights)), np.asarray(np.interp(at, knots, errors))
    )


def _knots(steps: int) -> Floats:
    places, apart = [0.0], float(_FIRST)
    widest = max(apart, (steps - 1) / _PARTS)
    while places[-1] + 1.5 * apart < steps - 1:
        places.append(places[-1] + apart)
        apart = min(2 * apart, widest)
    return np.array([*places, steps - 1.0])


def never_rising(values: Floats) -> Floats:
    """The nearest series that does not: neighbours that rise are put together."""
    means: list[float] = []
    counts: list[int] = []
    for value in values:
        means.append(float(value))
        counts.append(1)
        while len(means) > 1 and means[-2] < means[-1]:
            count = counts[-2] + counts[-1]
            means[-2] = (means[-2] * counts[-2] + means[-1] * counts[-1]) / count
            counts[-2] = count
            means.pop()
            counts.pop()
    return np.repeat(means, counts)
