"""Where the observed thread's time goes, by a clock that only moves when told."""

import errno
import math
import os
import signal
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepscope.probe import row_log as log_module
from stepscope.probe.row_log import (
    BACKWARD,
    COMPILE,
    DATA_WAIT,
    FORWARD,
    H2D,
    LOSS,
    OBSERVER,
    OPTIMIZER,
    OTHER,
    WAIT,
    RowLog,
)
from stepscope.record.row_log import ROW_COLUMNS, Phase, RowKind
from stepscope.store.table import read_table

START = 1_000
PHASE_COLUMNS = [f"{phase.name.lower()}_ns" for phase in Phase]


class Clock:
    def __init__(self):
        self.now = START

    def __call__(self):
        return self.now


LONG_NS = 20_000_000


class Recorder:
    """A log on a fake clock. `phase(FORWARD, 5)` spends 5 ns in a phase."""

    def __init__(self, path, clock):
        self.path = path
        self.clock = clock
        self.problems = []
        self.log = RowLog(path, START, self.problems.append)

    def wait(self, ns):
        self.clock.now += ns

    def phase(self, phase, ns, tail=False):
        depth = self.log.depth
        self.log.enter(phase)
        self.wait(ns)
        self.log.leave(depth, tail=tail)

    def end(self, kind=RowKind.STEP, who=0):
        return self.log.end_row(kind, who)

    def rows(self):
        table = read_table(self.path)
        return table[table["end_ns"] > 0]

    def row(self, index=-1):
        """Phases of a row that took any time, by name."""
        found = self.rows()[index]
        return {name[:-3]: int(found[name]) for name in PHASE_COLUMNS if found[name]}


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(log_module, "monotonic_ns", clock)
    return clock


@pytest.fixture
def recorder(tmp_path, clock):
    return Recorder(tmp_path / "rows.npy", clock)


def in_thread(function):
    """What a function returns in a thread of its own."""
    result = []
    thread = threading.Thread(target=lambda: result.append(function()))
    thread.start()
    thread.join()
    return result[0]


def test_a_plain_step(recorder):
    recorder.wait(2)
    recorder.phase(DATA_WAIT, 10)
    recorder.phase(H2D, 3)
    recorder.phase(FORWARD, 20, tail=True)
    recorder.wait(4)
    recorder.phase(BACKWARD, 30)
    recorder.phase(OPTIMIZER, 5)
    assert recorder.end(RowKind.STEP, who=7) == 0
    row = recorder.rows()[0]
    assert recorder.row() == {
        "other": 2, "data_wait": 10, "h2d": 3, "forward": 24, "backward": 30, "optimizer": 5,
    }  # fmt: skip
    assert (row["kind"], row["who"], row["end_ns"]) == (RowKind.STEP, 7, START + 74)


def test_nested_phases_are_exclusive(recorder):
    recorder.log.enter(OPTIMIZER)
    recorder.wait(1)
    recorder.phase(FORWARD, 10, tail=True)
    recorder.phase(BACKWARD, 20)
    recorder.wait(2)
    recorder.log.leave(0)
    recorder.end()
    assert recorder.row() == {"optimizer": 3, "forward": 10, "backward": 20}


def test_compiling_inside_a_forward_is_not_the_forwards(recorder):
    recorder.log.enter(FORWARD)
    recorder.wait(1)
    recorder.phase(COMPILE, 100)
    recorder.wait(1)
    recorder.log.leave(0)
    recorder.end()
    assert recorder.row() == {"forward": 2, "compile": 100}


def test_the_tail_of_a_forward_is_forward_when_backward_follows(recorder):
    recorder.phase(FORWARD, 10, tail=True)
    recorder.wait(5)
    recorder.phase(BACKWARD, 20)
    recorder.end()
    assert recorder.row() == {"forward": 15, "backward": 20}


def test_the_tail_is_forward_when_another_forward_follows(recorder):
    recorder.phase(FORWARD, 10, tail=True)
    recorder.wait(5)
    recorder.phase(FORWARD, 10, tail=True)
    recorder.wait(5)
    recorder.phase(BACKWARD, 20)
    recorder.end()
    assert recorder.row() == {"forward": 30, "backward": 20}


