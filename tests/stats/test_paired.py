"""Paired blocks: what gains nothing is not accepted, whatever the noise; what gains is found."""

import math
import random
from itertools import pairwise
from statistics import fmean

import pytest

from stepscope.stats.paired import MIN_GAIN, Decision, decide, paired_ratio


def white(draw):
    while True:
        yield draw.gauss(0, 0.05)


def steady(draw):
    while True:
        yield draw.gauss(0, 0.005)


def resembling(draw):
    """Each step nearly like the one before."""
    level = 0.0
    while True:
        level = 0.95 * level + draw.gauss(0, 0.03)
        yield level


def drifting(draw):
    level = 0.0
    while True:
        level += 1e-3
        yield level + draw.gauss(0, 0.03)


def bursting(draw):
    """Now and then a dozen steps take nearly twice as long."""
    left = 0
    while True:
        left = draw.randint(1, 12) if not left and draw.random() < 0.02 else max(0, left - 1)
        yield draw.gauss(0, 0.02) + (0.6 if left else 0.0)


def heavy_tailed(draw):
    while True:
        yield 0.03 * draw.gauss(0, 1) / max(0.1, abs(draw.gauss(0, 1)))


NOISES = (white, steady, resembling, drifting, bursting, heavy_tailed)


def contest(noise, gain, draw, most=100, steps=8):
    """The differences of a contest until it is decided, and the decision."""
    series, differences = noise(draw), []
    for _ in range(most):
        first = draw.random() < 0.5
        times = {}
        for on in (first, not first):
            mean = fmean(math.exp(next(series)) for _ in range(steps))
            times[on] = mean / (1 + gain) if on else mean
        differences.append(math.log(times[False] / times[True]))
        decision = decide(differences)
        if decision is not Decision.OPEN:
            return decision, differences
    return Decision.OPEN, differences


@pytest.mark.parametrize("noise", NOISES)
def test_what_gains_nothing_is_hardly_ever_accepted(noise):
    draw = random.Random(1)
    ended = [contest(noise, 0.0, draw, most=40)[0] for _ in range(200)]
    assert sum(one is Decision.GAIN for one in ended) <= 4


@pytest.mark.parametrize("noise", NOISES)
def test_a_fifth_is_found_in_any_noise(noise):
    draw = random.Random(2)
    assert all(contest(noise, 0.2, draw)[0] is Decision.GAIN for _ in range(50))


@pytest.mark.parametrize(("noise", "gain"), [(white, 0.05), (resembling, 0.05), (steady, 0.02)])
def test_small_gains_are_found_19_times_of_20(noise, gain):
    draw = random.Random(3)
    found = [contest(noise, gain, draw)[0] is Decision.GAIN for _ in range(100)]
    assert sum(found) >= 95


def test_a_gain_below_the_least_is_not_worth_a_change():
    draw = random.Random(4)
    ended = [contest(steady, MIN_GAIN / 2, draw)[0] for _ in range(100)]
    assert Decision.GAIN not in ended


def test_what_is_slower_is_given_up_within_a_few_pairs():
    draw = random.Random(5)
    ended = [contest(white, -0.2, draw) for _ in range(50)]
    assert {decision for decision, _ in ended} == {Decision.NO_GAIN}
    assert max(len(differences) for _, differences in ended) <= 8


def test_a_large_gain_takes_nine_pairs_at_most():
    assert decide([math.log(1.3)] * 9) is Decision.GAIN
    assert decide([math.log(1.3)] * 3) is Decision.OPEN


def test_one_outlier_hides_no_gain():
    assert decide([0.1, 0.09, 0.11, 0.1, -2.0, *[0.1, 0.105] * 8]) is Decision.GAIN


def test__equal_blocks_are_no_gain():
    assert decide([0.0] * 4) is Decision.NO_GAIN


def test_the_range_narrows_with_the_pairs():
    draw = random.Random(6)
    differences = [draw.gauss(0.05, 0.02) for _ in range(64)]
    ranges = [paired_ratio(differences[:count]) for count in (4, 16, 64)]
    assert all(one.low < math.exp(0.05) < one.high for one in ranges)
    widths = [one.high - one.low for one in ranges]
    assert all(less < more for more, less in pairwise(widths))
