"""What the fixes of a run brought, against the newest comparable run without them."""

import os

import numpy as np
import pytest
from rowmaking import END, SETUP, START, step, table

from stepscope.measure import prediction
from stepscope.record.facts import FixChecksFact, ProcessFact
from stepscope.record.row_log import ROW_COLUMNS
from stepscope.record.run import RUN_SCHEMA, RunInfo, RunOptions, RunRecord
from stepscope.results.load import Run
from stepscope.store.folder import write_run
from stepscope.store.json_lines import FactLog
from stepscope.store.table import Table

MACHINE = {"cpu": {"model": "Some CPU", "usable_cores": 4}}
OTHER_MACHINE = {"cpu": {"model": "Another CPU", "usable_cores": 4}}


@pytest.fixture
def runs(tmp_path):
    """`runs("a", ms=10, fixes=…)` makes a run folder, begun a second after the one before."""
    made = []

    def make(
        name,
        ms=10.0,
        fixes=(),
        steps=60,
        state="applied",
        samples=8,
        machine=MACHINE,
        start_ms=0.0,
        **more,
    ):
        folder = tmp_path / name
        folder.mkdir()
        rng = np.random.default_rng(len(made))
        times = ms * (1 + 0.01 * rng.standard_normal(steps))
        begins = np.arange(steps) % 20 == 0  # an epoch
        shown = [
            step(float(one), samples=samples, epoch_start=start_ms * new)
            for one, new in zip(times, begins, strict=True)
        ]
        rows = table(SETUP, shown, END)
        file = Table(folder / "rows.npy", ROW_COLUMNS)
        cells = rows.view("f8").ravel()
        file.cells[: len(cells)] = memoryview(cells)
        file.close(len(rows))
        facts = FactLog(folder / "facts.jsonl")
        facts.write(ProcessFact(booted_ns=int(START), torch="2.9", python="3.12"))
        facts.write(FixChecksFact(checks=[]))
        for text in fixes:
            fix, _, value = text.partition("=")
            facts.write("fix", name=fix, state="asked", value=value or None, text="never reached")
            record = {"target": "loader", "kind": "exact"}
            if state != "applied":
                record = {"reason": "no_loader"}
            facts.write("fix", name=fix, state=state, record=record, text="there")
        number = len(made)
        run = {"program": "train.py", "argv": ["--epochs", "3"], "torch": "2.9", "exit_code": 0}
        info = RunInfo(
            **{"id": name, "started": f"2026-01-01T00:00:{number:02}+00:00"} | run | more
        )
        options = RunOptions(warmup=2, window=0, fixes=list(fixes))
        record = RunRecord(schema=RUN_SCHEMA, run=info, machine=machine, options=options)
        write_run(folder, record)
        os.utime(folder / "run.json", (1e9 + number, 1e9 + number))
        made.append(folder)
        return folder

    return make


def effect(folder):
    return Run(folder).document["fix_effect"]


def test_a_run_without_fixes_is_compared_with_nothing(runs):
    runs("bare")
    assert effect(runs("again")) is None


def test_what_a_fix_brought(runs):
    runs("bare", ms=30.0)
    found = effect(runs("fixed", ms=10.0, fixes=["workers=4"]))
    assert found["fixes"] == ["workers=4"]
    assert found["against"] == "bare"
    assert found["before_ms"] == pytest.approx(30, rel=0.02)
    assert found["after_ms"] == pytest.approx(10, rel=0.02)
    assert found["measured"]["speedup"] == pytest.approx(3, rel=0.02)
    assert found["measured"]["low"] < found["measured"]["speedup"] < found["measured"]["high"]
    assert found["verdict"] == "faster"
    assert found["predicted"] is None, "nothing was recorded that could be replayed"


def test_a_loss_is_said(runs):
    runs("bare", ms=10.0)
    assert effect(runs("fixed", ms=30.0, fixes=["threads=2"]))["verdict"] == "slower"


def test_a_small_difference_is_none(runs):
    runs("bare", ms=10.0)
    assert effect(runs("fixed", ms=9.8, fixes=["threads=2"]))["verdict"] == "unclear"


