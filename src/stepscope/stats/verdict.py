"""Whether one group of processes is faster than another, claimed only if it is certain."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from math import comb, sqrt
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

MIN_DIFFERENCE: Final = 0.02  # smaller differences are not claimed, however steady the times look
MAX_SAME_DIFFERENCE: Final = 0.05  # the largest that counts as none, on any machine


class Verdict(StrEnum):
    """The other compared with the base."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"
    UNCLEAR = "unclear"


@dataclass(frozen=True, slots=True)
class Comparison:
    """`ratio`, the speedup, is the base's step time over the other's, with a 95% interval.

    `floor` is the difference, as a share, up to which the two count as the same.
    """

    ratio: float
    low: float
    high: float
    floor: float
    verdict: Verdict


def compare_processes(base: Processes, other: Processes, floor: float | None = None) -> Comparison:
    """FASTER or SLOWER if the whole interval lies beyond 2%, SAME if all of it lies within the
    noise floor, taken as 2% to 5%; else UNCLEAR.

    `floor` is this machine's `noise_floor`, None if unknown: no interval is narrower than it
    implies. One process on a side cannot show its spread, so the floor stands in. From four a side
    on, an interval excludes no difference only if the ranks tell the sides apart too.
    """
    ours, theirs = log_means(base), log_means(other)
    within = float(np.hypot(within_process_margin(base), within_process_margin(other)))
    reach = _reach(ours, theirs, within, floor)
    middle = float(ours.mean() - theirs.mean())
    low, high = (float(np.exp(middle + sign * reach)) for sign in (-1, 1))
    same = min(MAX_SAME_DIFFERENCE, max(MIN_DIFFERENCE, floor or 0.0))
    return Comparison(float(np.exp(middle)), low, high, same, verdict_for_interval(low, high, same))


def verdict_for_interval(low: float, high: float, same: float) -> Verdict:
    """The verdict a speedup's interval allows; `same` is the largest difference that counts as
    none."""
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
        # For two against two, Welch's rule is far too cautious: a common spread says more.
        pooled = min(n, m) == 1 or n + m == 4
        noise = max(noise, (_pooled if pooled else _welch)(ours, theirs))
    # The spread of several processes already includes the noise of their blocks.
    reach = float(np.hypot(noise, within)) if min(n, m) == 1 else max(noise, within)
    by_chance = n in _RANKED and m in _RANKED and not _ranks_differ(ours, theirs)
    return max(reach, abs(float(ours.mean() - theirs.mean()))) if by_chance else reach


_RANKED: Final = range(4, 21)  # processes a side; ranks of fewer never tell, means of more suffice


def _ranks_differ(ours: Floats, theirs: Floats) -> bool:
    """Whether fewer than 1 in 20 random orders keep the sides as far apart, or further
    (Mann-Whitney). Unlike a mean, that does not hang on one or two slow processes."""
    n, m = len(ours), len(theirs)
    overlaps = min(int((ours[:, None] >= theirs).sum()), int((ours[:, None] <= theirs).sum()))
    return 2 * sum(_orders(one, n, m) for one in range(overlaps + 1)) < comb(n + m, n) / 20


@cache
def _orders(overlaps: int, n: int, m: int) -> int:
    """Orders of n and m processes in which so many pairs are the wrong way round."""
    if overlaps < 0 or min(n, m) == 0:
        return int(overlaps == 0)
    return _orders(overlaps - m, n - 1, m) + _orders(overlaps, n, m - 1)


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
    """The difference, as a share, within which two processes of one thing stay 19 times of 20.

    A group holds processes of one thing. None if no group has two.
    """
    spread = process_spread(groups)
    if spread is None:
        return None
    degrees = sum(len(group) - 1 for group in groups if len(group) > 1)
    return float(np.expm1(student_t(degrees) * sqrt(2) * spread))


def process_spread(groups: Sequence[Processes]) -> float | None:
    """The standard deviation between processes of one thing, as a logarithm; groups and None as in
    `noise_floor`. From three groups on the median counts, so that a noisy one does not hide the
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
    """A variance scaled so that its median over samples, not its mean, is the true one: by the cube
    root of chi-squared, which is nearly normal."""
    return float(variance / (1 - 2 / (9 * degrees)) ** 3)
