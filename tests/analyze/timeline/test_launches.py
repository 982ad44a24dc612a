"""Launches: counts, latency, the queue, and how long the host stood still."""

import pytest
from handmade import Handmade
from hypothesis import given
from hypothesis import strategies as st
from recordings import recorded

from stepscope.analyze.timeline.launches import study_launches
from stepscope.analyze.timeline.steps import find_steps


def launches_of(made, span=None):
    timeline = made.timeline(span)
    return study_launches(timeline, find_steps(timeline))


def test_latency_runs_from_the_calls_start_and_skewed_ones_are_counted_apart():
    made = Handmade()
    made.work(30, 40, launch=(10, 14))
    made.work(60, 70, launch=(50, 52))
    made.work(75, 80, launch=(90, 95))
    found = launches_of(made)
    assert (found.latency.mean_ns, found.latency.max_ns, found.skewed) == (15.0, 20, 1)
    assert found.call.mean_ns == pytest.approx((4 + 2 + 5) / 3)


def test_kernels_count_in_the_step_that_launched_them():
    made = Handmade()
    made.annotation("ProfilerStep#1", 0, 100)
    made.annotation("ProfilerStep#2", 100, 200)
    made.work(110, 120, launch=(90, 95))
    made.work(120, 130, launch=(105, 106))
    made.work(130, 140)
    made.work(140, 150, launch=(107, 108), name="Memset (Device)")
    found = launches_of(made)
    assert (found.kernels, found.kernels_per_step) == (3, [1, 2])
    assert (found.without_launch, found.without_launch_ns) == (1, 10)


def test_shares_of_short_kernels():
    made = Handmade()
    made.work(10_000, 12_000, launch=(0, 3_000))
    made.work(20_000, 24_000, launch=(10_000, 13_000))
    made.work(30_000, 90_000, launch=(20_000, 23_000))
    made.work(90_000, 91_000)
    found = launches_of(made)
    assert found.shorter_than_launch == pytest.approx(1 / 3)
    assert found.shorter_than_5us == 0.75


def test_one_graph_launch_starts_many_kernels():
    made = Handmade()
    call = made.host("cudaGraphLaunch", 0, 50)
    for start in (60, 70, 80):
        made.work(start, start + 9, launch=call)
    made.work(100, 110, launch=(90, 95))
    found = launches_of(made)
    assert (found.graph_launches, found.graph_kernels) == (1, 3)
    assert found.latency.max_ns == 60
    assert found.shorter_than_launch == 0.0


def test_the_host_is_blocked_once_where_calls_overlap():
    made = Handmade()
    made.host("cudaStreamSynchronize", 10, 30)
    made.host("cudaDeviceSynchronize", 20, 50, thread="other")
    made.host("cudaEventSynchronize", 15, 20)
    made.host("cudaEventQuery", 60, 90)
    made.work(0, 100)
    found = launches_of(made).blocked
    assert [(one.thread, one.blocked_ns, one.calls) for one in found] == [
        ("other", 30, 1),
        ("main", 20, 2),
    ]


WAITS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 30)), min_size=1, max_size=12)


@pytest.mark.parametrize("since", [0, 2**60])
@given(waits=WAITS)
def test_the_queue_is_what_was_launched_and_has_not_started(since, waits):
    made = Handmade()
    for launched, waited in waits:
        start = since + launched + waited
        made.work(start, start + 1, launch=(since + launched, since + launched))
    (queue,) = launches_of(made, span=(since, since + 100)).queues
    lengths = [sum(a <= now < a + wait for a, wait in waits) for now in range(100)]
    assert queue.longest == max(lengths)
    assert queue.mean == pytest.approx(sum(lengths) / 100)
    assert queue.empty_share == pytest.approx(lengths.count(0) / 100)
    assert queue.series == pytest.approx(lengths)
    assert (queue.start_ns, queue.every_ns) == (since, 1.0)


def test_without_device_work_there_is_nothing_to_say():
    found = launches_of(Handmade())
    assert (found.kernels, found.queues, found.blocked) == (0, [], [])
    assert found.latency.mean_ns is None
    assert found.shorter_than_launch is None


def test_a_small_resnet_outruns_its_launches_and_never_fills_the_queue():
    timeline = recorded("resnet18_b32_h200")
    found = study_launches(timeline, find_steps(timeline))
    assert found.kernels_per_step == [281] * 8
    assert found.shorter_than_launch > 0.7
    assert found.queues[0].longest < 5
    assert len(found.queues[0].series) == 500


def test_a_host_far_ahead_fills_the_queue():
    timeline = recorded("v100_ns_timestamps.pt.trace")
    found = study_launches(timeline, find_steps(timeline))
    assert found.queues[0].longest > 1000
    assert found.queues[0].empty_share < 0.05
    assert found.skewed == 0


def test_kernels_launched_before_the_recording_are_counted():
    timeline = recorded("mi300_resnet_checkpointing_stacks")
    assert study_launches(timeline, find_steps(timeline)).without_launch == 968


def test_a_graph_of_a_real_decoder_is_one_launch():
    timeline = recorded("vllm_decode_cuda_graphs")
    found = study_launches(timeline, find_steps(timeline))
    assert (found.graph_launches, found.graph_kernels) == (1, 421)