def test_what_another_run_had_already_is_not_counted_again(runs):
    runs("bare", ms=40.0)
    runs("one", ms=20.0, fixes=["workers=4"])
    found = effect(runs("two", ms=10.0, fixes=["workers=4", "pin"]))
    assert found["fixes"] == ["pin"]
    assert found["against"] == "one"


@pytest.mark.parametrize(
    "other",
    [
        {"program": "other.py"},
        {"argv": ["--epochs", "4"]},
        {"machine": OTHER_MACHINE},
        {"torch": "2.8"},
        {"exit_code": None},
        {"fixes": ["pin"]},
        {"steps": 1},
    ],
    ids=lambda other: "-".join(other),
)
def test_only_comparable_runs_count(runs, other):
    runs("bare", ms=30.0)
    runs("other", ms=20.0, **other)
    assert effect(runs("fixed", fixes=["workers=4"]))["against"] == "bare"


def test_a_later_run_is_not_what_was_before(runs):
    runs("bare", ms=30.0)
    fixed = runs("fixed", fixes=["workers=4"])
    runs("later", ms=20.0)
    assert effect(fixed)["against"] == "bare"


def test_a_fix_that_did_not_apply_brought_nothing(runs):
    runs("bare", ms=30.0)
    assert effect(runs("fixed", fixes=["workers=4"], state="not applicable")) is None


def test_a_larger_batch_is_compared_by_samples(runs):
    runs("bare", ms=10.0, samples=8)
    found = effect(runs("fixed", ms=15.0, samples=32, fixes=["batch=32"]))
    assert found["by_samples"]
    assert found["measured"]["speedup"] == pytest.approx(4 / 1.5, rel=0.02)
    assert found["verdict"] == "faster"


def test_a_damaged_run_is_passed_over(runs, tmp_path):
    runs("bare", ms=30.0)
    (runs("broken", ms=20.0) / "facts.jsonl").write_text('{"fact": "process", "booted_ns": "x"}\n')
    (tmp_path / "no-run").mkdir()
    (tmp_path / "junk").mkdir()
    (tmp_path / "junk" / "run.json").write_text("{")
    assert effect(runs("fixed", fixes=["workers=4"]))["against"] == "bare"


def test_few_of_many_runs_are_looked_at(runs, monkeypatch):
    monkeypatch.setattr(prediction, "_NEWEST", 3)
    runs("bare", ms=30.0)
    for number in range(4):
        runs(f"other-{number}", program="other.py", steps=2)
    assert effect(runs("fixed", fixes=["workers=4"])) is None


def test_what_was_promised_stands_beside_it(runs):
    from diagnosing import finding
    from documents import made

    from stepscope.analyze.run.document import RunSummary
    from stepscope.record.finding import FixRef, Headroom

    one = finding("data.a", 40.0, fix=FixRef("workers", "4"))
    two = finding("sync.b", 50.0, fix=FixRef("nosync"))
    could = Headroom(
        step_ms=25.0, now_ms=100.0, speedup=4.0, by=("data.a", "sync.b"), replayed=True, text=""
    )
    base = made(RunSummary, {"steps": {"mean_ms": None}, "run": {"device": "cpu"}})
    base = prediction.msgspec.structs.replace(base, findings=[one, two], headroom=could)
    folder = runs("bare")

    def promised(*fixes):
        return prediction._promised(base, folder, fixes)

    assert promised("workers=4").speedup == pytest.approx(2.5)
    assert promised("nosync").speedup == pytest.approx(2.0)
    assert promised("nosync", "workers=4").speedup == pytest.approx(4.0)
    assert promised("workers=8") is None


def test_epochs_that_begin_later_take_away_what_their_steps_gain(runs):
    runs("plain", ms=10.0)
    found = effect(runs("fixed", ms=5.0, fixes=["workers=2"], start_ms=60.0))
    assert found["after_ms"] == pytest.approx(5.0 + 60 / 20, rel=0.02)
    assert found["measured"]["speedup"] == pytest.approx(10 / 8, rel=0.02)
    assert found["after_samples_per_s"] == pytest.approx(8 / 8e-3, rel=0.02)
