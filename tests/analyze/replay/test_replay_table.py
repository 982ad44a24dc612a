"""The table that benchmarks/replay.py prints."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


@pytest.fixture(scope="module")
def tables() -> Any:
    spec = importlib.util.spec_from_file_location("_replay_table", BENCHMARKS / "_replay_table.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def result(program: str, off: float) -> dict[str, Any]:
    return {
        "program": program, "recorded_ms": 14.0, "bare_ms": 10.0, "replay_ms": 10.0 * (1 + off),
        "off": off, "stated_error": 0.021, "held_out": {"off": 0.012, "between": 0.011},
        "uncalibrated_off": 0.4, "without_edges_off": -0.2, "limited_by": "host",
    }  # fmt: skip


def document(*results: dict[str, Any]) -> dict[str, Any]:
    return {
        "device": "cpu", "date": "2030-01-01", "versions": {"torch": "2.9"},
        "machine": {"cpu": {"model": "A processor"}, "gpus": []}, "results": list(results),
    }  # fmt: skip


def test_each_program_has_a_row_and_the_median_is_judged(tables: Any) -> None:
    text = tables.table(document(result("a", 0.01), result("b", -0.05), result("c", 0.002)))
    assert "| a | 14.00 ms | 10.00 ms | 10.10 ms | +1.0% | ±2.1% | 1.2% | 1.1% |" in text
    assert "| −5.0% |" in text
    assert "Median |off| 1.00% over 3 programs, largest 5.00%" in text
    assert "met" in text


def test_a_median_beyond_the_goal_is_missed(tables: Any) -> None:
    assert "missed" in tables.table(document(result("a", 0.04), result("b", -0.05)))


def test_a_program_that_failed_says_why(tables: Any) -> None:
    text = tables.table(document({"program": "a", "problem": "exit code 1: no GPU"}))
    assert "| a | exit code 1: no GPU |" in text
    assert "No program was replayed." in text
