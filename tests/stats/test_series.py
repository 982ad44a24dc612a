"""Warm-up, spikes and drift of made-up series of step times."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.stats.series import Spike, drift, find_spikes, warmup_length

PROPERTY = settings(max_examples=40)
TIMES = st.lists(st.floats(0.01, 1e4), max_size=60).map(np.array)


def noisy(length, usual=10.0, share=0.02, seed=0):
    return usual * (1 + share * np.random.default_rng(seed).standard_normal(length))


@pytest.mark.parametrize("slow", [1, 2, 3, 7])
def test_the_warmup_ends_where_steps_become_usual(slow):
    values = noisy(60)
    values[:slow] *= np.linspace(20, 5, slow)
    assert warmup_length(values) == slow


def test_the_first_step_always_belongs_to_the_warmup():
    assert warmup_length(np.full(20, 5.0)) == 1


@pytest.mark.parametrize("length", [0, 1, 2, 3])
def test_too_few_steps_have_no_warmup(length):
    assert warmup_length(np.full(length, 5.0)) == 0


def test_steps_that_never_settle_lose_half_at_most():
    assert warmup_length(np.linspace(100, 1, 40)) <= 20


def test_a_fast_second_step_among_slow_ones_does_not_end_the_warmup():
    values = noisy(60)
    values[:6] = [500, 10, 300, 250, 200, 150]
    assert warmup_length(values) >= 6


def test_a_late_spike_does_not_stretch_the_warmup():
    values = noisy(60)
    values[0] = 300
    values[40] = 900
    assert warmup_length(values) == 1


@PROPERTY
@given(TIMES)
def test_the_warmup_is_between_one_step_and_half_of_them(values):
    found = warmup_length(values)
    assert (found == 0) if len(values) < 4 else (1 <= found <= len(values) // 2)


def test_spikes_are_found_worst_first():
    values = noisy(50)
    values[[10, 30]] = 40, 90
    assert find_spikes(values) == [Spike(30, 90.0), Spike(10, 40.0)]


def test_ordinary_noise_has_no_spikes():
    assert find_spikes(noisy(500, share=0.05)) == []


def test_steps_all_alike_have_no_spikes():
    assert find_spikes(np.full(50, 3.0)) == []


def test_a_step_only_a_little_longer_is_no_spike():
    values = np.full(50, 10.0)
    values[20] = 14.0
    assert find_spikes(values) == []


def test_too_few_steps_have_no_spikes():
    assert find_spikes(np.array([1, 1, 1, 100, 1, 1, 1.0])) == []


@PROPERTY
@given(TIMES)
def test_a_spike_is_at_least_half_as_long_again_as_usual(values):
    for spike in find_spikes(values):
        assert spike.value == values[spike.index]
        assert spike.value > 1.5 * np.median(values)


@pytest.mark.parametrize("change", [-0.3, 0.2, 0.5])
def test_drift_is_the_change_from_the_first_to_the_last_quarter(change):
    values = noisy(400) * np.repeat([1, 1, 1, 1 + change], 100)
    assert drift(values) == pytest.approx(change, abs=0.02)


@pytest.mark.parametrize("seed", range(20))
def test_noise_alone_does_not_drift(seed):
    assert abs(drift(noisy(400, share=0.1, seed=seed))) < 0.05


def test_steps_all_alike_do_not_drift():
    assert drift(np.full(40, 3.0)) == 0.0


def test_too_few_steps_tell_nothing_about_drift():
    assert drift(noisy(39)) is None


def test_steps_of_no_length_do_not_drift():
    assert drift(np.zeros(50)) == 0.0
