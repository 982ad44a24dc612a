"""The critical path: known to the nanosecond by hand, tiling its window on real recordings."""

from dataclasses import replace

import numpy as np
import pytest
from handmade import Handmade
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import to_builtins
from plain import TRACES
from recordings import recorded

from stepscope.analyze.timeline.critical_path import (
    SegmentKind,
    critical_path,
    path_segments,
    path_window,
)
from stepscope.analyze.timeline.steps import RecordedStep, find_steps
from stepscope.record.timeline import NOTHING, HostKind, SyncEvents, make_events

REAL = sorted(path.name.removesuffix(".json.gz") for path in TRACES.glob("*.json.gz"))


def path_of(made, window=None):
    """(start, end, name) of each segment: a kernel, host event, pause, or thread in brackets."""
    timeline = made.timeline()
    start, end = window or timeline.span
    path = path_segments(timeline, start, end)
    assert_tiles(path, start, end)
    rows = zip(path.start, path.end, path.on, path.event, path.thread, strict=True)
    return [
        (int(s), int(e), label(timeline, on, event, thread)) for s, e, on, event, thread in rows
    ]


def label(timeline, on, event, thread):
    if on == SegmentKind.DEVICE:
        return timeline.name_of(timeline.device.name[event])
    if on == SegmentKind.HOST:
        name = timeline.name_of(timeline.host.name[event])
        return name if event != NOTHING else f"[{timeline.threads[thread].name}]"
    return SegmentKind(on).name.lower()


def assert_tiles(path, start, end):
    assert path.start[0] == start
    assert path.end[-1] == end
    assert (path.start[1:] == path.end[:-1]).all()
    assert (path.end > path.start).all()


def test_a_device_bound_window_runs_over_its_kernels():
    made = Handmade()
    made.work(12, 100, (0, 10), "first")
    made.work(100, 200, (10, 20), "second")
    made.host("cudaDeviceSynchronize", 25, 205)
    assert path_of(made) == [
        (0, 10, "cudaLaunchKernel"),
        (10, 12, "launch"),
        (12, 100, "first"),
        (100, 200, "second"),
        (200, 205, "cudaDeviceSynchronize"),
    ]


def test_a_host_bound_window_runs_over_its_operators():
    made = Handmade()
    made.operator("aten::a", 0, 50)
    made.work(52, 60, (40, 50), "first")
    made.operator("aten::b", 50, 105)
    made.work(103, 110, (90, 100), "second")
    assert path_of(made) == [
        (0, 40, "aten::a"),
        (40, 50, "cudaLaunchKernel"),
        (50, 90, "aten::b"),
        (90, 100, "cudaLaunchKernel"),
        (100, 103, "launch"),
        (103, 110, "second"),
    ]


def test_a_synchronisation_in_the_middle_takes_the_path_to_the_device_and_back():
    made = Handmade()
    made.work(12, 80, (0, 10))
    made.host("cudaStreamSynchronize", 20, 85)
    made.operator("aten::after", 85, 100)
    assert path_of(made) == [
        (0, 10, "cudaLaunchKernel"),
        (10, 12, "launch"),
        (12, 80, "kernel"),
        (80, 85, "cudaStreamSynchronize"),
        (85, 100, "aten::after"),
    ]


def test_a_synchronisation_that_found_the_device_idle_stays_on_the_host():
    made = Handmade()
    made.work(12, 15, (0, 10))
    made.host("cudaStreamSynchronize", 20, 30)
    made.operator("aten::after", 30, 40)
    assert path_of(made) == [
        (0, 10, "cudaLaunchKernel"),
        (10, 20, "[main]"),
        (20, 30, "cudaStreamSynchronize"),
        (30, 40, "aten::after"),
    ]