@pytest.mark.parametrize("phase", [DATA_WAIT, OPTIMIZER, H2D])
def test_the_tail_is_other_when_anything_else_follows(recorder, phase):
    recorder.phase(FORWARD, 10, tail=True)
    recorder.wait(5)
    recorder.phase(phase, 1)
    recorder.end()
    assert recorder.row()["forward"] == 10
    assert recorder.row()["other"] == 5


def test_before_another_forward_the_tail_counts_no_longer_than_the_call_took(recorder):
    recorder.phase(FORWARD, 10, tail=True)
    recorder.wait(50)  # an environment
    recorder.phase(FORWARD, 20, tail=True)
    recorder.wait(30)  # a loss
    recorder.phase(BACKWARD, 10)
    recorder.end()
    assert recorder.row() == {"forward": 10 + 10 + 20 + 30, "backward": 10, "other": 40}


def test_the_tail_is_other_when_the_row_ends_first(recorder):
    recorder.phase(FORWARD, 10, tail=True)
    recorder.wait(5)
    recorder.end()
    recorder.wait(3)
    recorder.phase(BACKWARD, 1)
    recorder.end()
    assert recorder.row(0) == {"forward": 10, "other": 5}
    assert recorder.row(1) == {"other": 3, "backward": 1}


def test_a_wait_inside_the_tail_does_not_end_it(recorder):
    recorder.phase(FORWARD, 10, tail=True)
    recorder.wait(5)
    recorder.phase(WAIT, 100)
    recorder.wait(5)
    recorder.phase(BACKWARD, 20)
    recorder.end()
    assert recorder.row() == {"forward": 20, "wait": 100, "backward": 20}


def test_the_tail_inside_a_closure_falls_back_to_the_optimizer(recorder):
    recorder.log.enter(OPTIMIZER)
    recorder.phase(FORWARD, 10, tail=True)
    recorder.wait(5)
    recorder.log.leave(0)
    recorder.end()
    assert recorder.row() == {"forward": 10, "optimizer": 5}


def test_a_phase_left_by_an_exception_is_closed_with_the_one_around_it(recorder):
    recorder.log.enter(OPTIMIZER)
    recorder.wait(1)
    recorder.log.enter(FORWARD)
    recorder.wait(2)
    recorder.log.enter(BACKWARD)
    recorder.wait(3)
    recorder.log.leave(0)
    recorder.wait(4)
    recorder.end()
    assert recorder.row() == {"optimizer": 1, "forward": 2, "backward": 3, "other": 4}
    assert recorder.log.depth == 0


def test_leaving_what_was_closed_already_changes_nothing(recorder):
    depth = recorder.log.depth
    recorder.log.enter(FORWARD)
    recorder.wait(2)
    recorder.log.leave(depth)
    recorder.log.leave(depth)
    recorder.log.leave(5)
    recorder.wait(3)
    recorder.end()
    assert recorder.row() == {"forward": 2, "other": 3}


def test_an_open_phase_goes_on_in_the_next_row(recorder):
    recorder.log.enter(OPTIMIZER)
    recorder.wait(2)
    recorder.end(RowKind.BACKWARD)
    recorder.wait(3)
    recorder.log.leave(0)
    recorder.end()
    assert recorder.row(0) == {"optimizer": 2}
    assert recorder.row(1) == {"optimizer": 3}


def test_lead_is_the_time_to_the_first_phase(recorder):
    recorder.wait(7)
    recorder.phase(FORWARD, 10)
    recorder.wait(1)
    recorder.phase(BACKWARD, 10)
    recorder.end()
    recorder.wait(9)
    recorder.end()
    assert recorder.rows()["lead_ns"].tolist() == [7, 9]


def test_lead_does_not_end_with_the_observers_own_work(recorder):
    recorder.wait(7)
    recorder.phase(OBSERVER, 100)
    recorder.wait(2)
    recorder.phase(FORWARD, 10)
    recorder.end()
    assert recorder.rows()["lead_ns"][0] >= 107


def test_counters_belong_to_the_row_they_were_counted_in(recorder):
    log = recorder.log
    log.samples, log.batches, log.inputs, log.forwards, log.backwards = 32, 1, 16, 2, 3
    recorder.end()
    recorder.end()
    names = ("samples", "batches", "inputs", "forwards", "backwards")
    assert [recorder.rows()[0][name] for name in names] == [32, 1, 16, 2, 3]
    assert [recorder.rows()[1][name] for name in names] == [0] * 5


