"""What the host did: self times, threads, overhead and serial stretches."""

import numpy as np
import pytest
from handmade import Handmade
from msgspec import to_builtins
from recordings import recorded

from stepscope.analyze.timeline import host_threads
from stepscope.analyze.timeline.host import host_use, serial_stretches
from stepscope.analyze.timeline.host_threads import self_time
from stepscope.analyze.timeline.intervals import merge, total
from stepscope.record.timeline import HostKind

REAL = ("resnet18_b32_h200", "mi300_resnet_checkpointing_stacks", "a100_nccl_rank0")


def test_self_time_is_what_nothing_inside_accounts_for():
    made = Handmade()
    made.operator("aten::outer", 0, 100)
    made.operator("aten::inner", 10, 40)
    made.host("cudaLaunchKernel", 20, 30)
    made.operator("aten::inner", 50, 60)
    use = host_use(made.timeline())
    assert [(e.name, e.count, e.self_ns, e.total_ns) for e in use.operators] == [
        ("aten::outer", 1, 60, 100),
        ("aten::inner", 2, 30, 40),
    ]
    assert [(e.name, e.self_ns) for e in use.runtime] == [("cudaLaunchKernel", 10)]
    assert use.lines is None


def test_an_operator_inside_itself_counts_once_in_the_total():
    made = Handmade()
    made.operator("aten::to", 0, 100)
    made.operator("aten::to", 20, 80)
    (entry,) = host_use(made.timeline()).operators
    assert (entry.count, entry.self_ns, entry.total_ns) == (2, 100, 100)


def test_children_that_overlap_never_leave_less_than_nothing():
    made = Handmade()
    made.operator("aten::a", 0, 100)
    made.operator("aten::b", 0, 60)
    made.operator("aten::c", 40, 100)
    assert self_time(made.timeline().host).tolist() == [0, 60, 60]


def test_lines_are_the_users_functions_with_the_library_code_they_call():
    made = Handmade()
    made.python("train.py(1): <module>", 0, 100)
    made.python("train.py(5): step", 10, 90)
    made.python("torch/nn/modules/module.py(1783): _call_impl", 20, 80)
    made.operator("aten::linear", 30, 50)
    lines = {line.name: line for line in host_use(made.timeline()).lines}
    assert list(lines) == ["train.py(5): step", "train.py(1): <module>"]
    step = lines["train.py(5): step"]
    assert (step.self_ns, step.with_calls_ns, step.total_ns) == (20, 80, 80)


def test_threads_say_how_busy_and_how_blocked_they_were():
    made = Handmade()
    made.operator("aten::a", 0, 30)
    made.host("cudaDeviceSynchronize", 40, 60)
    made.operator("aten::b", 20, 30, thread="other")
    main, other = host_use(made.timeline(span=(0, 100))).threads
    assert (main.name, main.busy_ns, main.busy_share, main.blocked_ns) == ("main", 50, 0.5, 20)
    assert main.events == {"operators": 1, "runtime calls": 1}
    assert (other.name, other.busy_ns) == ("other", 10)


def test_the_profilers_own_work_is_stated():
    made = Handmade()
    made.host("Buffer Flush", 5, 30, HostKind.OVERHEAD)
    made.host("Activity Buffer Request", 20, 40, HostKind.OVERHEAD, thread="other")
    overhead = host_use(made.timeline(span=(0, 100))).overhead
    assert (overhead.total_ns, overhead.share) == (35, 0.35)
    assert [entry.name for entry in overhead.by_name] == ["Buffer Flush", "Activity Buffer Request"]


def test_a_stretch_is_serial_when_one_thread_works_and_no_device_does():
    made = Handmade()
    made.operator("aten::a", 0, 40)
    made.operator("aten::b", 30, 60, thread="other")
    made.work(50, 70)
    made.operator("aten::c", 60, 100)
    found = serial_stretches(made.timeline(), 0, 100)
    assert [(s.start_ns, s.duration_ns, s.thread, s.place) for s in found.largest] == [
        (0, 30, "main", "aten::a"),
        (70, 30, "main", "aten::c"),
        (40, 10, "other", "aten::b"),
    ]
    assert (found.total_ns, found.share) == (70, 0.7)


def test_python_counts_as_work_only_where_no_operator_runs_elsewhere():
    made = Handmade()
    made.python("train.py(1): <module>", 0, 100)
    made.operator("autograd::engine::evaluate_function: A", 40, 70, thread="engine")
    found = serial_stretches(made.timeline(), 0, 100)
    assert [(s.start_ns, s.duration_ns, s.thread, s.place) for s in found.largest] == [
        (0, 40, "main", "train.py(1): <module>"),
        (40, 30, "engine", "autograd::engine::evaluate_function: A"),
        (70, 30, "main", "train.py(1): <module>"),
    ]


def test_the_place_is_what_took_most_of_a_stretch():
    made = Handmade()
    made.python("train.py(1): <module>", 0, 100)
    made.python("data.py(9): slow", 5, 95)
    made.operator("aten::cat", 20, 80)
    (stretch,) = serial_stretches(made.timeline(), 0, 100).largest
    assert (stretch.place, stretch.operator) == ("data.py(9): slow", "aten::cat")


def test_a_recording_without_host_events_has_no_host_to_tell_of():
    made = Handmade()
    made.work(0, 10)
    assert host_use(made.timeline()) is None
    assert serial_stretches(made.timeline(), 0, 10).largest == []


@pytest.mark.parametrize("name", REAL)
def test_self_times_of_a_thread_add_up_to_the_time_it_was_inside_anything(name):
    timeline = recorded(name)
    host, own = timeline.host, self_time(timeline.host)
    for thread in range(len(timeline.threads)):
        rows = host.thread == thread
        inside = total(merge(host.start[rows], host.end[rows]))
        assert own[rows].sum() == pytest.approx(inside, rel=0.01)


@pytest.mark.parametrize("name", REAL)
def test_serial_time_lies_where_the_device_is_idle(name):
    timeline = recorded(name)
    start, end = timeline.span
    device = timeline.device
    idle = end - start - total(merge(device.start, device.end))
    found = serial_stretches(timeline, start, end)
    assert 0 < found.total_ns <= idle
    for stretch in found.largest:
        begin, until = stretch.start_ns, stretch.start_ns + stretch.duration_ns
        assert not ((device.start < until) & (device.end > begin)).any()
    assert to_builtins(host_use(timeline))["serial"]["total_ns"] == found.total_ns


def test_what_a_thread_did_is_the_same_by_climbing_and_by_cutting(monkeypatch):
    timeline = recorded("mi300_resnet_checkpointing_stacks")
    random = np.random.default_rng(0)
    thread = random.integers(0, len(timeline.threads), 2000)
    time = random.integers(-10, timeline.span[1] + 10, 2000)
    climbed = host_threads.innermost_at(timeline, thread, time)
    assert len(np.unique(climbed)) > 100
    monkeypatch.setattr(host_threads, "_USUAL_DEPTH", 0)
    assert np.array_equal(host_threads.innermost_at(timeline, thread, time), climbed)