def test_a_synchronisation_waits_for_its_own_stream_where_that_is_recorded():
    made = Handmade()
    made.work(5, 50, (0, 2), "waited for", stream="8")
    made.work(6, 55, (2, 4), "just there")
    made.host("cudaStreamSynchronize", 10, 60)
    timeline = made.timeline()
    assert label(timeline, *device_part(timeline)) == "just there"
    timeline.host.correlation[timeline.host.start == 10] = 77
    syncs = make_events(SyncEvents, start=[10], duration=[45], stream=[0], correlation=[77])
    timeline = replace(timeline, syncs=syncs)
    assert label(timeline, *device_part(timeline)) == "waited for"


def device_part(timeline):
    path = path_segments(timeline, *timeline.span)
    (row,) = np.flatnonzero(path.on == SegmentKind.DEVICE)
    return SegmentKind.DEVICE, path.event[row], NOTHING


def two_streams():
    made = Handmade()
    made.work(10, 100, (0, 5), "compute")
    made.work(20, 150, (6, 9), "ncclDevKernel", stream="8")
    made.work(155, 200, (13, 16), "optimizer")
    return made


def test_work_that_waited_for_another_stream_is_reached_through_it():
    made = two_streams()
    made.host("cudaStreamWaitEvent", 10, 12)
    assert path_of(made) == [
        (0, 5, "cudaLaunchKernel"),
        (5, 6, "[main]"),
        (6, 9, "cudaLaunchKernel"),
        (9, 20, "launch"),
        (20, 150, "ncclDevKernel"),
        (150, 155, "between"),
        (155, 200, "optimizer"),
    ]


def test_without_a_wait_between_streams_only_the_order_on_the_stream_counts():
    assert path_of(two_streams())[2:] == [
        (10, 100, "compute"),
        (100, 155, "between"),
        (155, 200, "optimizer"),
    ]


def test_a_wait_known_to_concern_another_stream_does_not_count():
    made = two_streams()
    wait = made.host("cudaStreamWaitEvent", 10, 12)
    timeline = made.timeline()
    correlation = timeline.host.correlation.copy()
    correlation[timeline.host.start == 10] = 77
    assert wait >= 0
    timeline = replace(
        timeline,
        host=replace(timeline.host, correlation=correlation),
        syncs=make_events(SyncEvents, start=[10], duration=[2], stream=[1], correlation=[77]),
    )
    path = path_segments(timeline, *timeline.span)
    assert [
        timeline.name_of(timeline.device.name[e]) for e in path.event[path.on == SegmentKind.DEVICE]
    ] == [
        "compute",
        "optimizer",
    ]


def test_while_the_main_thread_waits_for_backward_the_path_is_on_the_backward_thread():
    made = Handmade()
    made.operator("aten::loss", 0, 20)
    made.operator("autograd::engine::evaluate_function: A", 30, 60, "engine")
    made.operator("autograd::engine::evaluate_function: B", 65, 90, "engine")
    made.operator("aten::step", 100, 110)
    assert path_of(made) == [
        (0, 20, "aten::loss"),
        (20, 30, "[main]"),
        (30, 60, "autograd::engine::evaluate_function: A"),
        (60, 65, "[engine]"),
        (65, 90, "autograd::engine::evaluate_function: B"),
        (90, 100, "[main]"),
        (100, 110, "aten::step"),
    ]


def test_a_kernel_launched_in_backward_leads_there_and_from_there_to_the_caller():
    made = Handmade()
    made.annotation("ProfilerStep#1", 0, 100)
    made.operator("aten::loss", 0, 20)
    made.operator("autograd::engine::evaluate_function: A", 30, 60, "engine")
    launch = made.host("cudaLaunchKernel", 50, 55, thread="engine")
    made.work(58, 140, launch)
    assert path_of(made) == [
        (0, 20, "aten::loss"),
        (20, 30, "ProfilerStep#1"),
        (30, 50, "autograd::engine::evaluate_function: A"),
        (50, 55, "cudaLaunchKernel"),
        (55, 58, "launch"),
        (58, 140, "kernel"),
    ]


