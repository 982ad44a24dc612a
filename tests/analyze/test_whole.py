"""Every second from launch to end belongs to one category."""

import numpy as np
import pytest
from documents import made

from stepscope.analyze.run.document import CategoryPlace, HotSite
from stepscope.analyze.run.steps import assemble_steps
from stepscope.analyze.run.totals import CATEGORIES_IN_ORDER, category_places, wall_time_by_category
from stepscope.record.facts import Facts, ImportFact, ProcessFact
from stepscope.record.row_log import FLAG_PROFILED, ROW_COLUMNS, RowKind
from stepscope.record.run import RunInfo

S = 10**9
BEGIN = 100 * S


def rows(*items):
    """Rows of (kind, seconds of other, seconds by phase…) from BEGIN on."""
    made = np.zeros(len(items), dtype=[(name, "<f8") for name in ROW_COLUMNS])
    now = BEGIN
    for index, (kind, phases) in enumerate(items):
        flags = phases.pop("flags", 0)
        for name, seconds in phases.items():
            made[f"{name}_ns"][index] = seconds * S
        now += int(sum(phases.values()) * S)
        made["end_ns"][index], made["kind"][index], made["flags"][index] = now, kind, flags
    for name in ("loss", *(n for n in ROW_COLUMNS if n.startswith("device_"))):
        made[name] = np.nan
    return made


@pytest.fixture
def facts():
    return Facts()


