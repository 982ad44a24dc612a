"""Verdicts, noise floors and exit codes of comparisons."""

from types import SimpleNamespace

import pytest
from compare_world import item, run, times

from stepscope.compare.document import compare_results, exit_code, parse_limit
from stepscope.compare.verdicts import Pair, floor_of_pair, judge_pair
from stepscope.hardware.noise_floors import NoiseFloor
from stepscope.record.errors import UsageError
from stepscope.results.comparison import FloorSource, decisive_item

QUIET = NoiseFloor(0.01, 6)


def verdict(base, other, stored=QUIET, pairs=1, **more):
    pair = Pair(item(*base, **more), item(*other, **more))
    return judge_pair(pair, stored, False, pairs)


def test_a_step_that_takes_longer_is_slower_by_so_much():
    found = verdict([times(10.0)], [times(12.0, seed=1)])
    assert found.verdict == "SLOWER"
    assert found.change == pytest.approx(0.2, abs=0.01)
    assert 0.1 < found.low < 0.2 < found.high < 0.3


def test_a_step_that_takes_less_is_faster_and_its_interval_negative():
    found = verdict([times(10.0)], [times(8.0, seed=1)])
    assert found.verdict == "FASTER"
    assert found.low < found.change < found.high < 0
    assert found.speedup == pytest.approx(1.25, abs=0.01)


def test_the_same_in_many_processes_is_the_same():
    base = [times(10.0, seed=n) for n in range(5)]
    other = [times(10.0, seed=n) for n in range(5, 10)]
    assert verdict(base, other).verdict == "SAME"


def test_one_process_a_side_without_a_stored_floor_claims_only_large_changes():
    base, other = [times(10.0)], [times(11.2, seed=1)]
    assert verdict(base, other, stored=None).verdict == "UNCLEAR"
    assert verdict(base, other).verdict == "SLOWER"
    assert verdict(base, [times(13.0)], stored=None).verdict == "SLOWER"


def test_uneven_steps_of_single_processes_are_believed_even_less():
    base, other = [times(10.0, spread=0.9)], [times(20.0, spread=0.9, seed=1)]
    found = verdict(base, other, stored=None)
    assert found.verdict == "UNCLEAR"
    assert found.noise_floor > 1
    assert found.noise_floor_from is FloorSource.ASSUMED
    assert found.within_process_variation > 0.02


def test_three_processes_a_side_stand_on_their_own_noise():
    base = [times(10.0 + n / 10, seed=n) for n in range(3)]
    found = floor_of_pair(base, base, NoiseFloor(0.5, 6), recorded=False)
    assert found.share < 0.1
    assert found.source is FloorSource.OWN


def test_a_stored_floor_says_what_it_was_measured_on():
    base = [times(10.0)]
    found = floor_of_pair(base, base, QUIET, recorded=False)
    assert found == (0.01, FloorSource.STORED, 6, 0.0)


def test_recordings_have_a_wide_floor_whatever_is_stored():
    base = [times(10.0)]
    assert floor_of_pair(base, base, QUIET, recorded=True).share == 0.15


def test_steps_of_different_batches_are_compared_by_sample():
    pair = Pair(item(times(10.0), samples=32.0), item(times(20.0), samples=64.0))
    found = judge_pair(pair, QUIET, False)
    assert found.per == "sample"
    assert abs(found.change) < 0.01
    assert found.base_samples_per_s == pytest.approx(found.other_samples_per_s, rel=0.01)


def test_of_many_pairs_each_interval_is_wider():
    alone = verdict([times(10.0)], [times(12.0)])
    among = verdict([times(10.0)], [times(12.0)], pairs=20)
    assert among.low < alone.low < alone.high < among.high


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        (("SAME", "SLOWER", "FASTER"), "SLOWER"),
        (("SAME", "UNCLEAR", "FASTER"), "UNCLEAR"),
        (("SAME", "FASTER"), "FASTER"),
        (("SAME", "SAME"), "SAME"),
    ],
)
def test_the_worst_pair_speaks_for_all(verdicts, expected):
    items = [SimpleNamespace(verdict=one, change=n / 10) for n, one in enumerate(verdicts)]
    assert decisive_item(items).verdict == expected


@pytest.mark.parametrize(("text", "share"), [("5%", 0.05), ("0.05", 0.05), (" 2.5 %", 0.025)])
def test_a_limit_is_percent_or_a_share(text, share):
    assert parse_limit(text) == pytest.approx(share)


@pytest.mark.parametrize("text", ["5", "much", "-1%", "5%%", "", "nan"])
def test_a_limit_that_is_no_share_is_refused_in_one_line(text):
    with pytest.raises(UsageError, match=r"5% or 0\.05") as problem:
        parse_limit(text)
    assert "\n" not in str(problem.value)


@pytest.mark.parametrize(
    ("low", "verdict", "most", "strict", "code"),
    [
        (0.06, "SLOWER", 0.05, False, 1),
        (0.04, "SLOWER", 0.05, True, 0),
        (0.06, "SLOWER", None, True, 0),
        (-0.1, "UNCLEAR", 0.05, False, 0),
        (-0.1, "UNCLEAR", 0.05, True, 3),
        (0.0, "SAME", 0.0, True, 0),
    ],
)
def test_the_exit_code_is_1_only_where_the_near_end_is_beyond_the_limit(
    low, verdict, most, strict, code
):
    assert exit_code([SimpleNamespace(low=low, verdict=verdict)], most, strict) == code


def test_several_runs_of_a_side_are_its_processes():
    base = [run(10.0, f"a{n}", seed=n) for n in range(3)]
    other = [run(11.0, f"b{n}", seed=n + 5) for n in range(3)]
    found = compare_results(base, other, max_regression=0.05)
    assert found.verdict == "SLOWER"
    assert found.exit_code == 1
    assert found.items[0].base_processes == 3
    assert found.base.names == ("a0", "a1", "a2")


def test_a_training_is_not_compared_with_an_inference():
    with pytest.raises(UsageError, match=r"cannot compare training \(a\) with inference \(b\)"):
        compare_results([run(name="a")], [run(name="b", what="inference")])
