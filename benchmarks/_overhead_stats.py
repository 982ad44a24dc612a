"""What may be said about a ratio of times that were measured in pairs. Pure functions."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import comb

import numpy as np
import numpy.typing as npt

RESAMPLES = 5000
LEAST_PAIRS = 5  # that all of four lie on one side of the truth happens too often
_SEED = 20

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A ratio of times, 1.0 for no difference.

    `ratio` is the median of the pairs' ratios; `low` and `upper` hold the true one in 90 of 100
    cases, so `upper` alone is a one-sided 95% bound. `of_sums` is the ratio of all time to all
    time, which also counts what few blocks pay for, with a one-sided bound of its own. Bounds are
    None with fewer pairs than can carry them.
    """

    pairs: int
    ratio: float
    low: float | None
    upper: float | None
    of_sums: float
    of_sums_upper: float | None


def estimate(pairs: Sequence[tuple[float, float]]) -> Estimate:
    """From (time, time it is compared with); the bootstrap draws whole pairs."""
    times = np.asarray(pairs, dtype=np.float64)
    if times.ndim != 2 or times.shape[1] != 2 or not (times > 0).all():
        raise ValueError("a ratio needs pairs of positive times")
    count = len(times)
    ratios = times[:, 0] / times[:, 1]
    sums = times.sum(axis=0)
    low = upper = sums_upper = None
    if count >= LEAST_PAIRS:
        drawn = np.random.default_rng(_SEED).integers(0, count, (RESAMPLES, count))
        low, upper = _bounds(np.sort(ratios), np.median(ratios[drawn], axis=1))
        resummed = times[drawn].sum(axis=1)
        sums_upper = float(np.quantile(resummed[:, 0] / resummed[:, 1], 0.95))
    return Estimate(
        count, float(np.median(ratios)), low, upper, float(sums[0] / sums[1]), sums_upper
    )


def _bounds(ordered: Floats, medians: Floats) -> tuple[float, float]:
    """The wider of two intervals: the bootstrap's, which is too narrow for few pairs, and the one
    that counts on nothing but each pair being as likely above the true median as below."""
    reach = _reach(len(ordered))
    low, upper = np.quantile(medians, (0.05, 0.95))
    return min(float(low), float(ordered[-1 - reach])), max(float(upper), float(ordered[reach]))


def _reach(count: int) -> int:
    """The least number k such that k or fewer of `count` fair coins show heads 95 times of 100."""
    cases = 0
    for heads in range(count):
        cases += comb(count, heads)
        if 20 * cases >= 19 << count:
            return heads
    return count


def pairs_of(
    rounds: Sequence[Mapping[str, float]], kind: str, against: str
) -> list[tuple[float, float]]:
    """The pairs that rounds make: one each, where both kinds were measured in it."""
    return [(times[kind], times[against]) for times in rounds if {kind, against} <= times.keys()]


def neighbours(rounds: Sequence[Mapping[str, float]], kind: str) -> list[tuple[float, float]]:
    """Pairs of one kind with itself, from rounds that follow each other; each is used once."""
    follow = [(second[kind], first[kind]) for first, second in pairwise(rounds)]
    return follow[::2]


def mirrored_orders(kinds: Sequence[str], rounds: int, seed: int) -> list[list[str]]:
    """A random order, then its mirror image, and so on: a steady drift favours no kind."""
    draw = random.Random(seed)
    orders: list[list[str]] = []
    while len(orders) < rounds:
        order = list(kinds)
        draw.shuffle(order)
        orders += [order, order[::-1]]
    return orders[:rounds]


def steady(block_ns: Sequence[int], block_steps: int, warmup_steps: int) -> list[int]:
    """The blocks that begin after the warm-up."""
    return list(block_ns[-(-warmup_steps // block_steps) :])


def goal_for(step_ms: float) -> float:
    """The most that observing may add, as a share: 1% from 5 ms on, 3% of shorter steps."""
    return 0.01 if step_ms >= 5 else 0.03


def verdict(found: Estimate, goal: float) -> str:
    """`met` if the upper bound is within the goal, `missed` if the lower is not, else `unclear`."""
    if found.upper is None or found.low is None:
        return "unclear"
    if found.upper <= 1 + goal:
        return "met"
    return "missed" if found.low > 1 + goal else "unclear"


def agreement(found: Estimate, within: float) -> str:
    """`met` if the ratio's interval lies that close to 1 on both sides, `missed` if all of it is
    farther away, else `unclear`."""
    if found.upper is None or found.low is None:
        return "unclear"
    if 1 - within <= found.low and found.upper <= 1 + within:
        return "met"
    return "missed" if found.low > 1 + within or found.upper < 1 - within else "unclear"
