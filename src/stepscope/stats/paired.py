"""What paired blocks of steps of one process show: whether a candidate gains, decided as they come.

Two neighbouring blocks make a pair; chance decides which of them has the candidate. So its effect
apart, the sign of a pair's difference is a fair coin, whatever the noise: steps that resemble
their neighbours, drift and bursts only change how large differences are. That is what the test
rests on, and nothing else. It may be looked at after every pair: 1 + s tanh(kx) has mean 1 for an x
that is as often above 0 as below, so the product over pairs, averaged over several k, exceeds
1 / error at any time with at most that probability (test martingales for symmetric distributions:
Ramdas, Ruf, Larsson and Koolen, 2020). No numpy: this runs in the program's process.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from math import ceil, exp, log, log1p, sqrt, tanh
from typing import Final

from stepscope.stats import mean, median

ERROR: Final = 0.01
"""How often one that gains nothing is accepted, at most."""
MIN_GAIN: Final = 0.01
"""A smaller gain is not worth a change."""
_SCALES: Final = tuple(2.0**power for power in range(12))
"""One over differences of 100% to 0.05%: each k finds differences of about that size soonest."""
_STAKE: Final = 0.9
"""How much of the evidence one pair may take away: a spike in one block proves nothing."""
_FEWEST = 4
FEWEST_PAIRS: Final = 8
"""A clear gain takes about as many."""
WARMING_STEPS: Final = 24
"""Of a program, before its first contest."""
_BLOCK_MS = 80.0
_BLOCK_STEPS = (4, 32)
_HOPELESS = 1.64
"""Standard errors below which the least gain lies."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """How long a contest's blocks are, in steps."""

    steps: int
    cycle: int = 1
    """In which batches arrive: as many as there are workers. Means cover whole cycles."""

    @classmethod
    def of(cls, step_ms: float, workers: int = 0) -> "Blocks":
        """Blocks long enough to be timed, for steps that take so long."""
        least, most = _BLOCK_STEPS
        cycle = max(1, min(workers, most // 2))
        return cls(max(least, min(most, ceil(_BLOCK_MS / max(step_ms, 1e-6))), 2 * cycle), cycle)

    @property
    def least(self) -> int:
        """Steps of a contest that decides as soon as any can."""
        return FEWEST_PAIRS * 2 * self.steps


class Decision(Enum):
    """What the pairs so far allow to be said."""

    GAIN = "gain"
    NO_GAIN = "no gain"
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class PairedRatio:
    """The speedup by a candidate, and its 95% interval by Student's t, as if the number of pairs
    had been chosen beforehand. It describes; it decides nothing."""

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
    if _evidence(differences) >= log(1 / ERROR) and middle(differences) >= least:
        return Decision.GAIN
    reach = (_HOPELESS + 4 / len(differences)) * _standard_error(differences)
    return Decision.NO_GAIN if mean(differences) + reach < least else Decision.OPEN


def paired_ratio(differences: Sequence[float]) -> PairedRatio:
    """The speedup that two pairs or more show."""
    usual, degrees = middle(differences), len(differences) - 1
    student_t = 1.96 + 2.4 / degrees + 3.2 / degrees**2  # within 3% from three degrees on
    reach = student_t * _standard_error(differences)
    return PairedRatio(exp(usual), exp(usual - reach), exp(usual + reach))


def middle(differences: Sequence[float]) -> float:
    """The usual difference: the median of all means of two (Hodges and Lehmann)."""
    return median(
        (one + other) / 2
        for place, one in enumerate(differences)
        for other in differences[: place + 1]
    )


def _standard_error(differences: Sequence[float]) -> float:
    """Of the mean of two or more."""
    usual = mean(differences)
    squares = sum((one - usual) ** 2 for one in differences)
    return sqrt(squares / (len(differences) - 1) / len(differences))


def _evidence(differences: Sequence[float]) -> float:
    """The logarithm of the evidence that differences tend to lie above 0."""
    parts = [sum(log1p(_STAKE * tanh(scale * one)) for one in differences) for scale in _SCALES]
    most = max(parts)
    return most + log(mean(exp(part - most) for part in parts))
