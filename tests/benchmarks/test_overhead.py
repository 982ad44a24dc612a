"""What benchmarks/overhead.py may claim from its times."""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def loaded() -> Iterator[dict[str, ModuleType]]:
    """The benchmark's pure modules, loaded by path and forgotten again."""
    names = ("_overhead_stats", "_overhead_table", "_overhead_children", "_overhead_measure")
    modules = {}
    for name in names:
        spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        modules[name] = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(modules[name])
    yield modules
    for name in names:
        del sys.modules[name]


@pytest.fixture
def stats(loaded: dict[str, ModuleType]) -> Any:
    return loaded["_overhead_stats"]


@pytest.fixture
def tables(loaded: dict[str, ModuleType]) -> Any:
    return loaded["_overhead_table"]


@pytest.fixture
def measure(loaded: dict[str, ModuleType]) -> Any:
    return loaded["_overhead_measure"]


def noisy_pairs(ratio: float, count: int, seed: int = 1) -> list[tuple[float, float]]:
    """Pairs that share the disturbance of their moment, each with noise of its own."""
    draw = np.random.default_rng(seed)
    moment = draw.lognormal(0, 0.3, count)
    own = draw.lognormal(0, 0.01, (count, 2))
    return [(ratio * m * a, m * b) for m, (a, b) in zip(moment, own, strict=True)]


def test_equal_pairs_give_a_ratio_of_one_without_width(stats: Any) -> None:
    found = stats.estimate([(time, time) for time in (2.0, 5.0, 3.0, 8.0, 1.0)])
    assert (found.ratio, found.low, found.upper) == (1.0, 1.0, 1.0)
    assert (found.of_sums, found.of_sums_upper) == (1.0, 1.0)


def test_a_disturbance_both_share_cancels(stats: Any) -> None:
    found = stats.estimate(noisy_pairs(1.02, 100))
    assert found.ratio == pytest.approx(1.02, abs=0.005)
    assert 1.01 < found.low < found.ratio < found.upper < 1.03


def test_one_wild_block_moves_the_sum_and_not_the_median(stats: Any) -> None:
    found = stats.estimate([(1.0, 1.0)] * 20 + [(50.0, 1.0)])
    assert found.ratio == 1.0
    assert found.of_sums > 3
    assert found.pairs == 21


def test_a_cost_that_few_blocks_pay_shows_in_the_sum(stats: Any) -> None:
    found = stats.estimate([(1.5 if i % 10 == 0 else 1.0, 1.0) for i in range(100)])
    assert found.ratio == 1.0
    assert found.of_sums == pytest.approx(1.05)
    assert found.of_sums_upper > 1.05


@pytest.mark.parametrize("count", [5, 8, 40])
def test_the_upper_bound_holds_the_true_ratio_as_often_as_it_says(stats: Any, count: int) -> None:
    held = [stats.estimate(noisy_pairs(1.01, count, seed)).upper >= 1.01 for seed in range(60)]
    assert sum(held) >= 53  # 57 expected; 52 or fewer happen about once in a hundred times


def test_five_pairs_reach_as_far_as_the_worst_of_them(stats: Any) -> None:
    found = stats.estimate([(ratio, 1.0) for ratio in (1.01, 1.02, 1.03, 1.04, 1.05)])
    assert (found.low, found.ratio, found.upper) == (1.01, 1.03, 1.05)


def test_thousands_of_pairs_have_narrow_bounds(stats: Any) -> None:
    found = stats.estimate(noisy_pairs(1.01, 2000))
    assert found.low < 1.01 < found.upper
    assert found.upper - found.low < 0.002


@pytest.mark.parametrize("count", [1, 2, 4])
def test_few_pairs_have_no_bounds_and_no_verdict(stats: Any, count: int) -> None:
    found = stats.estimate([(0.9, 1.0)] * count)
    assert (found.low, found.upper, found.of_sums_upper) == (None, None, None)
    assert stats.verdict(found, 0.01) == "unclear"


