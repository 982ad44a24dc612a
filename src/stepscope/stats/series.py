"""What a series of step times shows: its warm-up, spikes, drift, and the cycle in which loader
workers deliver; and where throughput stops growing with batch size.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Spike:
    """A step that took far longer than its neighbours."""

    index: int
    value: float


def warmup_length(values: Floats) -> int:
    """Length of the warm-up: it ends once five values in a row look like the second half.

    At least one of four or more values (the first step always pays for something), at most half.
    """
    n = len(values)
    if n < 4:
        return 0
    half = values[n // 2 :]
    usual = float(np.median(half))
    spread = float(np.median(np.abs(half - usual)))
    limit = usual + max(0.1 * usual, 4 * spread)
    run = min(5, n // 4)
    for start in range(1, n // 2):
        if float(np.median(values[start : start + run])) <= limit and values[start] <= 1.5 * limit:
            return start
    return n // 2


def find_spikes(values: Floats) -> list[Spike]:
    """Values more than six median deviations out and at least 1.5 times the usual, worst first."""
    if len(values) < 8:
        return []
    usual = float(np.median(values))
    spread = float(np.median(np.abs(values - usual))) * 1.4826
    limit = max(usual + 6 * spread, 1.5 * usual)
    found = [Spike(int(i), float(values[i])) for i in np.flatnonzero(values > limit)]
    return sorted(found, key=lambda spike: -spike.value)


def drift(values: Floats) -> float | None:
    """Relative change of the usual value from the first to the last quarter; None for a short
    series, 0 if the quarters' own spread explains it.
    """
    if len(values) < 40:
        return None
    quarter = len(values) // 4
    first, last = values[:quarter], values[-quarter:]
    before, after = float(np.median(first)), float(np.median(last))
    spread = max(float(np.median(np.abs(part - np.median(part)))) for part in (first, last))
    if before <= 0 or abs(after - before) <= 3 * 1.4826 * spread / np.sqrt(quarter) * 1.2533:
        return 0.0
    return after / before - 1


_LONGEST: Final = 64  # steps
_ALIKE, _BEYOND_NEIGHBOURS = 0.5, 0.2  # correlations


def cycle_length(values: Floats) -> int:
    """The period in steps, as when loader workers deliver in turn; 1 if there is none, or fewer
    than four rounds of it."""
    longest = min(_LONGEST, len(values) // 4)
    if longest < 2:
        return 1
    centred = values - values.mean()
    energy = float(centred @ centred)
    if energy <= 1e-18 * float(values @ values):
        return 1
    padded = np.concatenate([np.zeros(longest), centred])
    alike = np.correlate(padded, centred)[longest - 1 :: -1] / energy  # by lag, from one step
    best = int(np.argmax(alike[1:])) + 1
    # Under drift every step resembles its neighbour most; in a cycle it does not.
    found = alike[best] > max(_ALIKE, alike[0] + _BEYOND_NEIGHBOURS)
    return best + 1 if found else 1


NEAR_BEST: Final = 0.05


def knee_index(rates: Sequence[float], within: float = NEAR_BEST) -> int | None:
    """Index of the smallest size whose rate is within this share of the best; sizes rise.

    None if nothing was measured.
    """
    best = max(rates, default=0.0)
    if best <= 0:
        return None
    return next(place for place, rate in enumerate(rates) if rate >= (1 - within) * best)
