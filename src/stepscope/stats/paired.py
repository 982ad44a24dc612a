"""What paired blocks of steps of one process show: whether a candidate gains, decided as they come.

Two neighbouring blocks make a pair; chance decides which of them has the candidate. So its effect
apart, the sign of a pair's difference is a fair coin, whatever the noise: steps that resemble their
neighbours, drift and bursts only change how large differences are. That is what the test rests on,
and nothing else. It may be looked at after every pair: 2 / (1 + exp(-2kx)) has mean 1 for an x that
is as often above 0 as below, so the product over pairs, averaged over several k, exceeds 1 / error
at any time with at most that probability (test martingales for symmetric distributions: Ramdas,
Ruf, Larsson and Koolen, 2020). No numpy: this runs in the program's process.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from math import exp, log, log1p, sqrt
from statistics import fmean, median, stdev
from typing import Final

ERROR: Final = 0.01
"""How often one that gains nothing is accepted at most; also each side's of the interval."""
MIN_GAIN: Final = 0.01
"""A smaller gain is not worth a change."""
_SCALES: Final = tuple(2.0**power for power in range(12))
"""One over differences of 100% to 0.05%: each k finds differences of about that size soonest."""
_FEWEST = 4
_HOPELESS = 1.64
"""Standard errors below which the least gain lies."""


class Decision(Enum):
    """What the pairs so far allow to be said."""

    GAIN = "gain"
    NO_GAIN = "no gain"
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class PairedRatio:
    """The speedup by a candidate, and the range it lies in: 98 times of 100, whenever the contest
    was stopped."""

    ratio: float
    low: float
    high: float


def decide(differences: Sequence[float]) -> Decision:
    """Whether a candidate gains. `differences` are logarithms, of a block's time without it over
    the time with it. It may be asked after each pair; giving up early is no error, so that is done
    by a plainer rule."""
    if len(differences) < _FEWEST:
        return Decision.OPEN
    least = log1p(MIN_GAIN)
    if _evidence(differences, 0.0) >= log(1 / ERROR) and middle(differences) >= least:
        return Decision.GAIN
    reach = (_HOPELESS + 4 / len(differences)) * stdev(differences) / sqrt(len(differences))
    return Decision.NO_GAIN if fmean(differences) + reach < least else Decision.OPEN


def paired_ratio(differences: Sequence[float]) -> PairedRatio:
    """The speedup that at least one pair shows."""
    low = _bound(differences)
    high = -_bound([-one for one in differences])
    return PairedRatio(exp(middle(differences)), exp(low), exp(high))


def middle(differences: Sequence[float]) -> float:
    """The usual difference: the median of all means of two (Hodges and Lehmann)."""
    return median(
        (one + other) / 2
        for place, one in enumerate(differences)
        for other in differences[: place + 1]
    )


def _evidence(differences: Sequence[float], centre: float) -> float:
    """The logarithm of the evidence that differences lie above a centre: falls as that rises."""
    parts = [
        sum(log(2) - _softplus(-2 * scale * (one - centre)) for one in differences)
        for scale in _SCALES
    ]
    most = max(parts)
    return most + log(fmean(exp(part - most) for part in parts))


def _softplus(value: float) -> float:
    """log(1 + exp(value))."""
    return value + log1p(exp(-value)) if value > 0 else log1p(exp(value))


_WIDEST = 3.0  # a speedup or slowdown of 20: what few pairs cannot exclude
_HALVINGS = 30


def _bound(differences: Sequence[float]) -> float:
    """The lowest centre that the differences do not contradict."""
    inside, outside = middle(differences), min(differences) - _WIDEST
    if _evidence(differences, outside) < log(1 / ERROR):
        return outside
    for _ in range(_HALVINGS):
        between = (inside + outside) / 2
        if _evidence(differences, between) >= log(1 / ERROR):
            outside = between
        else:
            inside = between
    return outside
