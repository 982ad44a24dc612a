"""The live line, from rows written as a live child writes them."""

import os
import re

import pytest

from stepscope.launch import live_line as live_module
from stepscope.launch.live_line import LiveLine
from stepscope.record.facts import CompileFact, EnvironFact, ProcessFact, TorchBegunFact
from stepscope.record.row_log import FLAG_PROFILED, ROW_COLUMNS, RowKind
from stepscope.store.json_lines import FactLog
from stepscope.store.table import HEADER_BYTES, Table

MS = 1e6
COLUMN = {name: index for index, name in enumerate(ROW_COLUMNS)}
ENVIRON = EnvironFact(changed_before_torch=[])
PROCESS = ProcessFact(booted_ns=1, torch="2", python="3")
COMPILE = CompileFact(site=0, what="Model")


class Child:
    """Writes rows, ten milliseconds each unless told otherwise."""

    def __init__(self, path):
        self.path = path
        self.table = None
        self.rows = 0
        self.now = 1e12

    def write(self, count=1, kind=RowKind.STEP, ms=10.0, **values):
        if self.table is None:
            self.table = Table(self.path, ROW_COLUMNS, chunk_rows=64)
        for _ in range(count):
            if self.rows >= self.table.rows:
                self.table.grow()
            self.now += ms * MS
            cells, base = self.table.cells, self.rows * len(ROW_COLUMNS)
            for name, value in (values | {"kind": kind}).items():
                cells[base + COLUMN[name]] = value
            cells[base] = self.now
            self.rows += 1


class Shown(list):
    """Takes what the line says."""

    def __call__(self, text):
        self.append(text)


@pytest.fixture
def child(tmp_path):
    return Child(tmp_path / "rows.npy")


@pytest.fixture
def clock(monkeypatch):
    """A clock that is always late enough for another look."""
    now = [1000.0]

    def monotonic():
        now[0] += 10
        return now[0]

    monkeypatch.setattr(live_module.time, "monotonic", monotonic)
    return now


@pytest.fixture
def line(child, clock):
    line = LiveLine(child.path.parent, Shown())
    yield line
    line.close()


def drawn(line):
    """What was said last."""
    return line._show[-1]


def test_shows_step_time_and_speed(line, child):
    child.write(50, samples=32, data_wait_ns=4 * MS)
    line.tick()
    assert drawn(line) == "stepscope  step 50 · 10.0 ms · 3,200 samples/s · data wait 40%"


def test_shows_the_gpu_where_it_is_known(line, child):
    child.write(50)
    line.gpu_percent = 37.4
    line.tick()
    assert "GPU 37%" in drawn(line)
    line.gpu_percent = float("nan")
    child.write(1)
    line.tick()
    assert "GPU" not in drawn(line)


def test_without_samples_no_speed_is_shown(line, child):
    child.write(50)
    line.tick()
    assert "samples" not in drawn(line)


def test_follows_a_child_that_goes_on_writing(line, child):
    for total in (5, 6, 40, 41, 200, 500):
        child.write(total - child.rows)
        line.tick()
        assert f"step {total}" in drawn(line)


def test_follows_a_table_as_it_grows(line, child):
    child.write(60)
    line.tick()
    child.write(140)
    line.tick()
    assert "step 200" in drawn(line)


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        ([], "starting"),
        ([ENVIRON], "starting"),
        ([TorchBegunFact()], "importing torch"),
        ([TorchBegunFact(), PROCESS], "torch imported, no step yet"),
        ([PROCESS, COMPILE], "compiling or setting up"),
    ],
)
def test_before_the_first_step_it_says_what_the_program_does(line, child, facts, text):
    log = FactLog(child.path.parent / "facts.jsonl")
    for fact in facts:
        log.write(fact)
    line.tick()
    assert re.fullmatch(rf"stepscope  {text} · \d+ s", drawn(line))
    child.write(1)
    line.tick()
    assert drawn(line) == "stepscope  step 1"


