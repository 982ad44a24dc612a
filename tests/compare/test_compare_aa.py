"""What `compare` claims of recorded processes that do not differ, and of changes planted in them.

The series are those of benchmarks/compare_aa.py, each from a process of its own.
"""

import importlib
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
pytestmark = pytest.mark.slow  # judges some thousand comparisons
MODULES = ("_aa_judge", "_aa_record", "_about", "compare_aa")


@pytest.fixture(scope="module")
def judged():
    """The counts of verdicts over all programs, and how many series they are from."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        aa, judge = (importlib.import_module(name) for name in ("compare_aa", "_aa_judge"))
        document = judge.judged(aa.load(BENCHMARKS / "results" / aa.SERIES))
        return document["series"], judge.sums(document)
    finally:
        sys.path.remove(str(BENCHMARKS))
        for name in MODULES:
            sys.modules.pop(name, None)


def share(counts, *verdicts):
    return sum(counts[name] for name in verdicts) / sum(counts.values())


def test_there_are_series_enough(judged):
    series, sums = judged
    assert series >= 100
    assert {side for side, _, _ in sums} == {1, 2, 3, 4, 5}


def test_the_same_program_is_called_faster_or_slower_in_one_case_of_20_at_most(judged):
    _, sums = judged
    same = {key: counts for key, counts in sums.items() if not key[2]}
    assert len(same) == 7
    assert max(share(counts, "FASTER", "SLOWER") for counts in same.values()) <= 0.05


def test_a_change_of_three_noise_floors_is_found(judged):
    _, sums = judged
    found = {key: share(counts, "SLOWER") for key, counts in sums.items() if key[2] == 3}
    assert len(found) == 7
    assert min(found.values()) >= 0.95


def test_smaller_changes_are_unclear_rather_than_wrong(judged):
    _, sums = judged
    wrong = {key: share(counts, "FASTER", "SAME") for key, counts in sums.items() if key[2] > 0}
    assert max(wrong.values()) <= 0.05