@pytest.mark.parametrize("pairs", [[], [(1.0, 0.0)], [(1.0, -2.0)], [(float("nan"), 1.0)]])
def test_times_that_are_no_times_are_refused(stats: Any, pairs: list[tuple[float, float]]) -> None:
    with pytest.raises(ValueError, match="positive"):
        stats.estimate(pairs)


@pytest.mark.parametrize(
    ("low", "upper", "said"),
    [(0.99, 1.009, "met"), (0.99, 1.02, "unclear"), (1.011, 1.02, "missed")],
)
def test_a_goal_is_met_only_if_the_bound_is_within_it(
    stats: Any, low: float, upper: float, said: str
) -> None:
    found = stats.Estimate(10, (low + upper) / 2, low, upper, 1.0, 1.0)
    assert stats.verdict(found, 0.01) == said


def test_short_steps_have_a_goal_of_their_own(stats: Any) -> None:
    assert [stats.goal_for(ms) for ms in (1, 5, 7, 40)] == [0.03, 0.01, 0.01, 0.01]


def test_every_second_order_mirrors_the_one_before(stats: Any) -> None:
    orders = stats.mirrored_orders(("a", "b", "c"), 7, seed=3)
    assert len(orders) == 7
    assert all(sorted(order) == ["a", "b", "c"] for order in orders)
    for first, second in zip(orders[::2], orders[1::2], strict=False):
        assert second == first[::-1]
    assert orders == stats.mirrored_orders(("a", "b", "c"), 7, seed=3)


def test_a_block_that_reaches_into_the_warmup_is_left_out(stats: Any) -> None:
    assert stats.steady([1, 2, 3, 4], block_steps=10, warmup_steps=20) == [3, 4]
    assert stats.steady([1, 2, 3, 4], block_steps=10, warmup_steps=21) == [4]
    assert stats.steady([1, 2, 3, 4], block_steps=10, warmup_steps=0) == [1, 2, 3, 4]


def test_rounds_make_pairs_and_neighbouring_rounds_a_control(stats: Any) -> None:
    rounds = [{"bare": float(i), "observed": 10.0 + i} for i in range(1, 6)]
    assert stats.pairs_of(rounds, "observed", "bare")[:2] == [(11.0, 1.0), (12.0, 2.0)]
    assert stats.pairs_of([*rounds[:1], {"bare": 1.0}], "observed", "bare") == [(11.0, 1.0)]
    assert stats.neighbours(rounds, "bare") == [(2.0, 1.0), (4.0, 3.0)]
    assert stats.neighbours(rounds[:1], "bare") == []


def document() -> dict[str, Any]:
    good = {"pairs": 9, "ratio": 1.004, "low": 1.001, "upper": 1.0082, "of_sums": 0.998}
    found = {**good, "of_sums_upper": 1.012}
    return {
        "device": "cpu",
        "cores": [1],
        "threads": 1,
        "date": "2026-01-01",
        "command": "python benchmarks/overhead.py",
        "machine": {"cpu": {"model": "Some CPU"}, "gpus": []},
        "versions": {"python": "3.11", "torch": "2.13", "stepscope": "0.1", "commit": "abc"},
        "results": [
            {
                "program": "cnn",
                "step_ms": 7.12,
                "goal": 0.01,
                "modules": 37,
                "parameters": 6234,
                "blocks": {"estimates": {"observed": found, "control": found}, "added_us": 35.4},
                "processes": {"estimates": {}},
            }
        ],
    }


def test_the_table_says_ratio_bound_and_verdict(tables: Any) -> None:
    text = tables.table(document())
    assert (
        "| cnn | 7.1 ms | blocks | observed / bare | 9 "
        "| +0.40% | +0.82% | −0.20% | +1.20% | ≤ 1%: met |" in text
    )
    assert "adds about 35 µs" in text
    assert "no time was left for whole processes" in text
    assert "pinned to 1 core, torch on 1 thread" in text


