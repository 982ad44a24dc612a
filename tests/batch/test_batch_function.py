"""`stepscope.find_batch_size`: a function, with and without a process for each size."""

import gc
import os
import signal
import threading

import pytest
import torch  # noqa: F401  # a fork that has it need not import it

import stepscope
from stepscope.batch import find_batch_size
from stepscope.batch.find_batch_size import ChildDied, in_fork
from stepscope.record.errors import UsageError


class Clock:
    """Stands in for the module `time`: sleeping takes time, and looking at it a little."""

    now = 0.0

    def perf_counter(self):
        self.now += 1e-6
        return self.now

    def sleep(self, seconds):
        self.now += seconds


CLOCK = Clock()


@pytest.fixture(autouse=True)
def nothing_to_collect():
    """Each size begins by collecting garbage: among all objects of all tests, that takes long."""
    gc.freeze()


@pytest.fixture(autouse=True)
def no_other_clock(monkeypatch):
    monkeypatch.setattr(find_batch_size, "time", CLOCK)


@pytest.fixture(params=[True, False], ids=["forked", "here"])
def forked(request, monkeypatch):
    monkeypatch.setattr(find_batch_size, "_can_fork", lambda: request.param)
    return request.param


def until_64(batch):
    """Takes as long for any batch, and has memory for 64 samples."""
    if batch > 64:
        raise MemoryError("Unable to allocate")
    CLOCK.sleep(0.002)


def test_the_knee_and_the_largest_are_found(forked):
    found = stepscope.find_batch_size(until_64, seconds=0.02)
    assert (found.knee, found.largest) == (64, 64)
    assert [row["batch"] for row in found.curve] == [8, 16, 32, 64, 128]
    assert found.curve[-1]["status"] == "out_of_memory"
    assert found.document["forked"] is forked


def test_it_shows_itself(forked):
    found = stepscope.find_batch_size(until_64, seconds=0.02)
    assert repr(found).startswith("Batch 64: ")
    assert "OOM" in repr(found)
    assert found._repr_html_().count("<tr>") == 6


def test_a_start_that_does_not_fit_is_halved(forked):
    found = stepscope.find_batch_size(until_64, start=256, seconds=0.02)
    assert found.largest == 64


def test_max_is_the_end(forked):
    found = stepscope.find_batch_size(until_64, start=8, max=24, seconds=0.02)
    assert [row["batch"] for row in found.curve] == [8, 16, 24]


def test_an_error_at_a_larger_size_is_an_answer(forked):
    def fails(batch):
        if batch > 16:
            raise ValueError("<b>16 & no more</b>")
        CLOCK.sleep(0.002)

    found = stepscope.find_batch_size(fails, seconds=0.02)
    assert found.curve[-1]["detail"] == "ValueError: <b>16 & no more</b>"
    assert "&lt;b&gt;16 &amp; no more" in found._repr_html_()


def test_a_function_that_fails_at_once_is_told_so(monkeypatch):
    def fails(batch):
        raise ValueError("no data")

    monkeypatch.setattr(find_batch_size, "_can_fork", lambda: False)
    with pytest.raises(ValueError, match="no data"):
        stepscope.find_batch_size(fails)
    monkeypatch.setattr(find_batch_size, "_can_fork", lambda: True)
    with pytest.raises(UsageError, match="failed at batch 8: ValueError: no data"):
        stepscope.find_batch_size(fails)


def test_a_forked_function_changes_nothing_here(monkeypatch):
    monkeypatch.setattr(find_batch_size, "_can_fork", lambda: True)
    calls = []
    stepscope.find_batch_size(calls.append, max=8, seconds=0.01)
    assert calls == []


def test_a_process_killed_for_its_memory_is_out_of_memory(monkeypatch):
    monkeypatch.setattr(find_batch_size, "_can_fork", lambda: True)

    def killed(batch):
        if batch > 16:
            os.kill(os.getpid(), signal.SIGKILL)
        CLOCK.sleep(0.002)

    found = stepscope.find_batch_size(killed, seconds=0.02)
    assert found.largest == 16
    assert found.curve[-1]["status"] == "out_of_memory"


@pytest.mark.parametrize(
    "wrong", [{"start": 0}, {"start": 8, "max": 4}, {"headroom": 1.0}, {"within": -0.1}]
)
def test_what_makes_no_sense_is_refused(wrong):
    with pytest.raises(UsageError):
        stepscope.find_batch_size(until_64, **wrong)


def test_a_forked_child_answers_dies_or_is_ended_in_time():
    assert in_fork(lambda: {"a": 1}) == {"a": 1}
    with pytest.raises(ChildDied) as caught:
        in_fork(lambda: os._exit(3))
    assert caught.value.number is None
    with pytest.raises(TimeoutError):
        in_fork(lambda: threading.Event().wait(600), timeout_s=0.2)
