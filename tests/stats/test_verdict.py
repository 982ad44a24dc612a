"""What is claimed of two groups of processes: hardly ever a difference where there is none."""

import numpy as np
import pytest

from stepscope.stats.verdict import Verdict, compare_processes, noise_floor

TRIALS, STEPS = 120, 40
CLAIMS = {Verdict.FASTER, Verdict.SLOWER}
COUNTS = [1, 2, 3, 5, 10]


def steady(draw, count, share=0.05):
    return 10 * (1 + share * draw.standard_normal((TRIALS, count, STEPS)))


def correlated(draw, count):
    """Noise that stays for about ten steps."""
    noise = draw.standard_normal((STEPS, TRIALS, count))
    for step in range(1, STEPS):
        noise[step] = 0.9 * noise[step - 1] + 0.19**0.5 * noise[step]
    return 10 * (1 + 0.05 * np.moveaxis(noise, 0, -1))


def offset(draw, count, share):
    return steady(draw, count) * np.exp(share * draw.standard_normal((TRIALS, count, 1)))


def drifting(draw, count):
    slopes = 0.05 * draw.standard_normal((TRIALS, count, 1))
    return offset(draw, count, 0.01) * (1 + slopes * np.linspace(0, 1, STEPS))


def long_steps(draw, count):
    """One step of a hundred takes ten times as long."""
    return steady(draw, count) * np.where(draw.random((TRIALS, count, STEPS)) < 0.01, 10, 1)


def slow_processes(draw, count):
    """One process of fifty is a third slower: a neighbour was there."""
    return offset(draw, count, 0.01) * np.where(draw.random((TRIALS, count, 1)) < 0.02, 4 / 3, 1)


def two_kinds(draw, count):
    """Half of all processes are 5% slower, as with one of two algorithms chosen by chance."""
    return steady(draw, count, 0.01) * np.where(draw.random((TRIALS, count, 1)) < 0.5, 1.05, 1)


NOISES = {
    "independent steps": steady,
    "correlated steps": correlated,
    "processes 1% apart": lambda draw, count: offset(draw, count, 0.01),
    "processes 5% apart": lambda draw, count: offset(draw, count, 0.05),
    "drift inside processes": drifting,
    "long steps": long_steps,
    "slow processes": slow_processes,
    "two kinds of processes": two_kinds,
}


def claimed(ours, theirs, floor=None):
    found = [compare_processes(a, b, floor).verdict for a, b in zip(ours, theirs, strict=True)]
    return sum(one in CLAIMS for one in found) / len(found)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("noise", NOISES.values(), ids=NOISES)
def test_no_difference_is_claimed_as_one_at_most_once_in_twenty(noise, count):
    draw = np.random.default_rng(7)
    assert claimed(noise(draw, count), noise(draw, count)) <= 0.05


@pytest.mark.parametrize("count", [2, 3, 5])
def test_nor_with_a_noise_floor_from_the_same_processes(count):
    draw = np.random.default_rng(8)
    ours, theirs = (offset(draw, count, 0.05) for _ in range(2))
    found = [
        compare_processes(a, b, noise_floor([a, b])) for a, b in zip(ours, theirs, strict=True)
    ]
    assert sum(one.verdict in CLAIMS for one in found) <= 0.05 * TRIALS


def test_nor_where_only_one_side_is_noisy():
    draw = np.random.default_rng(9)
    assert claimed(offset(draw, 3, 0.05), offset(draw, 3, 0.002)) <= 0.05
    assert claimed(offset(draw, 2, 0.05), offset(draw, 5, 0.002)) <= 0.05


@pytest.mark.parametrize(("count", "least"), [(2, 0.75), (3, 0.95), (5, 1.0)])
def test_a_tenth_is_found_with_processes_one_percent_apart(count, least):
    draw = np.random.default_rng(10)
    base, other = offset(draw, count, 0.01), offset(draw, count, 0.01) / 1.1
    found = [compare_processes(a, b) for a, b in zip(base, other, strict=True)]
    assert sum(one.verdict is Verdict.FASTER for one in found) >= least * TRIALS
    held = sum(one.low <= 1.1 <= one.high for one in found)
    assert held >= 0.93 * TRIALS


def of_means(*means):
    return [[mean] * 20 for mean in means]


def test_sides_that_overlap_are_not_told_apart_by_their_means_alone():
    base, other = of_means(12.0, 13.0, 14.0, 15.0, 16.0), of_means(8.0, 8.5, 9.0, 12.5, 13.5)
    found = compare_processes(base, other)
    assert found.verdict is Verdict.UNCLEAR
    assert found.low == pytest.approx(1.0)
    assert compare_processes(other, base).high == pytest.approx(1.0)
    nearer = of_means(8.0, 8.5, 9.0, 12.5, 12.6)
    assert compare_processes(base, nearer).verdict is Verdict.FASTER