def test_flags_stay_until_they_are_changed(recorder):
    recorder.log.flags = 3
    recorder.end()
    recorder.end()
    recorder.log.flags = 0
    recorder.end()
    assert recorder.rows()["flags"].tolist() == [3, 3, 0]


def test_what_is_known_late_finds_its_row(recorder):
    first = recorder.end()
    second = recorder.end()
    recorder.log.set_loss(first, 0.5)
    recorder.log.set_device(first, [1, 2, 3, 4, 5])
    rows = recorder.rows()
    assert rows["loss"][first] == 0.5
    names = [name for name in ROW_COLUMNS if name.startswith("device_")]
    assert [rows[name][first] for name in names] == [1, 2, 3, 4, 5]
    assert math.isnan(rows["loss"][second])
    assert all(math.isnan(rows[name][second]) for name in names)


def test_closing_writes_the_last_row_and_cuts_the_file(recorder):
    recorder.phase(FORWARD, 3)
    recorder.end()
    recorder.wait(4)
    recorder.log.close()
    rows = read_table(recorder.path)
    assert rows["kind"].tolist() == [RowKind.STEP, RowKind.END]
    assert recorder.row() == {"other": 4}


def test_more_rows_than_a_chunk_holds(recorder):
    for number in range(9000):
        recorder.wait(number)
        assert recorder.end(RowKind.STEP) == number
    recorder.log.set_loss(0, 0.25)
    recorder.log.set_loss(8999, 0.75)
    recorder.log.close()
    rows = read_table(recorder.path)
    assert rows["other_ns"][:9000].tolist() == list(range(9000))
    assert (rows["loss"][0], rows["loss"][8999]) == (0.25, 0.75)
    assert len(rows) == 9001


def test_quick_rows_are_written_together_slow_ones_at_once(recorder):
    for _ in range(100):
        recorder.wait(1000)
        recorder.end()
    assert 64 <= len(recorder.rows()) < 100
    recorder.wait(LONG_NS)
    recorder.end()
    assert len(recorder.rows()) == 101
    assert recorder.rows()["other_ns"][:100].tolist() == [1000] * 100


