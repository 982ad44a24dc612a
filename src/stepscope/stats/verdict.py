"""Whether one group of processes is faster than another: a claim only where it holds."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import sqrt
from typing import Final

import numpy as np

from stepscope.stats.intervals import (
    Processes,
    log_means,
    noise_margin,
    student_t,
    within_process_margin,
)
from stepscope.stats.series import Floats

MIN_DIFFERENCE: Final = 0.02  # differences within it are not claimed, however steady the times look
MAX_SAME_DIFFERENCE: Final = 0.05  # nobody takes more for the same, however noisy the machine


class Verdict(StrEnum):
    """What may be said of the other against the base."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"
    UNCLEAR = "unclear"


@dataclass(frozen=True, slots=True)
class Comparison:
    """`ratio` is the base's step time over the other's, its speedup, with a 95% interval.

    `floor` is the difference, as a share, up to which the two count as the same.
    """

    ratio: float
    low: float
    high: float
    floor: float
    verdict: Verdict


def compare_processes(base: Processes, other: Processes, floor: float | None = None) -> Comparison:
    """FASTER or SLOWER where the whole interval lies beyond 2%, SAME where all of it lies within
    the noise floor, but at least 2% and at most 5%; else UNCLEAR.

    `floor` is this machine's `noise_floor`, None where it is not known: no interval is narrower
    than it implies. A single process on a side cannot show its own spread, so the floor stands in.
    """
    ours, theirs = log_means(base), log_means(other)
    within = float(np.hypot(within_process_margin(base), within_process_margin(other)))
    reach = _reach(ours, theirs, within, floor)
    middle = float(ours.mean() - theirs.mean())
    low, high = (float(np.exp(middle + sign * reach)) for sign in (-1, 1))
    same = min(MAX_SAME_DIFFERENCE, max(MIN_DIFFERENCE, floor or 0.0))
    return Comparison(float(np.exp(middle)), low, high, same, verdict_for_interval(low, high, same))


def verdict_for_interval(low: float, high: float, same: float) -> Verdict:
    """What an interval of a speedup allows to say; `same` is what counts as no difference."""
    if low > 1 + MIN_DIFFERENCE:
        return Verdict.FASTER
    if high < 1 / (1 + MIN_DIFFERENCE):
        return Verdict.SLOWER
    return Verdict.SAME if low >= 1 / (1 + same) and high <= 1 + same else Verdict.UNCLEAR


def _reach(ours: Floats, theirs: Floats, within: float, floor: float | None) -> float:
    """Half the width of the interval, as a logarithm."""
    n, m = len(ours), len(theirs)
    noise = noise_margin(floor, n, m)
    if n + m > 2:
        # Of two against two Welch's rule believes hardly anything: a common spread says more.
        pooled = min(n, m) == 1 or n + m == 4
        noise = max(noise, (_pooled if pooled else _welch)(ours, theirs))
    # Several processes have the noise of their blocks in their own spread already.
    return float(np.hypot(noise, within)) if min(n, m) == 1 else max(noise, within)


def _pooled(ours: Floats, theirs: Floats) -> float:
    degrees = len(ours) + len(theirs) - 2
    squares = sum(float(((side - side.mean()) ** 2).sum()) for side in (ours, theirs))
    return student_t(degrees) * sqrt(squares / degrees * (1 / len(ours) + 1 / len(theirs)))


def _welch(ours: Floats, theirs: Floats) -> float:
    errors = [float(side.var(ddof=1)) / len(side) for side in (ours, theirs)]
    together = sum(errors)
    if together == 0:
        return 0.0
    parts = (error**2 / (len(side) - 1) for error, side in zip(errors, (ours, theirs), strict=True))
    return student_t(max(1.0, together**2 / sum(parts))) * sqrt(together)


def noise_floor(groups: Sequence[Processes]) -> float | None:
    """The difference, as a share, that two processes of one thing stay within 19 times of 20.

    Each group is the processes of one thing. None where no group has two processes.
    """
    spread = process_spread(groups)
    if spread is None:
        return None
    degrees = sum(len(group) - 1 for group in groups if len(group) > 1)
    return float(np.expm1(student_t(degrees) * sqrt(2) * spread))


def process_spread(groups: Sequence[Processes]) -> float | None:
    """The standard deviation between processes of one thing, as a logarithm; groups and None as
    above. Of three groups or more the usual one counts, so that a noisy one does not blind the
    rest."""
    logs = [log_means(group) for group in groups if len(group) > 1]
    if not logs:
        return None
    degrees = [len(one) - 1 for one in logs]
    variances = [float(one.var(ddof=1)) for one in logs]
    if len(logs) < 3:
        return sqrt(np.average(variances, weights=degrees))
    return sqrt(np.median([*map(_typical, variances, degrees)]))


def _typical(variance: float, degrees: int) -> float:
    """So scaled that its median over samples is the true variance, not its mean: by the cube root
    of chi-squared, which is nearly normal."""
    return float(variance / (1 - 2 / (9 * degrees)) ** 3)