def test_steps_slowed_by_recording_are_not_counted_as_fast_or_slow(line, child):
    child.write(50, samples=32)
    child.write(1, kind=RowKind.WINDOW, ms=300.0)
    child.write(20, ms=90.0, samples=32, flags=FLAG_PROFILED)
    line.tick()
    assert drawn(line).startswith("stepscope  step 70 · 10.0 ms · 3,200 samples/s")
    assert drawn(line).endswith("recording kernels")
    child.write(1, kind=RowKind.WINDOW, ms=300.0)
    child.write(30, samples=32)
    line.tick()
    assert drawn(line) == "stepscope  step 100 · 10.0 ms · 3,200 samples/s · data wait 0%"


def test_a_row_not_yet_ended_is_left_for_the_next_look(line, child):
    child.write(10)
    base = child.rows * len(ROW_COLUMNS)
    child.table.cells[base + COLUMN["kind"]] = RowKind.STEP
    line.tick()
    assert "step 10" in drawn(line)
    child.write(1)
    line.tick()
    assert "step 11" in drawn(line)


def test_a_file_that_ends_inside_a_row_is_read_on_once_it_is_whole(line, child, tmp_path):
    child.write(20)
    whole = child.path.read_bytes()
    width = 8 * len(ROW_COLUMNS)
    child.path.unlink()
    child.path.write_bytes(whole[: HEADER_BYTES + 10 * width + 13])
    line.tick()
    assert "step 10" in drawn(line)
    with open(child.path, "r+b") as file:
        file.seek(0, os.SEEK_END)
        file.write(whole[HEADER_BYTES + 10 * width + 13 : HEADER_BYTES + 20 * width])
    line.tick()
    assert "step 20" in drawn(line)


def test_a_file_without_its_header_yet_is_waited_for(line, child):
    child.path.write_bytes(b"")
    line.tick()
    assert "starting" in drawn(line)
    child.path.unlink()
    line._file = None
    child.write(10)
    line.tick()
    assert "step 10" in drawn(line)


def test_the_speed_is_that_of_the_last_seconds(line, child):
    child.write(100, ms=1000.0)
    child.write(600, ms=10.0)
    line.tick()
    assert "10.0 ms" in drawn(line)


def test_optimizers_that_ride_along_make_no_steps(line, child):
    for _ in range(30):
        child.write(1, who=0)
        child.write(1, who=1)
    line.tick()
    assert "step 30 " in drawn(line)
    assert 19 < float(re.search(r"([\d.]+) ms", drawn(line))[1]) < 21


def test_evaluation_makes_no_steps(line, child):
    child.write(30)
    child.write(50, kind=RowKind.EVAL)
    line.tick()
    assert "step 30" in drawn(line)


@pytest.mark.parametrize(
    "kind", [RowKind.EVAL, RowKind.CALL, RowKind.MARK, RowKind.BACKWARD, RowKind.BATCH]
)
def test_programs_without_an_optimizer_show_steps_too(line, child, kind):
    child.write(30, kind=kind)
    line.tick()
    assert "step 30" in drawn(line)


def test_marks_of_the_program_decide_alone(line, child):
    for _ in range(20):
        child.write(2, kind=RowKind.STEP)
        child.write(1, kind=RowKind.MARK)
    line.tick()
    assert "step 20 " in drawn(line)


def test_looks_only_now_and_then(child, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(live_module.time, "monotonic", lambda: now[0])
    line = LiveLine(child.path.parent, Shown())
    child.write(10)
    line.tick()
    child.write(10)
    now[0] += 0.1
    line.tick()
    assert "step 10" in drawn(line)
    now[0] += 0.5
    line.tick()
    assert "step 20" in drawn(line)


def test_the_line_fits_a_terminal(line, child):
    child.write(2000, ms=0.5, samples=4096, data_wait_ns=0.5 * MS)
    line.gpu_percent = 100.0
    line.tick()
    assert 0 < len(drawn(line)) <= 80


def test_of_several_ranks_it_follows_the_first(tmp_path, child, clock):
    child.write(0)
    shown = Shown()
    line = LiveLine(tmp_path, shown)
    line.tick()
    folder = tmp_path / "ranks" / "0"
    folder.mkdir(parents=True)
    Child(folder / "rows.npy").write(30, inputs=8)
    line.tick()
    line.close()
    assert "step 30" in shown[-1]
