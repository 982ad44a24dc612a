"""The grid that a tune is held against, on trials made by hand."""

import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import tune_grid

TUNE = {
    "trials": 9,
    "seconds": 30.0,
    "search": {"trials": 5, "seconds": 12.0},
    "final": {"fixes": ["pin"], "measured": {"ladder": {"step_ms": 4.0}}},
    "ladder": ["pin"],
}


@pytest.fixture
def asked(monkeypatch):
    """Every ask; of three sets of fixes the one with both does not run."""
    asks = []

    def run(ask):
        asks.append(ask)
        ok = len(ask.fixes) < 2
        ms = 4.0 if "pin" in ask.fixes else 8.0
        status = "ok" if ok else "broke"
        return SimpleNamespace(ok=ok, step_ms=(ms,), mean_ms=ms, seconds=2.0, status=status)

    @contextmanager
    def trials_of(program, device):
        yield run

    monkeypatch.setattr(tune_grid, "trials_of", trials_of)
    monkeypatch.setattr(tune_grid, "_tune", lambda *_: (TUNE, {"plain": 20, "ahead": 90}))
    monkeypatch.setitem(tune_grid.GRIDS, "small", ("train.py", ("pin", "workers=2")))
    return asks


def test_every_set_is_measured_as_often_as_a_claim_takes(asked):
    *_, last = tune_grid.against_grid("small", "cpu")
    grid = last["grid"]
    assert (grid["combinations"], grid["processes"], grid["seconds"]) == (4, 10, 20.0)
    assert (grid["best"], grid["best_ms"]) == (["pin"], 4.0)
    assert {ask.steps for ask in asked if "workers=2" in ask.fixes} == {90}
    assert {ask.steps for ask in asked if "workers=2" not in ask.fixes} == {20}
    table = tune_grid.table({"grids": {"small": last}})
    assert "| small | 4.00 ms (pin) | 4.00 ms (pin) | 100.0% | 9 of 10 | 60% | 150% |" in table


def test_a_grid_that_was_ended_is_gone_on_with(asked, monkeypatch):
    made = tune_grid.against_grid("small", "cpu")
    first = [next(made) for _ in range(4)][-1]
    assert first["grid"]["processes"] == 3
    monkeypatch.setattr(tune_grid, "_tune", lambda *_: pytest.fail("the tune is known"))
    *_, last = tune_grid.against_grid("small", "cpu", first)
    assert last["grid"]["processes"] == 10
    assert last["tune"] == TUNE
    assert len(asked) == 10


def test_a_grid_that_is_done_is_made_anew(asked):
    *_, last = tune_grid.against_grid("small", "cpu")
    again = next(tune_grid.against_grid("small", "cpu", last))
    assert again["grid"]["processes"] == 0
    assert "not measured yet" in tune_grid.table({"grids": {"small": again}})


def test_a_tune_that_kept_nothing_leaves_the_program_as_it_is(asked, monkeypatch):
    nothing = {**TUNE, "final": None, "ladder": []}
    monkeypatch.setattr(tune_grid, "_tune", lambda *_: (nothing, {"plain": 20, "ahead": 90}))
    *_, last = tune_grid.against_grid("small", "cpu")
    table = tune_grid.table({"grids": {"small": last}})
    assert "| small | 4.00 ms (pin) | 8.00 ms (nothing kept) | 50.0% | 9 of 10 |" in table


def test_the_best_of_the_grid_and_what_was_kept_are_measured_in_turn(asked, monkeypatch):
    other = {**TUNE, "final": {**TUNE["final"], "fixes": ["workers=2"]}}
    monkeypatch.setattr(tune_grid, "_tune", lambda *_: (other, {"plain": 20, "ahead": 90}))
    *_, last = tune_grid.against_grid("small", "cpu")
    turns = [ask.fixes for ask in asked[10:]]
    assert turns[:4] == [("workers=2",), ("pin",), ("pin",), ("workers=2",)]
    assert [len(last["beside"][side]) for side in ("best", "tune")] == [5, 5]
    assert "| 50.0% |" in tune_grid.table({"grids": {"small": last}})
    assert last["grid"]["seconds"] == 20.0
