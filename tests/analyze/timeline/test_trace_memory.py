"""Memory over time: the peak, its owners and growth, by hand and against a plain replay."""

from dataclasses import replace

import numpy as np
import pytest
from handmade import Handmade
from msgspec import to_builtins
from recordings import recorded

from stepscope.analyze.timeline.memory import memory_use
from stepscope.analyze.timeline.steps import RecordedStep, find_steps
from stepscope.record.timeline import NOTHING, MemoryEvents, make_events

RECORDED = (
    "resnet18_b32_h200",
    "resnet50_b64_h200",
    "gpt_b4x1024_bf16_h200",
    "v100_train_2ranks_rank1",
)
ONE = [RecordedStep("step 1", 0, 100)]


def with_memory(made, *rows, **columns):
    """Rows of time, address, bytes and total allocated; all on device 0 and the first thread."""
    time, address, size, allocated = np.array(rows).T
    columns = {"device": [0] * len(rows), "reserved": [1000] * len(rows)} | columns
    memory = make_events(
        MemoryEvents, time=time, address=address, bytes=size, allocated=allocated,
        thread=[0] * len(rows), **columns,
    )  # fmt: skip
    return replace(made.timeline(span=(0, 100)), memory=memory)


def test_the_peak_is_owned_by_what_was_live_then_and_by_what_was_there_before():
    made = Handmade()
    made.operator("aten::linear", 10, 20)
    made.operator("aten::addmm", 11, 19)
    made.operator("aten::empty", 12, 14)
    made.operator("aten::relu", 30, 40)
    timeline = with_memory(
        made,
        (13, 1, 100, 600),
        (25, 2, -50, 550),
        (31, 3, 30, 580),
        (32, 3, -30, 550),
        (33, 4, 200, 750),
        (50, 1, -100, 650),
    )
    (use,) = memory_use(timeline, ONE)
    assert (use.peak_bytes, use.peak_time_ns, use.peak_step) == (750, 33, "step 1")
    assert [(o.operator, o.bytes, o.count) for o in use.owners] == [
        ("aten::relu", 200, 1),
        ("aten::addmm", 100, 1),
    ]
    assert use.before_bytes == 450
    assert use.fragmented_bytes == 250
    assert use.absolute


def test_an_address_used_again_counts_once():
    timeline = with_memory(
        Handmade(), (1, 7, 10, 10), (2, 7, -10, 0), (3, 7, 40, 40), (4, 8, 5, 45)
    )
    (use,) = memory_use(timeline, ONE)
    assert sum(owner.bytes for owner in use.owners) == use.peak_bytes == 45
    assert use.before_bytes == 0


def test_owners_say_module_line_and_phase_where_python_was_recorded():
    made = Handmade()
    made.python("train.py(3): main", 0, 90)
    made.python("nn.Module: Linear_0", 5, 40)
    made.operator("aten::addmm", 10, 20)
    (use,) = memory_use(with_memory(made, (15, 1, 64, 64)), ONE)
    (owner,) = use.owners
    assert (owner.module, owner.line, owner.phase) == ("Linear_0", "train.py(3): main", "forward")


def test_memory_outside_any_event_has_no_owner_to_name():
    (use,) = memory_use(with_memory(Handmade(), (15, 1, 64, 64)), [RecordedStep("step 1", 50, 60)])
    (owner,) = use.owners
    assert (owner.operator, owner.module, owner.line, owner.phase) == (None, None, None, None)
    assert use.peak_step is None


def test_growth_is_that_after_the_first_step():
    steps = [RecordedStep(f"step {n}", 10 * n, 10 * n + 10) for n in range(4)]
    levels = (500, 520, 540, 560)
    rows = [(10 * n + 5, n, 20, level) for n, level in enumerate(levels)]
    (use,) = memory_use(with_memory(Handmade(), *rows), steps)
    assert use.step_end_bytes == list(levels)
    assert (use.growth_per_step_bytes, use.grows_every_step) == (20, True)
    (once,) = memory_use(with_memory(Handmade(), *rows), steps[:2])
    assert (once.growth_per_step_bytes, once.grows_every_step) == (None, None)


def test_without_totals_levels_count_from_the_lowest():
    rows = [(1, 1, -30, NOTHING), (2, 2, 50, NOTHING), (3, 2, -50, NOTHING)]
    (use,) = memory_use(with_memory(Handmade(), *rows, reserved=[NOTHING] * 3), ONE)
    assert not use.absolute
    assert [p.allocated_bytes for p in use.points] == [0, 50, 0]
    assert use.peak_reserved_bytes is None
    assert use.fragmented_bytes is None


def test_totals_that_are_sometimes_missing_are_filled_in():
    rows = [(1, 1, 10, NOTHING), (2, 2, 20, 130), (3, 2, -20, NOTHING)]
    (use,) = memory_use(with_memory(Handmade(), *rows), ONE)
    assert [p.allocated_bytes for p in use.points] == [110, 130, 110]
    assert use.absolute


def test_host_memory_counts_only_where_no_device_recorded_any():
    rows = [(1, 1, 10, 10), (2, 2, 20, 20)]
    uses = memory_use(with_memory(Handmade(), *rows, device=[NOTHING, 0]), ONE)
    assert [use.device for use in uses] == [0]
    uses = memory_use(with_memory(Handmade(), *rows, device=[NOTHING, NOTHING]), ONE)
    assert [use.device for use in uses] == [None]


def test_memory_that_was_not_recorded_is_none():
    assert memory_use(Handmade().timeline(), ONE) is None
    assert memory_use(recorded("a100_nccl_rank0"), ONE) is None


@pytest.mark.parametrize("name", RECORDED)
def test_real_peaks_agree_with_a_plain_replay(name):
    timeline = recorded(name)
    (use,) = memory_use(timeline, find_steps(timeline).steps)
    memory = timeline.memory
    live, most, at_peak = {}, -1, 0
    rows = zip(memory.device, memory.address, memory.bytes, memory.allocated, strict=True)
    for device, address, size, allocated in rows:
        if device < 0:
            continue
        if size > 0:
            live[address] = int(size)
        else:
            live.pop(address, None)
        if allocated > most:
            most, at_peak = int(allocated), sum(live.values())
    assert use.peak_bytes == most
    assert use.before_bytes == most - at_peak
    assert sum(owner.bytes for owner in use.owners) + use.other_bytes == at_peak
    assert all(owner.operator and owner.phase for owner in use.owners)
    assert to_builtins(use)["device"] == use.device


@pytest.mark.parametrize("name", RECORDED)
def test_few_points_keep_every_low_and_high(name):
    timeline = recorded(name)
    (use,) = memory_use(timeline, find_steps(timeline).steps)
    level = timeline.memory.allocated[timeline.memory.device >= 0]
    shown = [point.allocated_bytes for point in use.points]
    assert len(shown) <= 1000 < use.events
    assert (max(shown), min(shown)) == (level.max(), level.min())
    assert (shown[0], shown[-1]) == (level[0], level[-1])
    times = [point.time_ns for point in use.points]
    assert times == sorted(times)