def test_without_marks_of_steps_the_thread_that_calls_backward_is_the_main_one():
    made = Handmade()
    made.operator("aten::loss", 0, 20)
    for n in range(5):
        name = "autograd::engine::evaluate_function: A"
        made.operator(name, 30 + 10 * n, 38 + 10 * n, "engine")
        launch = made.host("cudaLaunchKernel", 32 + 10 * n, 34 + 10 * n, thread="engine")
        made.work(35 + 10 * n, 37 + 10 * n, launch)
    made.operator("aten::step", 90, 100)
    path = path_of(made)
    assert (path[0], path[-1]) == ((0, 20, "aten::loss"), (90, 100, "aten::step"))


def test_threads_that_work_side_by_side_do_not_wait_for_each_other():
    made = Handmade()
    made.annotation("ProfilerStep#1", 0, 100)
    made.operator("aten::a", 0, 40)
    made.operator("aten::b", 60, 100)
    launch = made.host("cudaLaunchKernel", 10, 90, thread="other")
    made.work(12, 20, launch)
    assert {name for _, _, name in path_of(made)} == {"aten::a", "aten::b", "ProfilerStep#1"}


def test_a_copy_of_pageable_memory_is_waited_for_in_its_own_call():
    made = Handmade()
    made.work(12, 80, (0, 10))
    copy = made.host("cudaMemcpyAsync", 20, 95)
    made.work(80, 90, copy, "Memcpy DtoH (Device -> Pageable)")
    made.operator("aten::after", 95, 100)
    assert path_of(made)[2:] == [
        (12, 80, "kernel"),
        (80, 90, "Memcpy DtoH (Device -> Pageable)"),
        (90, 95, "cudaMemcpyAsync"),
        (95, 100, "aten::after"),
    ]


def test_a_window_is_cut_out_of_whatever_crosses_its_ends():
    made = Handmade()
    made.work(10, 200, (0, 5))
    assert path_of(made, (50, 120)) == [(50, 120, "kernel")]
    assert path_of(made, (2, 120)) == [
        (2, 5, "cudaLaunchKernel"),
        (5, 10, "launch"),
        (10, 120, "kernel"),
    ]


def test_time_without_any_host_event_is_unrecorded():
    made = Handmade()
    made.work(10, 20)
    made.work(30, 40, name="later")
    found = critical_path(made.timeline(), 0, 40)
    assert path_of(made, (0, 40)) == [
        (0, 10, "unknown"),
        (10, 20, "kernel"),
        (20, 30, "between"),
        (30, 40, "later"),
    ]
    assert (found.device_ns, found.host_ns, found.between_ns) == (20, 10, 10)


def test_nothing_recorded_and_windows_without_length_are_survived():
    empty = Handmade().timeline()
    assert critical_path(empty, 0, 0) is None
    assert critical_path(empty, 0, 10).by_category[0].category == "unrecorded"


def test_shares_say_which_side_and_category_the_time_went_to():
    made = Handmade()
    made.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 30)
    made.operator("aten::stack", 5, 10)
    made.work(52, 80, (40, 50), "ampere_sgemm_128x64_nn")
    made.host("cudaDeviceSynchronize", 55, 90)
    found = critical_path(made.timeline(), 0, 100)
    assert {(s.side, s.category): s.ns for s in found.by_category} == {
        ("host", "data loading"): 30,
        ("device", "matmul"): 28,
        ("host", "unrecorded"): 20,
        ("host", "runtime call"): 10,
        ("host", "synchronisation"): 10,
        ("between", "launch latency"): 2,
    }
    assert sum(share.share for share in found.by_category) == pytest.approx(1)
    assert found.top[0].ns >= found.top[1].ns
    assert to_builtins(found)["segments"] == found.segments