@pytest.fixture
def started():
    """torch was imported two seconds after the launch, which took one and a half."""
    process = ProcessFact(booted_ns=BEGIN + S // 4)
    imported = ImportFact(name="torch", begun_ns=BEGIN + S // 2, elapsed_ns=1.5 * S)
    return Facts([process, imported])


def plain(steps=6):
    step = {"data_wait": 0.25, "forward": 0.5, "backward": 0.25}
    return rows(
        (RowKind.EPOCH, {"other": 5, "epoch_start": 1}),
        *[(RowKind.STEP, dict(step)) for _ in range(steps)],
        (RowKind.END, {"other": 0.5}),
    )


def run(ended=None):
    return RunInfo(started_ns=BEGIN, ended_ns=ended)


def told(table, facts, *, ended=None, warmup=1):
    steps = assemble_steps(table, BEGIN)
    end = table["end_ns"].max() + S if ended is None else ended
    found = wall_time_by_category(run(end), facts, steps, warmup, table)
    assert sum(found.values()) == pytest.approx((end - BEGIN) / S, rel=1e-12)
    assert all(seconds >= 0 for seconds in found.values())
    return found


def test_a_plain_run(started):
    found = told(plain(), started)
    assert found["startup"] == pytest.approx(0.25)
    assert found["imports"] == pytest.approx(1.5)
    assert found["setup"] == pytest.approx(5 - 1.75)
    assert found["epoch_start"] == pytest.approx(1)
    assert found["warmup"] == pytest.approx(1)
    assert found["training"] == pytest.approx(5)
    assert found["shutdown"] == pytest.approx(0.5 + 1)


def test_categories_come_in_the_order_of_a_run(started):
    assert tuple(told(plain(), started)) == CATEGORIES_IN_ORDER


def test_the_steps_of_the_window_count_as_the_window(started):
    table = plain(6)
    table["flags"][3:5] = FLAG_PROFILED
    found = told(table, started)
    assert found["window"] == pytest.approx(2)
    assert found["training"] == pytest.approx(3)


def test_a_window_among_the_warmup_counts_once(started):
    table = plain(6)
    table["flags"][1:3] = FLAG_PROFILED
    found = told(table, started, warmup=3)
    assert found["window"] == pytest.approx(2)
    assert found["warmup"] == pytest.approx(1)


def test_evaluation_and_checkpoints_have_their_own_places(started):
    step = {"forward": 0.5, "backward": 0.5}
    table = rows(
        (RowKind.EPOCH, {"other": 5}),
        *[(RowKind.STEP, dict(step)) for _ in range(4)],
        *[(RowKind.EVAL, {"forward": 2}) for _ in range(3)],
        (RowKind.SAVE, {"save": 4}),
        *[(RowKind.STEP, dict(step)) for _ in range(4)],
    )
    found = told(table, started)
    assert found["evaluation"] == pytest.approx(6)
    assert found["checkpoint"] == pytest.approx(4)
    assert found["warmup"] + found["training"] == pytest.approx(8)


def test_inference_is_called_so(started):
    calls = [(RowKind.EVAL, {"forward": 1}) for _ in range(5)]
    found = told(rows((RowKind.EPOCH, {"other": 3}), *calls), started)
    assert found["inference"] == pytest.approx(4)
    assert "training" not in found


def test_imports_during_training_are_not_counted_twice(started):
    started.all(ImportFact).append(ImportFact(name="late", begun_ns=BEGIN + 9 * S, elapsed_ns=S))
    assert told(plain(), started)["imports"] == pytest.approx(1.5)


def test_a_run_under_way_is_told_up_to_its_last_row(started):
    table = plain()
    found = wall_time_by_category(run(None), started, assemble_steps(table, BEGIN), 1, table)
    assert sum(found.values()) == pytest.approx((table["end_ns"].max() - BEGIN) / S)


def test_a_run_killed_late_has_the_rest_as_its_end(started):
    table = plain()
    found = told(table, started, ended=table["end_ns"].max() + 60 * S)
    assert found["shutdown"] == pytest.approx(60.5)


def test_a_program_that_never_stepped_was_being_set_up(started):
    table = rows((RowKind.EPOCH, {"other": 8}), (RowKind.END, {"other": 1}))
    found = told(table, started, ended=table["end_ns"].max())
    assert found["startup"] == pytest.approx(0.25)
    assert found["imports"] == pytest.approx(1.5)
    assert found["setup"] == pytest.approx(9 - 1.75)


def test_a_program_killed_before_its_first_row_was_being_set_up(started):
    empty = np.zeros(0)
    found = wall_time_by_category(
        run(BEGIN + 10 * S), started, assemble_steps(empty, BEGIN), 0, empty
    )
    assert sum(found.values()) == pytest.approx(10)
    assert found["shutdown"] < 1
    assert found["imports"] == pytest.approx(1.5)


def test_a_program_without_torch_is_accounted_for_too(facts):
    found = wall_time_by_category(
        run(BEGIN + 3 * S), facts, assemble_steps(np.zeros(0), BEGIN), 0, np.zeros(0)
    )
    assert sum(found.values()) == pytest.approx(3)


def test_without_any_time_known_there_is_nothing_to_tell(facts):
    assert (
        wall_time_by_category(RunInfo(), facts, assemble_steps(np.zeros(0), 0), 0, np.zeros(0))
        == {}
    )


def site(what, line):
    return made(HotSite, what=what, file="train.py", line=line)


NO_STEPS = assemble_steps(np.zeros(0), BEGIN)


def test_categories_have_the_line_that_costs_most_in_them(started):
    sites = [site("save", 9), site("save", 10), site("evaluation", 20), site("backward", 30)]
    found = category_places(sites, started, NO_STEPS)
    assert found["checkpoint"] == CategoryPlace(file="train.py", line=9)
    assert found["evaluation"] == CategoryPlace(file="train.py", line=20)
    assert "compile" not in found


def test_imports_name_the_slowest_module(started):
    started.all(ImportFact).append(ImportFact(name="numpy", begun_ns=BEGIN, elapsed_ns=S // 10))
    slowest = CategoryPlace(module="torch", seconds=1.5, library="numpy", libraries_s=0.1)
    assert category_places([], started, NO_STEPS) == {"imports": slowest}


def test_imports_after_the_first_step_are_not_named(started):
    late = ImportFact(name="torch._inductor", begun_ns=BEGIN + 8 * S, elapsed_ns=5 * S)
    started.all(ImportFact).append(late)
    steps = assemble_steps(plain(), BEGIN)
    assert category_places([], started, steps)["imports"].module == "torch"


def test_a_program_that_told_nothing_has_no_places(facts):
    assert category_places([], facts, NO_STEPS) == {}
