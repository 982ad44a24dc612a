"""The tables of benchmarks/bench_published.py, from documents written by hand."""

import importlib
import sys
from pathlib import Path

import pytest
from bench_documents import failed, point

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def table():
    """Makes tables; the benchmark's modules are forgotten again."""
    sys.path.insert(0, str(BENCHMARKS))
    yield importlib.import_module("_published_table").table
    sys.path.remove(str(BENCHMARKS))
    for name in ("_published_table", "_published_cases"):
        sys.modules.pop(name, None)


def shown(table, case, *points):
    return table({"cases": {case: {"command": "stepscope bench x", "points": list(points)}}})


def test_variants_stand_beside_what_was_published(table):
    text = shown(
        table, "infer", point(mean_ms=12.0), point(fixes=["amp=bf16"], mean_ms=3.0, ratio=4.0)
    )
    assert "3.9× throughput, 74% lower p50" in text
    assert "| amp=bf16 | 3.00 | 3.00 | 10,667 | 4.00× | -75% | FASTER (3.92–4.08) |" in text


def test_a_sweep_names_its_knee(table):
    rates = {16: 1000.0, 32: 1900.0, 64: 3500.0, 128: 3600.0, 256: 3650.0}
    points = [point(batch=b, mean_ms=b / rate * 1e3) for b, rate in rates.items()]
    text = shown(table, "sweep", *points)
    assert "| 64 | none | 18.29 | 3,500 | 3.00 GiB |" in text
    assert "none: batch 64 is within 5% of the best." in text


def test_what_did_not_work_is_a_row_too(table):
    text = shown(table, "memory", point(), failed("out_of_memory", "no room", batch=4096))
    assert "| 4096 | none | out_of_memory: no room |" in text


def test_a_command_that_failed_says_so(table):
    told = {"command": "stepscope bench x", "failed": "Traceback\nlast words"}
    assert "Failed: last words" in table({"cases": {"unet": told}})
