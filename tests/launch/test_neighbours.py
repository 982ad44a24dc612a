"""What other processes take of the cores."""

import math
import os

import pytest

from stepscope.hardware import process_tree as neighbours
from stepscope.hardware.process_tree import OtherLoad, busy_seconds, wait_until_quiet


@pytest.fixture
def machine(monkeypatch):
    """A clock and a machine's busy time, both set by hand."""

    class Machine:
        now_s = 100.0
        busy_s = 5000.0
        ours_s = 1.0

    machine = Machine()
    times = lambda: (machine.ours_s, 0.0, 0.0, 0.0, 0.0)  # noqa: E731
    monkeypatch.setattr(neighbours, "busy_seconds", lambda pid: machine.busy_s)
    monkeypatch.setattr(neighbours.time, "monotonic", lambda: machine.now_s)
    monkeypatch.setattr(neighbours.os, "times", times)
    return machine


def test_what_the_program_and_its_observer_use_is_not_others(machine):
    load = OtherLoad(1)
    assert math.isnan(load.sample(math.nan, math.nan))
    for _ in range(5):
        machine.now_s += 0.1001
        machine.busy_s += 0.1001 * (0.8 + 0.05 + 0.6)  # the program's, the observer's, others'
        machine.ours_s += 0.1001 * 0.05
        found = load.sample(80.0, 0.1001)
    assert found == pytest.approx(60.0)


def test_between_two_looks_nothing_is_known(machine):
    load = OtherLoad(1)
    load.sample(math.nan, math.nan)
    machine.now_s += 0.1
    assert math.isnan(load.sample(50.0, 0.1))


def test_a_system_that_does_not_tell_is_left_open(machine):
    machine.busy_s = None
    load = OtherLoad(1)
    machine.now_s += 1.0
    assert math.isnan(load.sample(50.0, 0.1))


def test_a_counter_that_jumps_and_returns_tells_nothing(machine, monkeypatch):
    monkeypatch.setattr(neighbours.os, "cpu_count", lambda: 2)
    load = OtherLoad(1)
    load.sample(math.nan, math.nan)
    found = []
    for jump_s in (0.0, -4000.0, 4000.0, 0.0):
        machine.now_s += 1.0
        machine.busy_s += 1.9 + jump_s
        found.append(load.sample(20.0, 1.0))
    assert found == pytest.approx([170.0, math.nan, math.nan, 170.0], nan_ok=True)


def test_cores_are_busier_for_work_done(tmp_path):
    before = busy_seconds(os.getpid())
    begun = os.times()
    while sum(os.times()[:2]) - sum(begun[:2]) < 0.2:
        sum(range(10_000))
    assert busy_seconds(os.getpid()) >= before + 0.1


def test_a_process_that_is_gone_tells_nothing():
    assert busy_seconds(2**22 + 1) is None


@pytest.fixture
def passing(machine, monkeypatch):
    """Time passes by sleeping alone; others use so many cores, one after the other."""

    def busy(*cores):
        left = list(cores)

        def sleep(seconds):
            machine.now_s += seconds
            machine.busy_s += seconds * (left.pop(0) if len(left) > 1 else left[0])

        monkeypatch.setattr(neighbours.time, "sleep", sleep)
        monkeypatch.setattr(neighbours.os, "sched_getaffinity", lambda pid: {0, 1})

    return busy


def test_waits_until_others_leave_room(passing):
    passing(1.8, 0.9, 0.1)
    heard = []
    assert wait_until_quiet(600.0, heard.append)
    assert heard == pytest.approx([1.8, 0.9])


def test_does_not_wait_for_ever(passing, machine):
    passing(1.5)
    begun = machine.now_s
    assert not wait_until_quiet(60.0, lambda cores: None)
    assert 60 <= machine.now_s - begun <= 63


def test_where_nothing_is_told_nothing_is_waited_for(machine):
    machine.busy_s = None
    assert wait_until_quiet(600.0, lambda cores: None)
