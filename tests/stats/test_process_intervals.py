"""Means of step times, and how well they are known from few processes."""

import math

import numpy as np
import pytest

from stepscope.stats.intervals import (
    block_means,
    estimate,
    noise_margin,
    student_t,
    within_process_margin,
)
from stepscope.stats.series import cycle_length


def noisy(length, share=0.05, seed=0):
    return 10.0 * (1 + share * np.random.default_rng(seed).standard_normal(length))


def bursts(length, period, seed=0):
    values = noisy(length, seed=seed)
    values[::period] *= 20
    return values


def held_by_student(degrees, within_errors):
    """The probability of Student's t within so many standard errors, by adding up its density."""
    log_scale = math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)
    scale = math.exp(log_scale) / math.sqrt(degrees * math.pi)
    edges = np.linspace(0, within_errors, 20001)
    middles = (edges[:-1] + edges[1:]) / 2
    density = scale * (1 + middles**2 / degrees) ** (-(degrees + 1) / 2)
    return 2 * float(density.sum()) * float(edges[1])


@pytest.mark.parametrize("degrees", [1, 1.3, 1.7, 2, 2.5, 3, 4.4, 7, 9, 12, 20, 50, 1000])
def test_students_t_holds_95_of_100_also_between_whole_degrees(degrees):
    assert held_by_student(degrees, student_t(degrees)) == pytest.approx(0.95, abs=0.002)


def test_blocks_are_ten_at_most_and_of_16_steps_at_least():
    assert [len(block_means(noisy(n))) for n in (5000, 160, 100, 64)] == [10, 10, 6, 4]


def test_short_series_still_have_four_blocks_and_shorter_ones_a_block_a_step():
    assert [len(block_means(noisy(n))) for n in (20, 10, 4, 3, 1, 0)] == [4, 4, 4, 3, 1, 0]


def test_no_step_is_left_out_of_blocks():
    assert block_means([1, 2, 3, 4, 5, 6, 7]) == pytest.approx([1, 2.5, 4.5, 6.5])


@pytest.mark.parametrize("period", [2, 5, 12, 24])
def test_bursts_of_loader_workers_are_found_and_their_blocks_hold_whole_ones(period):
    values = bursts(240, period)
    assert cycle_length(values) == period
    means = block_means(values)
    assert means.std() / means.mean() < 0.05


@pytest.mark.parametrize(
    "values",
    [noisy(100), np.full(100, 3.0), np.linspace(1, 2, 100), noisy(100).cumsum(), noisy(5)],
    ids=["noise", "all alike", "a drift", "a sum of noise", "too short"],
)
def test_what_does_not_return_is_no_cycle(values):
    assert cycle_length(values) == 1


def test_an_estimate_lies_between_its_processes_and_says_their_spread():
    found = estimate([[10.0] * 20, [10.2] * 20, [9.8] * 20])
    assert found.value == pytest.approx(10, rel=1e-3)
    assert found.spread == pytest.approx(0.02, rel=0.05)
    assert found.processes == 3
    # Three processes: two degrees of freedom, 4.3 standard errors.
    assert found.high / found.value == pytest.approx(1 + 4.3 * 0.02 / math.sqrt(3), rel=0.01)
    assert found.value / found.low == pytest.approx(found.high / found.value)


def test_the_speed_is_all_time_over_all_steps_not_a_median():
    assert estimate([bursts(240, 12)]).value == pytest.approx(10 * (11 + 20) / 12, rel=0.02)


def test_a_single_process_leaves_open_how_others_would_differ():
    found = estimate([noisy(1000, 0.01)])
    assert found.spread is None
    assert found.high / found.value > 1.1
    assert estimate([noisy(1000, 0.01)], floor=0.06).high / found.value < 1.06


def test_a_noisy_single_process_is_known_less():
    quiet, loud = estimate([noisy(40, 0.01)]), estimate([noisy(40, 0.8)])
    assert loud.high / loud.value > quiet.high / quiet.value + 0.1


def test_processes_that_agree_by_chance_are_believed_no_more_than_their_own_noise():
    one = noisy(40, 0.5)
    found = estimate([one, one[::-1], one])
    assert found.spread == pytest.approx(0, abs=1e-9)
    assert found.high / found.value > 1.05


@pytest.mark.parametrize("count", [2, 3, 5, 10])
def test_intervals_hold_the_truth_95_times_of_100(count):
    draw = np.random.default_rng(count)
    offsets = 0.03 * draw.standard_normal((300, count, 1))
    times = 10 * np.exp(offsets) * (1 + 0.05 * draw.standard_normal((300, count, 40)))
    found = [estimate(processes) for processes in times]
    held = sum(one.low <= 10 <= one.high for one in found) / len(found)
    assert 0.93 <= held <= 0.985


def test_an_interval_narrows_with_processes_not_with_steps():
    draw = np.random.default_rng(1)

    def width(count, steps):
        offsets = 1 + 0.03 * draw.standard_normal((100, count, 1))
        found = map(estimate, 10 * offsets * (1 + 0.02 * draw.standard_normal((100, count, steps))))
        return float(np.median([one.high / one.low - 1 for one in found]))

    assert width(3, 1000) == pytest.approx(width(3, 100), rel=0.3)
    assert width(12, 100) < width(3, 100) / 2


def test_a_floor_shrinks_with_the_processes_that_average_it():
    assert noise_margin(0.06, 3, 3) == pytest.approx(math.log(1.06) / math.sqrt(3))
    assert noise_margin(0.06, 1, 1) == pytest.approx(math.log(1.06))


def test_one_or_two_processes_are_never_believed_to_five_percent():
    assert noise_margin(0.001, 1, 1) == pytest.approx(math.log(1.05))
    assert noise_margin(None, 2, 5) > noise_margin(None, 3, 5) == 0


def test_series_of_one_step_have_no_noise_within():
    assert within_process_margin([[3.0], [4.0]]) == 0


@pytest.mark.parametrize(
    "processes", [[], [[]], [[1.0], []], [[0.0, 0.0]], [[-1.0]], [[math.nan]], [[math.inf]]]
)
def test_what_are_no_step_times_is_refused(processes):
    with pytest.raises(ValueError, match=r"process|positive"):
        estimate(processes)
