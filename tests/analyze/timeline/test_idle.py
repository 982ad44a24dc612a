"""Every idle nanosecond has a cause: by hand, where the answer is known, and on real recordings."""

import pytest
from handmade import Handmade
from hypothesis import given
from hypothesis import strategies as st
from recordings import recorded

from stepscope.analyze.timeline.idle import explain_idle
from stepscope.analyze.timeline.steps import break_down, find_steps

US = 1000
REAL = (
    "resnet18_b32_h200",
    "resnet50_b64_h200",
    "gpt_b4x1024_bf16_h200",
    "v100_train_2ranks_rank1",
    "v100_ns_timestamps.pt.trace",
    "a100_nccl_rank0",
    "mi300_resnet_checkpointing_stacks",
    "vllm_decode_cuda_graphs",
    "cuda_event_sync_multi_stream",
    "large_integers_rank70.pt.trace",
)


def idle_of(made, span=None):
    timeline = made.timeline(span)
    (found,) = explain_idle(timeline, find_steps(timeline))
    assert sum(cause.total_ns for cause in found.causes.values()) == found.idle_ns
    return found.causes


def times(causes):
    return {name: cause.total_ns for name, cause in causes.items() if cause.total_ns}


def two_kernels(launch):
    """One kernel until 100 µs, another from 1000 µs launched then."""
    made = Handmade()
    made.work(10 * US, 100 * US, launch=(10 * US, 15 * US))
    made.work(1000 * US, 1100 * US, launch=launch)
    return made


def test_a_late_launch_and_its_latency_are_the_hosts():
    made = two_kernels(launch=(980 * US, 985 * US))
    made.operator("aten::mm", 200 * US, 990 * US)
    causes = idle_of(made)
    assert times(causes) == {"host": 900 * US}
    assert causes["host"].gaps == 1
    assert causes["host"].places[0].where == "aten::mm"
    (gap,) = causes["host"].largest
    assert (gap.start_ns, gap.duration_ns, gap.device) == (100 * US, 900 * US, 0)


def test_a_kernel_that_starts_long_after_its_launch_waits_for_something_unknown():
    causes = idle_of(two_kernels(launch=(500 * US, 510 * US)))
    assert times(causes) == {"host": 430 * US, "unknown": 470 * US}


def test_a_short_gap_before_queued_work_is_between_kernels_and_a_long_one_unknown():
    made = Handmade()
    made.work(10 * US, 100 * US, launch=(10 * US, 11 * US))
    made.work(102 * US, 110 * US, launch=(20 * US, 21 * US))
    made.work(200 * US, 210 * US, launch=(30 * US, 31 * US))
    assert times(idle_of(made)) == {"between_kernels": 2 * US, "unknown": 90 * US}


def test_a_queued_collective_that_does_not_begin_waits_for_other_ranks():
    made = Handmade()
    made.work(10 * US, 100 * US, launch=(10 * US, 11 * US))
    made.work(200 * US, 210 * US, launch=(20 * US, 21 * US), name="ncclDevKernel_AllReduce")
    assert times(idle_of(made)) == {"other_ranks": 100 * US}


def test_a_collective_on_the_host_waits_for_other_ranks():
    made = two_kernels(launch=(1000 * US, 1000 * US))
    made.annotation("gloo:all_reduce", 300 * US, 800 * US)
    assert times(idle_of(made)) == {"host": 400 * US, "other_ranks": 500 * US}


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("annotation", "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"),
        ("annotation", "data_wait"),
        ("python", "torch/utils/data/dataloader.py(701): __next__"),
        ("python", "multiprocessing/queues.py(98): get"),
        ("python", "queue.py(154): get"),
    ],
)
def test_time_in_a_loader_is_the_loaders(kind, name):
    made = two_kernels(launch=(995 * US, 1000 * US))
    getattr(made, kind)(name, 50 * US, 700 * US)
    made.python("train.py(3): main", 0, 1100 * US)
    causes = idle_of(made)
    assert times(causes) == {"loader": 600 * US, "host": 310 * US}
    assert causes["loader"].places[0].where == "train.py(3): main"


def test_the_main_threads_loader_counts_while_the_launching_thread_does_nothing():
    made = Handmade()
    made.annotation("ProfilerStep#1", 0, 1100 * US)
    made.annotation("enumerate(DataLoader)#X.__next__", 100 * US, 500 * US)
    made.operator("backward", 400 * US, 1000 * US, thread="autograd")
    call = made.host("cudaLaunchKernel", 990 * US, 1000 * US, thread="autograd")
    made.work(0, 100 * US)
    made.work(1000 * US, 1100 * US, launch=call)
    assert times(idle_of(made)) == {"loader": 300 * US, "host": 600 * US}


