"""The breakdown equals a sweep over the plain events, to the nanosecond."""

import re
from typing import Any

import pytest
from handmade import Handmade
from plain import DEVICE, TRACES, load, quicker
from recordings import recorded

from stepscope.analyze.timeline.steps import Breakdown, break_down, find_steps

REAL = (
    "v100_train_2ranks_rank1",
    "v100_ns_timestamps.pt.trace",
    "a100_nccl_rank0",
    "resnet18_b32_h200",
    "resnet50_b64_h200",
    "gpt_b4x1024_bf16_h200",
    "mi300_resnet_checkpointing_stacks",
)


def plain_events(document: dict[str, Any]) -> list[tuple[int, int, str]]:
    """(start, end, class) of all device work, straight from the JSON."""
    found = []
    for event in document["traceEvents"]:
        if event.get("ph") == "X" and event.get("cat") in DEVICE:
            start = round(event["ts"] * 1000)
            what = "copy"
            if event["cat"] == "kernel":
                talks = re.search("nccl", event["name"], re.IGNORECASE)
                what = "communication" if talks else "compute"
            found.append((start, start + round(event["dur"] * 1000), what))
    return found


def sweep(events: list[tuple[int, int, str]], start: int, end: int) -> Breakdown:
    """Walk from change to change, counting what runs."""
    changes = []
    for begin, finish, what in events:
        begin, finish = max(begin, start), min(finish, end)
        if begin < finish:
            changes += [(begin, 1, what), (finish, -1, what)]
    running = dict.fromkeys(("compute", "communication", "copy"), 0)
    sums = dict.fromkeys(Breakdown.__struct_fields__, 0)
    now = start
    for time, change, what in [*sorted(changes), (end, 0, "compute")]:
        for one in running:
            sums[one] += (time - now) * (running[one] > 0)
        if not running["compute"]:
            exposed = "exposed_communication" if running["communication"] else "exposed_copy"
            sums[exposed if any(running.values()) else "idle"] += time - now
        running[what] += change
        now = time
    return Breakdown(**sums | {"wall": end - start})


@pytest.mark.parametrize("trace", quicker(REAL))
def test_every_step_equals_a_sweep_over_the_json(trace):
    timeline = recorded(trace)
    document = load(TRACES / f"{trace}.json.gz")
    origin = timeline.origin_ns - int(document.get("baseTimeNanoseconds", 0))
    events = [(begin - origin, end - origin, what) for begin, end, what in plain_events(document)]
    steps = find_steps(timeline)
    (found,) = break_down(timeline, steps)
    for step, row in zip(steps.steps, found.steps, strict=True):
        assert row == sweep(events, step.start_ns, step.end_ns)
    assert found.total == sweep(events, steps.steps[0].start_ns, steps.steps[-1].end_ns)
    assert found.whole == sweep(events, *timeline.span)
    assert found.total.compute > 0


@pytest.mark.parametrize("trace", REAL)
def test_parts_add_up_to_the_wall_time(trace):
    timeline = recorded(trace)
    (found,) = break_down(timeline, find_steps(timeline))
    for row in [*found.steps, found.total, found.whole]:
        parts = row.compute + row.exposed_communication + row.exposed_copy + row.idle
        assert parts == row.wall
    for field in Breakdown.__struct_fields__:
        one_by_one = sum(getattr(row, field) for row in found.steps)
        assert one_by_one == getattr(found.total, field)


def test_what_overlaps_is_counted_once_and_exposed_only_where_nothing_computes():
    made = Handmade()
    made.work(0, 10)
    made.work(5, 20, name="ncclDevKernel_AllReduce", stream="8")
    made.work(15, 30, name="Memcpy HtoD (Pinned -> Device)", stream="9")
    made.work(28, 32, name="Memset (Device)")
    made.work(40, 40)
    (found,) = break_down(made.timeline((0, 50)), find_steps(made.timeline((0, 50))))
    assert found.total == Breakdown(
        compute=10,
        copy=17,
        communication=15,
        exposed_communication=10,
        exposed_copy=12,
        idle=18,
        wall=50,
    )


def test_each_device_has_its_own_breakdown():
    made = Handmade()
    made.work(0, 10, device=3)
    made.work(5, 20, device=1)
    timeline = made.timeline()
    found = break_down(timeline, find_steps(timeline))
    assert [(row.device, row.total.compute, row.total.idle) for row in found] == [
        (1, 15, 5),
        (3, 10, 10),
    ]


def test_work_that_crosses_a_steps_end_counts_on_both_sides():
    made = Handmade()
    made.annotation("ProfilerStep#0", 0, 100)
    made.annotation("ProfilerStep#1", 100, 200)
    made.work(90, 130)
    timeline = made.timeline()
    (found,) = break_down(timeline, find_steps(timeline))
    assert [row.compute for row in found.steps] == [10, 30]


@pytest.mark.parametrize(
    "name",
    [
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclKernel_AllReduce_RING_LL_Sum_float",
        "void vllm::cross_device_reduce_1stage<__half, 2>",
        "one_shot_all_reduce_kernel",
        "nvshmem_quiet",
    ],
)
def test_kernels_that_communicate_are_known_by_name(name):
    made = Handmade()
    made.work(0, 10, name=name)
    timeline = made.timeline()
    assert break_down(timeline, find_steps(timeline))[0].total.communication == 10


def test_a_kernel_of_a_collective_communicates_whatever_its_name():
    made = Handmade()
    made.work(0, 10, name="triton_fused", collective=0)
    timeline = made.timeline()
    assert break_down(timeline, find_steps(timeline))[0].total.communication == 10


def test_a_recording_without_device_work_has_no_breakdown():
    made = Handmade()
    made.operator("aten::mm", 0, 10)
    timeline = made.timeline()
    assert break_down(timeline, find_steps(timeline)) == []
