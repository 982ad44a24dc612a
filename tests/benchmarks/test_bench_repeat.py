"""What benchmarks/bench_repeat.py and bench_agreement.py may claim from their times."""

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepscope.bench.grid import Point
from stepscope.bench.record import ProcessRecord
from stepscope.bench.results import PointStatus
from stepscope.workloads.measure.record import TrainMeasured

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
HEAD = {
    "device": "cpu",
    "date": "2026-01-01",
    "command": "python benchmarks/some.py",
    "machine": {"cpu": {"model": "Some CPU"}, "gpus": []},
    "versions": {"python": "3.11", "torch": "2.13", "stepscope": "0.1", "commit": None},
}


@pytest.fixture(scope="module")
def load() -> Iterator[Callable[[str], Any]]:
    """Imports the benchmarks' modules by name; they are forgotten again."""
    before = set(sys.modules)
    sys.path.insert(0, str(BENCHMARKS))
    yield importlib.import_module
    sys.path.remove(str(BENCHMARKS))
    for name in set(sys.modules) - before:
        if name.startswith(("_repeat_", "_agreement_", "_about", "bench_")):
            del sys.modules[name]


def processes(count: int, seed: int = 1) -> list[list[float]]:
    draw = np.random.default_rng(seed)
    means = 10 * (1 + 0.01 * draw.standard_normal((count, 1)))
    return [list(one) for one in means * (1 + 0.02 * draw.standard_normal((count, 40)))]


POINT = Point.of("mlp", "train", 4, "cpu")


def record(series: list[float]) -> ProcessRecord:
    measured = TrainMeasured(series_ms=series)
    return ProcessRecord(key="", point=POINT, status=PointStatus.OK, measured=measured)


def test_every_two_groups_without_a_common_process_are_compared_once(load: Any) -> None:
    splits = load("_repeat_splits").all_splits(5, 2)
    assert len(splits) == 15
    assert len({frozenset(split) for split in splits}) == 15
    assert all(not set(ours) & set(theirs) for ours, theirs in splits)


def test_of_very_many_splits_some_are_chosen_always_the_same(load: Any) -> None:
    splits = load("_repeat_splits").all_splits(10, 3)
    assert len(splits) == len(set(splits)) == 400
    assert splits == load("_repeat_splits").all_splits(10, 3)


def test_independent_pairs_alternate_and_share_no_process(load: Any) -> None:
    independent = load("_repeat_splits").independent
    assert independent(13) == [((0, 2, 4), (1, 3, 5)), ((6, 8, 10), (7, 9, 11))]
    assert independent(5) == []


def test_processes_that_are_alike_are_hardly_ever_told_apart(load: Any) -> None:
    found = load("_repeat_splits").counted(processes(10))
    assert sum(found["splits"]["3"].values()) == 400
    assert load("_repeat_splits").claims(found["splits"]["3"]) <= 20
    assert sum(found["independent"].values()) == 1


def test_a_points_processes_are_summed_up_and_shown(load: Any) -> None:
    repeat, tables = load("bench_repeat"), load("_repeat_table")
    records = [record(series) for series in processes(6)]
    why = "no such thing"
    failed = [ProcessRecord(key="", point=POINT, status=PointStatus.FAILED, why=why)]
    points = [
        repeat.summed_up("mlp train", records) | repeat.judged(records),
        repeat.summed_up("gpt train", failed) | repeat.judged(failed),
    ]
    assert 0.005 < points[0]["deviation"] < 0.02 < points[0]["noise_floor"]
    text = tables.table({**HEAD, "points": points})
    assert "| mlp train | 6 | 10." in text
    assert "| gpt train | 0 | – | – | – | – | no such thing |" in text
    assert "| 3 against 3, independent | 1 | 0 |" in text
    assert "5 against 5" not in text


@pytest.mark.parametrize(
    ("theirs", "agrees"),
    [([1.0, 1.01, 1.02], "yes"), ([1.1, 1.11, 1.09], "no"), ([0.7, 1.4, 1.0], "unclear")],
)
def test_clocks_agree_within_their_noise_unless_it_is_too_much(
    load: Any, theirs: list[float], agrees: str
) -> None:
    rounds = {"ours": [1.0, 1.0, 1.01], "theirs": theirs}
    found = load("_agreement_table").agreement(rounds, "ours")
    assert found["clocks"]["theirs"]["agrees"] == agrees
    result = {"function": "a product", **found}
    document = {**HEAD, "results": [result], "notes": ["none"], "least": 0.02, "most": 0.05}
    text = load("_agreement_table").table(document)
    assert "| a product | ours | 3 | 1000 ms |  |" in text
    assert f"| {agrees} |" in text


def test_a_single_round_says_nothing_of_noise(load: Any) -> None:
    with pytest.raises(ValueError, match="single round"):
        load("_agreement_table").agreement({"ours": [1.0], "theirs": [1.0]}, "ours")


def test_clocks_that_the_device_lacks_are_named(load: Any) -> None:
    known, missing = load("_agreement_functions").clocks("cpu", 0.1)
    assert "triton.testing.do_bench" not in known
    assert missing == ["triton.testing.do_bench was left out: it needs a CUDA device"]
