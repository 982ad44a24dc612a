"""How many unclocked steps lie between two clocked blocks. Times are nanoseconds."""

from random import Random
from statistics import fmean

import pytest

from stepscope.probe.step_clocks import Budget, hook_ns

US, MS, S = 1_000, 1_000_000, 1_000_000_000


def budget(share=0.01, hook=100.0, hooks=8.0):
    """Of a machine on which the hooks make a clocked step expected to cost 36 µs."""
    made = Budget(share, hook, begun=0, random=Random(1))
    made.hooks_seen(hooks)
    return made


def told(made, difference, pairs=10, step=MS, noise=0):
    random = Random(2)
    for _ in range(pairs):
        off = random.gauss(0, noise)
        made.compared([int(step + difference + off)] * 8, [step] * 16)
    return made


def test_before_blocks_were_compared_the_number_of_hooks_decides():
    assert budget().cost == pytest.approx(8 * 100 * 45)
    assert told(budget(), 70 * US, pairs=3).cost == budget().cost


def test_what_blocks_show_decides_from_then_on():
    assert told(budget(), 70 * US).cost == pytest.approx(70 * US)


def test_noise_moves_the_estimate_within_bounds():
    assert 40 * US < told(budget(), 70 * US, noise=30 * US).cost < 150 * US
    deafening = told(budget(), 0, noise=50 * MS, step=200 * MS)
    assert budget().expected / 4 <= deafening.cost <= budget().expected * 4


def test_one_disturbed_block_changes_little():
    made = told(budget(), 70 * US)
    made.compared([500 * MS] * 8, [MS] * 16)
    assert made.cost == pytest.approx(70 * US, rel=0.1)


def test_long_steps_are_all_clocked_and_short_ones_are_not():
    made = told(budget(), 70 * US)
    assert made.is_enough_for_all(40 * MS)
    assert not made.is_enough_for_all(MS)


def test_what_blocks_cost_stays_within_the_share():
    made = told(budget(), 70 * US)
    for step in (2 * MS, 8 * MS):
        gaps = [made.steps_between(step, 10, now=S) for _ in range(300)]
        spent = 10 * 70 * US + fmean(gaps) * made.unclocked_cost
        assert spent / ((10 + fmean(gaps)) * step) < 0.01
        assert len(set(gaps)) > 5


def test_distances_are_at_most_a_quarter_of_a_minute_or_a_share_of_a_long_run():
    made = told(budget(share=0.0001), 200 * US)
    early = [made.steps_between(MS, 10, now=S) for _ in range(300)]
    late = [made.steps_between(MS, 10, now=36_000 * S) for _ in range(300)]
    assert 14_000 < fmean(early) < 16_000
    assert fmean(late) > 9 * fmean(early)


def test_once_the_mean_is_known_few_blocks_are_made():
    made = told(budget(), 70 * US, pairs=3)
    before = made.steps_between(8 * MS, 10, now=S)
    told(made, 70 * US, pairs=40)
    assert made.steps_between(8 * MS, 10, now=S) > 3 * before


def test_steps_of_varying_length_need_more_blocks():
    steady, varying = budget(), budget()
    for number in range(60):
        steady.compared([MS] * 8, [MS] * 16)
        varying.compared([MS * (1 + number % 5)] * 8, [MS] * 16)
    gaps = [made.steps_between(MS, 10, now=S) for made in (steady, varying)]
    assert gaps[0] > 2 * gaps[1]


def test_a_hooks_time_is_that_of_the_quickest_round():
    times = iter(range(0, 10**9, 7))
    assert hook_ns(lambda: next(times)) == pytest.approx(7 * 2, rel=0.1)