def synchronised(blocked_from, name="cudaDeviceSynchronize"):
    """The host blocks until 120 µs, the device ran dry at 100 µs; the next launch is at 1000 µs."""
    made = two_kernels(launch=(1000 * US, 1000 * US))
    made.host(name, blocked_from, 120 * US)
    return made


@pytest.mark.parametrize(
    "name", ["cudaDeviceSynchronize", "cudaStreamSynchronize", "hipEventSynchronize", "cudaMemcpy"]
)
def test_a_synchronisation_costs_its_return_and_as_much_again_as_it_held_the_host_up(name):
    causes = idle_of(synchronised(70 * US, name))
    assert times(causes) == {"host": 850 * US, "synchronisation": 50 * US}
    assert causes["synchronisation"].largest[0].where == name


def test_a_host_far_ahead_would_have_stayed_ahead_without_the_synchronisation():
    made = Handmade()
    made.work(10 * US, 2000 * US, launch=(10 * US, 15 * US))
    made.host("cudaStreamSynchronize", 20 * US, 2005 * US)
    made.work(2500 * US, 2600 * US, launch=(2490 * US, 2500 * US))
    made.work(2700 * US, 2800 * US, launch=(2690 * US, 2700 * US))
    assert times(idle_of(made)) == {"synchronisation": 600 * US}


def test_what_is_left_of_a_long_wait_outlasts_a_short_one():
    made = Handmade()
    made.work(0, 1000 * US, launch=(0, 1 * US))
    made.host("cudaStreamSynchronize", 100 * US, 1000 * US)
    made.work(1200 * US, 1210 * US, launch=(1190 * US, 1200 * US))
    made.host("cudaEventSynchronize", 1205 * US, 1210 * US)
    made.work(2010 * US, 2020 * US, launch=(2000 * US, 2010 * US))
    assert times(idle_of(made)) == {"host": 100 * US, "synchronisation": 900 * US}


def test_a_wait_that_finds_the_device_idle_costs_only_itself():
    made = two_kernels(launch=(1000 * US, 1000 * US))
    made.host("cudaDeviceSynchronize", 300 * US, 310 * US)
    assert times(idle_of(made)) == {"host": 890 * US, "synchronisation": 10 * US}


def test_an_item_is_a_synchronisation_and_a_blocking_upload_a_copy():
    made = Handmade()
    made.annotation("ProfilerStep#1", 0, 1000 * US)
    made.operator("aten::item", 100 * US, 310 * US)
    made.operator("aten::_local_scalar_dense", 101 * US, 309 * US)
    down = made.host("cudaMemcpyAsync", 102 * US, 110 * US)
    made.host("cudaStreamSynchronize", 112 * US, 308 * US)
    made.operator("aten::to", 400 * US, 690 * US)
    up = made.host("cudaMemcpyAsync", 410 * US, 510 * US)
    made.host("cudaStreamSynchronize", 512 * US, 680 * US)
    made.work(0, 300 * US)
    made.work(300 * US, 302 * US, launch=down, name="Memcpy DtoH (Device -> Pinned)")
    made.work(500 * US, 600 * US, launch=up, name="Memcpy HtoD (Pageable -> Device)")
    made.work(1000 * US, 1100 * US, launch=(1000 * US, 1000 * US))
    causes = idle_of(made)
    # Dry from 302: the item returns at 308 and had held the host up for 190 µs, of which the 102
    # until the upload is called use some. The upload stages until 500, its wait ends at 680, and
    # the item's remaining 88 come before the upload's own 88 (512 to 600), which are not more.
    assert times(causes) == {
        "synchronisation": (6 + 102 + 88) * US,
        "copy": (90 + 80) * US,
        "host": (400 - 80 - 88) * US,
    }
    assert causes["copy"].places[0].where == "aten::to"
    assert causes["synchronisation"].places[0].operator == "aten::_local_scalar_dense"


def test_idle_time_is_told_step_by_step():
    made = two_kernels(launch=(1000 * US, 1000 * US))
    made.annotation("ProfilerStep#1", 0, 400 * US)
    made.annotation("ProfilerStep#2", 400 * US, 1100 * US)
    host = idle_of(made)["host"]
    assert host.steps_ns == [310 * US, 600 * US]
    assert host.largest[0].step == "ProfilerStep#1"


