"""The host sampler: names the lines that no phase explains, and leaves nothing behind."""

import _thread
import gc
import os
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")

from stepscope.probe import host_sampler as module
from stepscope.probe.boot import watch_forks
from stepscope.probe.host_sampler import HostSampler
from stepscope.probe.row_log import BACKWARD, FORWARD, LEAVE, LEAVE_TAIL, OTHER, LogState, RowLog
from stepscope.record.facts import HostSamplesFact
from stepscope.record.row_log import FLAG_SAMPLED, ROW_COLUMNS, Phase, RowKind
from stepscope.store.json_lines import FactLog, read_facts
from stepscope.store.table import read_table

HERE = str(Path(__file__))
PATIENCE_S = 60  # on whatever machine: nothing waits so long unless it is broken


class Loop:
    """A training loop made of a log's events, and its sampler."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = RowLog(folder / "rows.npy", time.monotonic_ns(), self.fail)
        self.facts = FactLog(folder / "facts.jsonl")
        self.sampler = HostSampler(self.log, self.facts, enabled=True)
        self.steps = 0

    def fail(self, problem: BaseException) -> None:
        raise AssertionError(problem)

    def wait_for_samples(self, more: int = 5) -> None:
        """Work until so many more were taken, where any are."""
        enough, end = len(self.sampler._pending) + more, time.monotonic() + PATIENCE_S
        while self.sampler.active and len(self.sampler._pending) < enough:
            assert time.monotonic() < end
        if not self.sampler.active:
            time.sleep(0.001)

    def step(self, *phases: int, plain: bool = True) -> None:
        for phase in phases:
            if phase == OTHER:
                get_batch(self)
            else:
                self.log.enter(phase)
                compute(self)
                self.log.leave()
        self.log.end_row(RowKind.STEP)
        self.steps += 1
        self.sampler.step_ended(self.steps, plain)

    def until_done(self, *phases: int) -> HostSamplesFact:
        for _ in range(100):
            if not self.sampler.done:
                self.step(*phases)
        assert self.sampler.done
        return self.told()

    def told(self) -> HostSamplesFact:
        found = read_facts(self.folder / "facts.jsonl").last(HostSamplesFact)
        assert found is not None
        return found


def get_batch(loop: Loop) -> None:
    loop.wait_for_samples()  # batch


def compute(loop: Loop) -> None:
    loop.wait_for_samples()


@pytest.fixture
def loop(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_ENOUGH", 20)
    before = sys.getswitchinterval(), gc.isenabled()
    made = Loop(tmp_path)
    yield made
    made.sampler.finish()
    assert (sys.getswitchinterval(), gc.isenabled()) == before


def frames_of(fact: HostSamplesFact, phase: str) -> set[tuple[str, str]]:
    """File and function of all frames in a phase."""
    some = (one for one in fact.stacks if one.phase == phase)
    return {(file, name) for one in some for file, _, name in one.frames}


def test_code_in_no_phase_is_told_by_line_and_apart_from_phases(loop):
    fact = loop.until_done(OTHER, FORWARD)
    assert (HERE, "get_batch") in frames_of(fact, "other")
    assert (HERE, "compute") in frames_of(fact, "forward")
    assert (HERE, "get_batch") not in frames_of(fact, "forward")
    line = next(
        n for n, text in enumerate(Path(HERE).read_text().splitlines(), 1) if "  # batch" in text
    )
    stack = next(one for one in fact.stacks if one.phase == "other")
    assert [HERE, line, "get_batch"] in stack.frames
    assert fact.samples >= 20
    assert fact.steps >= 3
    assert sum(one.ns for one in fact.stacks) > 0


def test_steps_that_phases_explain_are_not_sampled(loop):
    for _ in range(30):
        loop.step(FORWARD)
    assert not loop.sampler.active
    assert not loop.sampler.done


def test_sampled_steps_are_marked_and_others_are_not(loop):
    fact = loop.until_done(OTHER)
    for _ in range(3):
        loop.step(OTHER)
    loop.log.close()
    flags = read_table(loop.folder / "rows.npy", ROW_COLUMNS)["flags"].astype(int)
    sampled = [n for n, flag in enumerate(flags, 1) if flag & FLAG_SAMPLED]
    assert sampled == [*range(fact.first, fact.last + 1)]
    assert len(sampled) == fact.steps


def test_a_step_with_an_evaluation_counts_for_nothing(loop):
    while not loop.sampler.active:
        loop.step(OTHER)
    counted = loop.sampler._counted
    loop.step(OTHER, plain=False)
    assert loop.sampler._counted == counted


def test_what_was_seen_of_a_step_that_is_interrupted_is_dropped_and_sampling_goes_on(loop):
    while not loop.sampler.active:
        loop.step(OTHER)
    loop.wait_for_samples()
    loop.sampler.stop()
    assert not loop.sampler.active
    assert not loop.sampler._pending
    loop.sampler.stop()  # once more, as another thread might
    assert loop.until_done(OTHER).samples >= 20


def test_no_thread_is_left_where_the_program_forks(loop):
    watch_forks(lambda: None, loop.sampler.stop)
    while not loop.sampler.active:
        loop.step(OTHER)
    loop.wait_for_samples()
    child = os.fork()
    if not child:
        os._exit(loop.sampler.active)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert not loop.sampler.active


def test_a_switch_interval_the_program_sets_meanwhile_stays(loop):
    before = sys.getswitchinterval()
    while not loop.sampler.active:
        loop.step(OTHER)
    assert sys.getswitchinterval() < before
    sys.setswitchinterval(0.02)
    loop.sampler.stop()
    assert sys.getswitchinterval() == pytest.approx(0.02)
    sys.setswitchinterval(before)


def test_without_a_thread_to_be_had_the_program_goes_on(loop, monkeypatch):
    def none(*_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_thread, "start_new_thread", none)
    for _ in range(10):
        loop.step(OTHER)
    assert loop.sampler.done
    assert not loop.sampler.active


def test_a_fault_of_our_own_ends_sampling_only(loop, monkeypatch):
    monkeypatch.setattr(loop.sampler, "_count", lambda sample: 1 / 0)
    for _ in range(20):
        loop.step(OTHER)
    assert loop.sampler.done
    assert not loop.log.off


def test_a_program_that_profiles_itself_is_left_alone(loop):
    sys.setprofile(lambda *_: None)
    try:
        for _ in range(10):
            loop.step(OTHER)
        assert not loop.sampler.active
    finally:
        sys.setprofile(None)


def test_frames_are_not_kept(loop):
    class Held:
        def __del__(self):
            ended.append(_thread.get_ident())

    def work():
        held = Held()
        loop.wait_for_samples(2)
        return held is not None

    ended = []
    while not loop.sampler.active:
        loop.step(OTHER)
    assert all(work() for _ in range(5))
    assert ended == [_thread.get_ident()] * 5


@pytest.mark.parametrize(
    ("codes", "phase"),
    [
        ([], Phase.OTHER),
        ([FORWARD], Phase.FORWARD),
        ([FORWARD, LEAVE], Phase.OTHER),
        ([FORWARD, LEAVE, LEAVE_TAIL], Phase.FORWARD),  # what follows it is its own
        ([FORWARD, LEAVE_TAIL], Phase.FORWARD),
        ([FORWARD, LEAVE_TAIL, BACKWARD], Phase.BACKWARD),
        ([FORWARD, LEAVE_TAIL, BACKWARD, LEAVE], Phase.OTHER),
        ([Phase.OPTIMIZER, FORWARD, LEAVE], Phase.OPTIMIZER),
    ],
)
def test_the_phase_under_way_follows_from_the_events(codes, phase):
    events = [value for code in codes for value in (int(code), 0)]
    assert LogState(events, [], OTHER, OTHER).phase() == phase
    begun = [*events, int(FORWARD)]  # its time is still to come
    assert LogState(begun, [], OTHER, OTHER).phase() == phase


@pytest.mark.parametrize(("now", "phase"), [(29, Phase.FORWARD), (31, Phase.OTHER)])
def test_after_a_forward_its_own_time_is_as_long_as_it_took(now, phase):
    events = [int(FORWARD), 10, LEAVE_TAIL, 20]
    assert LogState(events, [], OTHER, OTHER, now).phase() == phase
