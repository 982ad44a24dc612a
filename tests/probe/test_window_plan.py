"""When the kernel-level recording opens and closes, with torch's recorder stubbed."""

import errno
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import Module

from stepscope.probe import window as window_module
from stepscope.probe.row_log import RowLog
from stepscope.probe.window import _COOLING, Window, is_settled
from stepscope.record.facts import ProblemFact, WindowFact
from stepscope.record.probe_options import ProbeOptions
from stepscope.record.row_log import FLAG_PROFILED, FLAG_STACKS, RowKind
from stepscope.store.json_lines import FactLog, read_facts
from stepscope.store.table import read_table

MS = 1_000_000


class Profiler:
    """Stands for torch.profiler.profile; keeps its instances and the steps marked in each."""

    made: ClassVar[list["Profiler"]] = []
    problem: Exception | None = None
    device: str | None = None

    def __init__(self, **asked):
        self.asked = asked
        self.profiler = SimpleNamespace(use_device=Profiler.device)
        self.on = False
        self.steps = []
        Profiler.made.append(self)

    def start(self):
        if Profiler.problem is not None:
            raise Profiler.problem
        self.on = True

    def stop(self):
        self.on = False
        self.detached = os.environ.get("TEARDOWN_CUPTI") == "1"

    def export_chrome_trace(self, path):
        Path(path).write_text("{}")


class Mark:
    def __init__(self, name):
        self.name = name

    def __enter__(self):
        Profiler.made[-1].steps.append(int(self.name.removeprefix("ProfilerStep#")))

    def __exit__(self, *_):
        assert Profiler.made[-1].on


@pytest.fixture(autouse=True)
def torch(monkeypatch):
    """A torch that only has a profiler."""
    torch, profiler = ModuleType("torch"), ModuleType("torch.profiler")
    torch.cuda = SimpleNamespace(is_available=lambda: False)
    torch.profiler = profiler
    profiler.profile, profiler.record_function = Profiler, Mark
    profiler.ProfilerActivity = SimpleNamespace(CPU="CPU", CUDA="CUDA")
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch.profiler", profiler)
    monkeypatch.setattr(Profiler, "made", [])
    return torch


class Program:
    """Ends steps one after another as a program would."""

    def __init__(self, folder, **options):
        self.folder = folder
        asked = ProbeOptions(folder=str(folder), launched_ns=0, **options)
        self.log = RowLog(folder / "rows.npy", 0, lambda _: None)
        self.window = Window(asked, self.log, FactLog(folder / "facts.jsonl"))
        self.now, self.step = 0, 0

    def run(self, *durations_ms, capturing=False):
        for duration in durations_ms:
            self.step += 1
            self.now += int(duration * MS)
            self.log.end_row(RowKind.STEP)
            self.window.step_ended(self.step, self.now, capturing)
        return self

    @property
    def facts(self):
        return read_facts(self.folder / "facts.jsonl")

    @property
    def recorded(self):
        return [(fact.name, fact.first, fact.last) for fact in self.facts.all(WindowFact)]

    def flagged(self, flags):
        """The steps whose rows carry exactly these flags."""
        rows = read_table(self.folder / "rows.npy")
        found = rows["flags"][rows["kind"] == RowKind.STEP]
        return [index for index, flag in enumerate(found, start=1) if flag == flags]


@pytest.fixture
def program(tmp_path):
    return lambda **options: Program(tmp_path, **options)


def test_steps_that_take_about_the_same_are_settled():
    assert is_settled([100, 101, 99, 100, 100, 102, 100, 98])


def test_fewer_than_eight_steps_are_never_settled():
    assert not is_settled([100] * 7)


def test_steps_that_get_shorter_or_longer_are_not_settled():
    assert not is_settled([100] * 4 + [50] * 4)
    assert not is_settled([50] * 4 + [100] * 4)


def test_one_spike_does_not_unsettle():
    assert is_settled([100, 100, 900, 100, 100, 100, 100, 100])


def test_only_the_last_eight_count():
    assert is_settled([9000] * 20 + [100] * 8)


@settings(max_examples=30)
@given(st.lists(st.integers(1000, 1100), min_size=8, max_size=20))
def test_steps_within_a_tenth_of_each_other_are_settled(times):
    assert is_settled(times)


def test_opens_once_step_times_have_settled(program):
    run = program(window=6, stacks=0).run(500, 300, 100, 90, *[20] * 40)
    [profiler] = Profiler.made
    first = profiler.steps[0]
    assert 9 <= first < 20
    assert profiler.steps == list(range(first, first + 6))
    assert run.recorded == [("window", first, first + 5)]
    assert run.window.done
    assert not profiler.on


