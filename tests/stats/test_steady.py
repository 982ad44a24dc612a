"""Why a series, or a set of processes, is called unstable."""

import numpy as np
import pytest

from stepscope.stats.intervals import why_unstable


def noisy(length, share=0.03, seed=0):
    return 10.0 * (1 + share * np.random.default_rng(seed).standard_normal(length))


@pytest.mark.parametrize(
    "values",
    [
        noisy(200),
        noisy(2000, 0.15),
        noisy(12, 0.02),
        [5.0] * 50,
        noisy(240) * np.where(np.arange(240) % 12, 1, 20),
        [1.0, 9.0, 1.0],
        [],
    ],
    ids=["noise", "much noise", "few", "all alike", "bursts of a loader", "too few", "none"],
)
def test_steady_series_are_not_called_unstable(values):
    assert why_unstable([values]) is None


@pytest.mark.parametrize("seed", range(20))
def test_nor_are_those_of_processes_a_little_apart(seed):
    draw = np.random.default_rng(seed)
    assert (
        why_unstable([noisy(60, 0.04, seed + n) * draw.uniform(0.98, 1.02) for n in range(3)])
        is None
    )


@pytest.mark.parametrize(("factor", "word"), [(1.12, "slower"), (0.88, "faster")])
def test_halves_that_differ(factor, word):
    values = noisy(200) * np.repeat([1, factor], 100)
    assert why_unstable([values]) == f"the second half is 12% {word} than the first"


def test_blocks_that_vary_up_and_down():
    waves = 1 + 0.15 * np.sign(np.sin(np.arange(400) / 20))
    why = why_unstable([noisy(400) * waves])
    assert why is not None
    assert why.startswith("blocks vary by ")


def test_few_long_steps_are_named():
    values = noisy(200)
    values[120] = 300.0
    assert why_unstable([values]) == "1 of 200 steps 30.0× slower than typical"
    values[30] = 200.0
    assert why_unstable([values]) == "2 of 200 steps up to 30.0× slower than typical"


def test_processes_that_differ():
    why = why_unstable([[10.0] * 50, [10.9] * 50, [10.4] * 50])
    assert why == "processes differ by 9%"


def test_one_unstable_process_among_others_is_named():
    bad = noisy(200) * np.repeat([0.94, 1.052], 100)
    why = why_unstable([noisy(200), bad, noisy(200)])
    assert why == "the second half is 12% slower than the first, in process 2 of 3"