def test_a_full_disk_switches_off_and_says_so_once(recorder, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    for _ in range(4096):
        recorder.end()
    monkeypatch.setattr(os, "posix_fallocate", full)
    recorder.wait(LONG_NS)
    assert recorder.end() == -1
    assert recorder.log.off
    assert recorder.end() == -1
    assert recorder.log.enter(FORWARD) == 0
    assert [problem.errno for problem in recorder.problems] == [errno.ENOSPC]
    recorder.log.close()
    assert len(read_table(recorder.path)) == 4096


def test_failing_twice_is_told_once(recorder):
    recorder.log.fail(ValueError("first"))
    recorder.log.fail(ValueError("second"))
    assert [str(problem) for problem in recorder.problems] == ["first"]


class OutOfTimeError(Exception):
    """One of the program's own."""


def test_what_the_program_threw_reaches_it_again(recorder):
    with pytest.raises(OutOfTimeError):
        recorder.log.fail(OutOfTimeError())
    assert not recorder.problems
    assert not recorder.log.off


def test_what_the_program_throws_amid_writing_rows_writes_none_twice(recorder, monkeypatch):
    for _ in range(300):
        recorder.phase(FORWARD, 3)
        recorder.end()
    note = recorder.log._note

    def throw(*_):
        raise OutOfTimeError

    def interrupted(code, value):
        note(code, value)
        signal.raise_signal(signal.SIGUSR2)

    previous = signal.signal(signal.SIGUSR2, throw)
    monkeypatch.setattr(recorder.log, "_note", interrupted)
    recorder.phase(FORWARD, 3)
    recorder.end()
    recorder.log.events += (LOSS, 1.0)
    with pytest.raises(OutOfTimeError):
        recorder.log.fold()
    signal.signal(signal.SIGUSR2, previous)
    monkeypatch.setattr(recorder.log, "_note", note)
    recorder.phase(BACKWARD, 5)
    recorder.end()
    recorder.log.close()
    assert not recorder.problems
    rows = recorder.rows()
    assert len(rows) == 303
    assert recorder.row(300) == {"forward": 3}
    assert recorder.row(301) == {"backward": 5}
    assert rows["backwards"].sum() == 1


def test_switched_off_inside_a_phase_the_phase_can_still_be_left(recorder):
    recorder.log.enter(FORWARD)
    recorder.log.fail(ValueError("fault"))
    recorder.log.leave(0)
    assert recorder.log.depth == 0
    recorder.log.close()
    assert len(read_table(recorder.path)) == 0


def test_other_threads_are_ignored(recorder):
    recorder.phase(FORWARD, 0)
    assert in_thread(lambda: recorder.log.enter(FORWARD)) == 0
    assert in_thread(lambda: recorder.log.enter(DATA_WAIT)) == 0
    recorder.wait(5)
    recorder.end()
    assert recorder.row() == {"other": 5}


def test_a_thread_that_only_loads_data_claims_nothing(recorder):
    assert in_thread(lambda: recorder.log.enter(DATA_WAIT)) == 0
    assert recorder.log.enter(FORWARD) > 0


@pytest.mark.parametrize("phase", [FORWARD, BACKWARD, OPTIMIZER])
def test_the_first_thread_that_computes_is_the_one_observed(recorder, phase):
    recorder.wait(5)

    def compute():
        begun = recorder.log.enter(phase)
        recorder.wait(7)
        recorder.log.leave(0)
        recorder.end()
        begun_at.append(begun)
        done.set()
        leave.wait()

    begun_at, done, leave = [], threading.Event(), threading.Event()
    thread = threading.Thread(target=compute)
    thread.start()
    done.wait()
    assert begun_at == [START + 5]
    assert recorder.log.enter(FORWARD) == 0, "the main thread is another one now"
    assert recorder.row() == {"other": 5, Phase(phase).name.lower(): 7}
    leave.set()
    thread.join()


def test_once_the_observed_thread_has_ended_the_next_one_that_computes_is_observed(recorder):
    assert in_thread(lambda: recorder.log.enter(FORWARD)) > 0
    assert recorder.log.enter(DATA_WAIT) == 0
    assert recorder.log.enter(FORWARD) > 0


def test_a_thread_that_computes_later_does_not_take_over(recorder):
    recorder.phase(FORWARD, 3)
    assert in_thread(lambda: recorder.log.enter(FORWARD)) == 0
    assert recorder.log.enter(FORWARD) > 0


MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("enter"), st.sampled_from(sorted(Phase)), st.integers(0, 9)),
        st.tuples(st.just("leave"), st.integers(0, 4), st.booleans()),
        st.tuples(st.just("end"), st.sampled_from(sorted(RowKind)), st.integers(0, 9)),
        st.tuples(st.just("wait"), st.integers(1, 9), st.none()),
    ),
    max_size=30,
)


@settings(
    max_examples=80,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(moves=MOVES)
def test_rows_add_up_to_the_time_that_passed(tmp_path_factory, clock, moves):
    clock.now = START
    recorder = Recorder(tmp_path_factory.mktemp("log") / "rows.npy", clock)
    for what, value, more in moves:
        if what == "enter":
            recorder.log.enter(value)
            recorder.wait(more)
        elif what == "leave":
            recorder.log.leave(min(value, max(recorder.log.depth - 1, 0)), tail=more)
        elif what == "end":
            recorder.wait(more)
            recorder.end(value)
        else:
            recorder.wait(value)
    recorder.log.close()
    rows = read_table(recorder.path)
    begins = [START, *rows["end_ns"][:-1]]
    for row, begin in zip(rows, begins, strict=True):
        assert sum(row[name] for name in PHASE_COLUMNS) == row["end_ns"] - begin
        assert all(row[name] >= 0 for name in PHASE_COLUMNS)
        assert 0 <= row["lead_ns"] <= row["end_ns"] - begin
    assert rows["end_ns"][-1] == clock.now


def test_a_row_that_ends_during_a_wait_holds_the_tail_before_it(recorder):
    recorder.phase(FORWARD, 10, tail=True)
    recorder.wait(5)
    recorder.log.enter(WAIT)
    recorder.wait(2)
    recorder.end()
    assert sum(recorder.row().values()) == 17


def test_phase_numbers_are_those_of_the_record():
    assert (OTHER, WAIT, OBSERVER) == (Phase.OTHER, Phase.WAIT, Phase.OBSERVER)