def test_idle_time_at_the_end_is_the_hosts_that_launched_no_more():
    made = Handmade()
    made.work(0, 10 * US, launch=(0, 1 * US))
    made.operator("aten::cpu_work", 5 * US, 100 * US)
    assert times(idle_of(made)) == {"host": 90 * US}


def test_without_any_host_event_nothing_is_known():
    made = Handmade()
    made.work(0, 10 * US)
    made.work(100 * US, 110 * US)
    assert times(idle_of(made, span=(0, 200 * US))) == {"unknown": 180 * US}


def test_work_that_seems_to_start_before_its_launch_leaves_nothing_negative():
    causes = idle_of(two_kernels(launch=(1050 * US, 1060 * US)))
    assert times(causes) == {"host": 900 * US}


def test_the_users_own_frame_is_preferred_to_the_librarys():
    made = two_kernels(launch=(1000 * US, 1000 * US))
    made.python("train.py(7): main", 0, 1100 * US)
    made.python("torch/nn/modules/module.py(1783): _call_impl", 50 * US, 1050 * US)
    made.operator("aten::linear", 60 * US, 1040 * US)
    made.operator("aten::addmm", 70 * US, 1030 * US)
    place = idle_of(made)["host"].places[0]
    assert (place.where, place.operator) == ("train.py(7): main", "aten::addmm")


NAMES = (
    "cudaDeviceSynchronize",
    "cudaMemcpyAsync",
    "gloo:all_reduce",
    "enumerate(DataLoader)#X.__next__",
    "queue.py(1): get",
    "aten::mm",
)
HOST = st.tuples(
    st.sampled_from(NAMES),
    st.integers(0, 200),
    st.integers(0, 90),
    st.integers(0, 4),
    st.sampled_from(["main", "autograd"]),
)
WORK = st.tuples(
    st.integers(0, 300),
    st.integers(0, 60),
    st.integers(-1, 5),
    st.sampled_from(["kernel", "ncclKernel", "Memcpy HtoD (Pageable -> Device)"]),
    st.integers(0, 1),
)


@given(st.lists(HOST, min_size=6, max_size=14), st.lists(WORK, min_size=1, max_size=10))
def test_whatever_was_recorded_the_causes_add_up_on_every_device(host, work):
    made = Handmade()
    for name, start, length, kind, thread in host:
        made.host(name, start * US, (start + length) * US, kind, thread)
    for start, length, launch, name, device in work:
        made.work(start * US, (start + length) * US, launch, name, device=device)
    timeline = made.timeline()
    steps = find_steps(timeline)
    for found, broken in zip(
        explain_idle(timeline, steps), break_down(timeline, steps), strict=True
    ):
        assert found.idle_ns == broken.total.idle
        assert sum(cause.total_ns for cause in found.causes.values()) == found.idle_ns
        for cause in found.causes.values():
            assert sum(cause.steps_ns) == cause.total_ns


@pytest.mark.parametrize("trace", REAL)
def test_causes_add_up_to_the_idle_time_of_the_breakdown(trace):
    timeline = recorded(trace)
    steps = find_steps(timeline)
    (found,), (broken,) = explain_idle(timeline, steps), break_down(timeline, steps)
    assert found.idle_ns == broken.total.idle
    assert found.idle_ns == sum(cause.total_ns for cause in found.causes.values())
    for index, row in enumerate(broken.steps):
        assert sum(cause.steps_ns[index] for cause in found.causes.values()) == row.idle
    for cause in found.causes.values():
        assert sum(place.total_ns for place in cause.places) <= cause.total_ns
        assert all(gap.duration_ns > 0 for gap in cause.largest)


@pytest.mark.parametrize("trace", REAL[:6])
def test_little_of_the_idle_time_is_unknown(trace):
    timeline = recorded(trace)
    (found,) = explain_idle(timeline, find_steps(timeline))
    assert found.causes["unknown"].total_ns <= 0.1 * found.idle_ns


def test_a_small_resnet_is_bound_by_its_launches():
    timeline = recorded("resnet18_b32_h200")
    (found,) = explain_idle(timeline, find_steps(timeline))
    assert found.causes["host"].total_ns > 0.95 * found.idle_ns
    assert found.causes["host"].places[0].where == "traces.py(22): step"


@pytest.mark.parametrize("trace", REAL[:3])
def test_the_item_that_ends_each_step_is_found(trace):
    timeline = recorded(trace)
    steps = find_steps(timeline)
    (found,) = explain_idle(timeline, steps)
    waits = found.causes["synchronisation"]
    assert {place.operator for place in waits.places} == {"aten::_local_scalar_dense"}
    assert all(ns > 0 for ns in waits.steps_ns[1:])