def test_processes_that_are_the_same_are_called_so_once_there_are_enough():
    draw = np.random.default_rng(11)
    pairs = zip(steady(draw, 10), steady(draw, 10), strict=True)
    assert sum(compare_processes(a, b).verdict is Verdict.SAME for a, b in pairs) > 0.95 * TRIALS


def test_a_tenth_of_difference_is_never_called_the_same():
    draw = np.random.default_rng(12)
    base, other = offset(draw, 3, 0.03), offset(draw, 3, 0.03) / 1.1
    pairs = zip(base, other, strict=True)
    assert not any(compare_processes(a, b, floor=0.2).verdict is Verdict.SAME for a, b in pairs)


def alike(mean, count=3, share=0.001):
    return [[mean * (1 + share * place)] * 20 for place in range(count)]


@pytest.mark.parametrize(
    ("other", "verdict"),
    [(5.0, Verdict.FASTER), (20.0, Verdict.SLOWER), (10.0, Verdict.SAME), (9.9, Verdict.SAME),
     (9.8, Verdict.UNCLEAR)],
)  # fmt: skip
def test_quiet_processes_are_judged_by_what_they_show(other, verdict):
    found = compare_processes(alike(10.0), alike(other))
    assert found.verdict is verdict
    assert found.low <= found.ratio <= found.high
    assert found.ratio == pytest.approx(10 / other)


def test_sides_changed_give_the_inverse():
    draw = np.random.default_rng(13)
    a, b = offset(draw, 3, 0.02)[:2]
    there, back = compare_processes(a, 0.8 * b), compare_processes(0.8 * b, a)
    assert (there.ratio, there.low, there.high) == pytest.approx(
        (1 / back.ratio, 1 / back.high, 1 / back.low)
    )
    assert {there.verdict, back.verdict} == CLAIMS


def test_a_single_process_a_side_claims_only_much():
    one = [[10.0, 10.1] * 50]
    assert compare_processes(one, [[9.0] * 100]).verdict is Verdict.UNCLEAR
    assert compare_processes(one, one).verdict is Verdict.UNCLEAR
    assert compare_processes(one, [[7.5] * 100]).verdict is Verdict.FASTER


def test_a_single_process_against_several_is_as_uncertain_as_the_several_show():
    loud = [[8.0] * 20, [10.0] * 20, [12.0] * 20]
    assert compare_processes([[15.0] * 20], loud).verdict is Verdict.UNCLEAR
    assert compare_processes([[15.0] * 20], alike(10.0)).verdict is Verdict.FASTER


def test_no_interval_is_narrower_than_the_noise_floor_implies():
    narrow, wide = (compare_processes(alike(10.0), alike(9.5), floor) for floor in (None, 0.1))
    assert narrow.verdict is Verdict.FASTER
    assert wide.verdict is Verdict.UNCLEAR
    assert wide.high / wide.ratio == pytest.approx(1.1 ** (1 / 3**0.5))


def test_what_counts_as_the_same_is_two_to_five_percent_with_the_floor():
    floors = [
        compare_processes(alike(10.0), alike(10.0), floor).floor
        for floor in (None, 0.001, 0.03, 0.3)
    ]
    assert floors == [0.02, 0.02, 0.03, 0.05]


def test_times_without_any_noise_are_judged():
    assert compare_processes([[1.0]] * 3, [[2.0]] * 3).verdict is Verdict.SLOWER
    assert compare_processes([[1.0]] * 3, [[1.0]] * 3).verdict is Verdict.SAME


def test_the_noise_floor_is_what_pairs_of_processes_stay_within():
    draw = np.random.default_rng(14)
    groups = np.concatenate([offset(draw, 3, 0.02) for _ in range(4)])
    floor = noise_floor(groups)
    assert floor == pytest.approx(1.96 * 2**0.5 * 0.0215, rel=0.1)
    logs = np.log(groups.mean(axis=2))
    apart = np.abs(np.concatenate([logs[:, 0] - logs[:, 1], logs[:, 1] - logs[:, 2]]))
    assert 0.92 < (apart < np.log1p(floor)).mean() < 0.98


def test_one_noisy_group_does_not_raise_the_noise_floor_of_many():
    draw = np.random.default_rng(15)
    quiet = list(offset(draw, 3, 0.01)[:9])
    loud = list(offset(draw, 3, 0.3)[:1])
    assert noise_floor([*quiet, *loud]) < 1.5 * noise_floor(quiet)


def test_few_processes_give_a_wary_noise_floor():
    pair = [[10.0] * 20, [10.1] * 20]
    assert noise_floor([pair]) > 3 * noise_floor([pair] * 10)


def test_single_processes_give_no_noise_floor():
    assert noise_floor([]) is None
    assert noise_floor([[[1.0]], [[2.0]]]) is None
    assert noise_floor([[], [[1.0], [1.0]]]) == 0