def test_does_not_open_among_the_first_steps_however_steady(program):
    program(window=2, stacks=0).run(*[20] * 30)
    assert Profiler.made[0].steps[0] >= 9


def test_opens_at_last_even_if_nothing_settles(program):
    program(window=3, stacks=0).run(*(2.0 ** (i // 4 % 5) for i in range(80)))
    assert Profiler.made[0].steps[0] <= 40


def test_a_program_too_short_to_settle_has_no_window(program):
    run = program(window=3, stacks=0).run(*[20] * 5)
    run.window.abandon()
    assert Profiler.made == []
    assert run.recorded == []


def test_window_at_names_the_first_step_recorded(program):
    assert program(window=3, stacks=0, window_at=5).run(*[10] * 20).recorded == [("window", 5, 7)]


def test_window_at_the_second_step_is_the_earliest(program):
    assert program(window=2, stacks=0, window_at=2).run(*[10] * 9).recorded == [("window", 2, 3)]


def test_the_window_follows_the_warmup_that_was_asked_for(program):
    assert program(window=2, stacks=0, warmup=4).run(*[10] * 9).recorded == [("window", 5, 6)]


def test_no_window_asked_for_is_done_from_the_start(program):
    run = program(window=0)
    assert run.window.done
    run.run(*[10] * 60)
    assert Profiler.made == []


def test_a_second_window_carries_stacks_after_a_breath(program):
    run = program(window=3, stacks=2, window_at=4).run(*[10] * 30)
    light, stacks = Profiler.made
    assert light.steps == [4, 5, 6]
    assert not light.asked["with_stack"]
    assert stacks.asked["with_stack"]
    first = stacks.steps[0]
    assert stacks.steps == [first, first + 1]
    assert 7 < first < 15, "a step between the two lets the recorder's own work fade"
    assert [name for name, _, _ in run.recorded] == ["window", "stacks"]
    assert run.window.done


def test_rows_are_flagged_from_the_first_step_recorded_until_its_after_effects_are_over(program):
    run = program(window=3, stacks=2, window_at=4).run(*[10] * 30)
    light, stacks = run.flagged(FLAG_PROFILED), run.flagged(FLAG_PROFILED | FLAG_STACKS)
    between = list(range(7, stacks[0]))
    assert light == [4, 5, 6, *between], "the recorder stays attached until the last window"
    assert stacks[:2] == Profiler.made[1].steps
    assert len(stacks) == 2 + _COOLING
    assert run.log.flags == 0


def test_the_traces_are_there_whole_under_their_names(program, tmp_path):
    program(window=3, stacks=2, window_at=4).run(*[10] * 30)
    names = sorted(path.name for path in tmp_path.glob("*trace*"))
    assert names == ["stacks.pt.trace.json", "window.pt.trace.json"]


def test_the_recorders_start_and_stop_have_rows_of_their_own(program, tmp_path):
    program(window=3, stacks=0, window_at=4).run(*[10] * 10)
    kinds = read_table(tmp_path / "rows.npy")["kind"][:12].tolist()
    step, window = RowKind.STEP, RowKind.WINDOW
    assert kinds == [*[step] * 3, window, *[step] * 3, window, *[step] * 4]


def test_a_recorder_that_cannot_start_is_said_and_not_tried_again(program, monkeypatch):
    monkeypatch.setattr(Profiler, "problem", RuntimeError("CUPTI is in use"))
    run = program(window=3, stacks=2, window_at=4).run(*[10] * 30)
    assert len(Profiler.made) == 1
    assert run.window.done
    assert run.log.depth == 0
    assert "CUPTI is in use" in run.facts.last(ProblemFact).text
    assert run.flagged(0) == list(range(1, 31))


def test_no_window_opens_where_the_program_has_used_up_its_descriptors(program, monkeypatch):
    def full(*_):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(window_module, "os", SimpleNamespace(**vars(os) | {"open": full}))
    run = program(window=3, stacks=2, window_at=4).run(*[10] * 30)
    assert Profiler.made == []
    assert run.window.done
    assert "Too many open files" in run.facts.last(ProblemFact).text
    assert run.flagged(0) == list(range(1, 31))


def test_a_program_that_ends_inside_the_window_keeps_what_was_recorded(program, tmp_path):
    run = program(window=6, stacks=0, window_at=3).run(*[10] * 5)
    assert run.window.open
    run.window.abandon()
    assert not run.window.open
    assert (tmp_path / "window.pt.trace.json").exists()
    [(name, first, last)] = run.recorded
    assert (name, first) == ("window", 3)
    assert last >= 5, "steps 3, 4 and 5 were recorded whole"


def test_the_recorder_neither_starts_nor_stops_while_a_graph_is_captured(program):
    recorded = program(window=2, window_at=3, stacks=0)
    recorded.run(1).run(1, 1, capturing=True)
    assert Profiler.made == []
    recorded.run(1, 1).run(1, 1, capturing=True)
    assert Profiler.made[-1].on
    recorded.run(1)
    assert Profiler.made[-1].steps == [5, 6, 7, 8]
    assert recorded.recorded == [("window", 5, 8)]


def test_a_recorder_that_is_to_give_way_waits_for_a_capture_to_end(program):
    recorded = program(window=8, window_at=2, stacks=0).run(1)
    recorded.window._giving_way = True
    recorded.run(1, capturing=True)
    assert Profiler.made[-1].on
    recorded.run(1)
    assert not Profiler.made[-1].on


def test_the_device_is_waited_for_without_what_the_program_may_have_named(program, monkeypatch):
    waited = []
    monkeypatch.setattr(window_module, "synchronize", lambda: waited.append("ours"))
    monkeypatch.setattr(Profiler, "device", "cuda")
    program(window=2, window_at=2, stacks=0).run(1, 1, 1)
    assert waited == ["ours"]
    assert Profiler.made[-1].profiler.use_device is None


@pytest.mark.parametrize("memory", [None, "cuda"])
def test_memory_is_recorded_where_it_was_asked_for(program, torch, memory):
    torch.cuda.is_available = lambda: True
    program(window=2, window_at=2, memory=memory).run(1, 1, 1, 1, 1)
    asked = [made.asked["profile_memory"] for made in Profiler.made]
    assert asked == [memory is not None, False]


@pytest.fixture
def unset(monkeypatch):
    monkeypatch.delenv("TEARDOWN_CUPTI", raising=False)


def detached():
    return [profiler.detached for profiler in Profiler.made]


def test_the_last_recorder_lets_go_of_the_device_and_the_environment_stays(program, unset):
    program(window=3, stacks=2, window_at=4).run(*[10] * 30)
    assert detached() == [False, True]
    assert "TEARDOWN_CUPTI" not in os.environ


def test_what_the_program_asks_of_its_recorders_stands(program, monkeypatch):
    monkeypatch.setenv("TEARDOWN_CUPTI", "0")
    program(window=3, stacks=2, window_at=4).run(*[10] * 30)
    assert detached() == [False, False]
    assert os.environ["TEARDOWN_CUPTI"] == "0"


def test_a_window_that_no_other_can_follow_lets_go_too(program, unset, monkeypatch):
    monkeypatch.setattr("stepscope.probe.window.own_function_modes", lambda: ["Mode"])
    run = program(window=3, stacks=2, window_at=4).run(*[10] * 30)
    assert detached() == [True]
    assert [fact.kind for fact in run.facts.all(ProblemFact)] == ["no_stacks"]


def test_no_stacks_where_torch_could_not_read_which_module_is_called(program, monkeypatch):
    monkeypatch.setattr(Module, "__call__", lambda *args: None)
    run = program(window=3, stacks=2, window_at=4).run(*[10] * 30)
    assert [fact.kind for fact in run.facts.all(ProblemFact)] == ["no_stacks"]
    assert len(Profiler.made) == 1


def test_a_recorder_that_is_dropped_lets_go_too(program, unset):
    run = program(window=3, stacks=0, window_at=4).run(*[10] * 4)
    run.window.drop()
    assert detached() == [True]


def test_one_that_gives_way_leaves_the_device_to_the_recorder_that_follows(program, unset):
    run = program(window=3, stacks=0, window_at=4).run(*[10] * 4)
    run.window.give_way()
    assert detached() == [False]
    assert not Profiler.made[0].on


def test_clocks_may_rest_only_far_from_a_window(program):
    run = program(window=3, stacks=0, window_at=100)
    assert run.window.is_far(50, after=16)
    assert not run.window.is_far(80, after=16)
    assert run.window.clocked_from(300, before=16) == 84
    run.run(*[10] * 110)
    assert not run.window.is_far(110, after=16)
    assert run.window.is_far(130, after=16)
    assert run.window.clocked_from(300, before=16) == 300
    assert not program_without_window(run).is_far(1, after=16)


def program_without_window(run):
    """One whose window is yet to come, at a step that nobody named."""
    return Window(ProbeOptions(folder=str(run.folder), launched_ns=0), run.log, None)