def test_steps_and_addresses_do_not_split_one_name_into_many():
    made = Handmade()
    for n in range(3):
        made.annotation(f"ProfilerStep#{n}", 100 * n, 100 * n + 50)
        made.python(f"<built-in method get of dict object at 0x7f{n}>", 100 * n + 50, 100 * n + 100)
    top = critical_path(made.timeline(), 0, 300).top
    assert {(e.name, e.ns, e.count) for e in top} == {
        ("ProfilerStep", 150, 3),
        ("<built-in method get of dict object>", 150, 3),
    }


def test_the_window_ends_when_the_steps_last_kernel_has():
    made = Handmade()
    made.annotation("ProfilerStep#1", 0, 50)
    made.work(60, 90, (10, 20))
    made.work(95, 200, (70, 80), "of no step")
    assert path_window(made.timeline(), [RecordedStep("ProfilerStep#1", 0, 50)]) == (0, 90)


def test_a_long_recording_is_cut_to_its_last_steps():
    made = Handmade()
    for n in range(30):
        made.operator("aten::a", 10 * n, 10 * n + 5)
    steps = [RecordedStep(f"step {n}", 100 * n, 100 * n + 100) for n in range(3)]
    assert path_window(made.timeline(), steps, most_events=20) == (100, 300)
    assert path_window(made.timeline(), steps, most_events=19) == (200, 300)
    assert path_window(made.timeline(), steps, most_events=1) == (200, 300)


@pytest.mark.parametrize("name", REAL)
def test_the_path_tiles_every_window_of_real_recordings(name):
    timeline = recorded(name)
    steps = find_steps(timeline).steps
    windows = [timeline.span, path_window(timeline, steps)]
    windows += [(step.start_ns, step.end_ns) for step in steps[:3]]
    for start, end in windows:
        path = path_segments(timeline, start, end)
        assert_tiles(path, start, end)
        found = critical_path(timeline, start, end)
        assert found.device_ns + found.host_ns + found.between_ns == found.total_ns == end - start
        assert sum(share.ns for share in found.by_category) == end - start
        device = np.flatnonzero(path.on == SegmentKind.DEVICE)
        events = path.event[device]
        assert (timeline.device.start[events] <= path.start[device]).all()
        assert (timeline.device.end[events] >= path.end[device]).all()


def test_real_recordings_come_out_bound_by_what_they_are_bound_by():
    def device_share(name):
        timeline = recorded(name)
        found = critical_path(timeline, *path_window(timeline, find_steps(timeline).steps))
        return found.device_ns / found.total_ns

    assert device_share("resnet18_b32_h200") < 0.05
    assert device_share("v100_ns_timestamps.pt.trace") > 0.9
    assert device_share("mi300_resnet_checkpointing_stacks") > 0.9


NAMES = ("aten::a", "autograd::engine::evaluate_function: B", "gloo:all_reduce")
CALLS = ("cudaLaunchKernel", "cudaStreamSynchronize", "cudaStreamWaitEvent", "cudaMemcpyAsync")
WORK = ("kernel", "Memcpy DtoH (Device -> Pageable)")
few = st.integers(0, 60)


@settings(max_examples=150)
@given(
    st.lists(st.tuples(few, few, st.sampled_from(NAMES + CALLS), st.integers(0, 2)), max_size=12),
    st.lists(st.tuples(few, few, st.sampled_from(WORK), st.integers(0, 2), few), max_size=10),
    st.tuples(few, few),
)
def test_any_timeline_is_tiled(host, device, window):
    made, calls = Handmade(), []
    for start, length, name, thread in host:
        kind = HostKind.RUNTIME if name in CALLS else HostKind.OPERATOR
        number = made.host(name, start, start + length, kind, f"thread {thread}")
        calls += [number] if kind == HostKind.RUNTIME else []
    for start, length, name, stream, call in device:
        launch = calls[call % len(calls)] if calls and call % 3 else NOTHING
        made.work(start, start + length, launch, name, stream=str(stream))
    start, end = min(window), max(window) + 1
    assert_tiles(path_segments(made.timeline(), start, end), start, end)