def test_a_control_is_not_judged(tables: Any) -> None:
    control = next(line for line in tables.table(document()).splitlines() if "bare / bare" in line)
    assert control.endswith("|  |")


@pytest.mark.parametrize(
    ("low", "upper", "said"),
    [
        (0.992, 1.009, "met"),
        (0.98, 1.005, "unclear"),
        (0.97, 0.98, "missed"),
        (1.011, 1.02, "missed"),
        (None, None, "unclear"),
    ],
)
def test_the_reported_step_is_judged_by_its_distance_on_either_side(
    tables: Any, low: float | None, upper: float | None, said: str
) -> None:
    found = document()
    told = {"pairs": 5, "ratio": 1.0, "low": low, "upper": upper}
    told |= {"of_sums": 1.0, "of_sums_upper": None}
    found["results"][0]["processes"]["estimates"]["observed_told"] = told
    rows = tables.table(found).splitlines()
    assert next(row for row in rows if "as reported, no window" in row).endswith(f"± 1%: {said} |")


def test_the_summary_has_a_column_for_each_program(tables: Any) -> None:
    found = document()
    found["results"].append({"program": "trainer", "missing": "transformers is not installed"})
    lines = tables.summary(found).splitlines()
    assert "| | cnn, 7.1 ms |" in lines
    assert "| blocks: observed / bare | +0.40% (≤ +0.82%) met |" in lines
    assert "| blocks: bare / bare | +0.40% (≤ +0.82%) |" in lines
    assert "trainer: left out: transformers is not installed." in lines


def test_a_summary_takes_the_place_of_its_machines_earlier_one(tables: Any) -> None:
    docs = "a\n<!-- cpu: begin -->\nold\n<!-- cpu: end -->\nb\n"
    docs += "<!-- cuda: begin -->\nkept\n<!-- cuda: end -->\n"
    written = tables.with_summary(docs, document())
    assert written.startswith("a\n<!-- cpu: begin -->\nSome CPU; ")
    assert "old" not in written
    assert written.endswith(
        "<!-- cpu: end -->\nb\n<!-- cuda: begin -->\nkept\n<!-- cuda: end -->\n"
    )


def block(kind: str, recorded: int, ns: int) -> dict[str, Any]:
    return {"kind": kind, "recorded": recorded, "block_ns": ns, "step_ns": ns}


def a_round(recorded: int, bare: int, observed: int) -> list[dict[str, Any]]:
    kinds = {"bare": bare, "observed": observed, "control": bare}
    return [block(kind, recorded, ns) for kind, ns in kinds.items()]


def test_what_stays_of_recordings_is_told_apart_from_what_observing_costs(measure: Any) -> None:
    before = [a_round(0, 100, 101) for _ in range(6)]
    after = [a_round(1, 120, 126) for _ in range(6)]
    found = measure.recording_estimates([[*before, *after]])
    assert found["bare_after_1"]["ratio"] == pytest.approx(1.2)
    assert found["observed_after_1"]["ratio"] == pytest.approx(1.05)
    assert found["drift"]["ratio"] == 1.0
    assert "bare_after_2" not in found


def test_a_program_that_cannot_run_here_is_named(tables: Any) -> None:
    said = document()
    said["results"].append({"program": "trainer", "missing": "transformers is not installed"})
    assert "trainer: left out: transformers is not installed." in tables.table(said)


def test_the_anatomy_adds_the_hooks_up(tables: Any) -> None:
    hook = {"warm_us": 1.5, "cold_us": 4.0}
    parts = {"hooks": {"a": hook, "b": hook}, "unclocked": {"a": hook}, "pieces": {"c": hook}}
    text = tables.anatomy_table(parts)
    assert "| **a clocked step's** | 3.0 | 8.0 |" in text
    assert "| **an unclocked step's** | 1.5 | 4.0 |" in text
    assert "| c | 1.5 | 4.0 |" in text
