"""The model of real recordings: only durations and dependencies decide."""

from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs
from recordings import recorded

from stepscope.analyze.replay import changes
from stepscope.analyze.replay.calibration import Calibration
from stepscope.analyze.replay.host_chain import host_chain, label_stretches
from stepscope.analyze.replay.model import build_model, model_of_trace
from stepscope.analyze.replay.tasks import StretchKind, WaitKind, select_host
from stepscope.analyze.timeline.steps import find_steps
from stepscope.record.row_log import STEP_PHASES
from stepscope.record.timeline import DeviceEvents, HostEvents, MemoryEvents, make_events


def recorded_ms(steps):
    return (steps[-1].end_ns - steps[0].start_ns) / len(steps) / 1e6


def model_of(name):
    timeline = recorded(name)
    steps = find_steps(timeline).steps
    return build_model(timeline, steps), steps


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("resnet18_b32_h200", "host"),
        ("gpt_b4x1024_bf16_h200", "host"),
        ("resnet50_b64_h200", "turns"),
        ("a100_nccl_rank0", "host"),
    ],
)
def test_a_steady_recording_replays_to_its_own_step(name, limit):
    model, steps = model_of(name)
    assert model.step_ms == pytest.approx(recorded_ms(steps), rel=0.015)
    assert model.unchanged.limited_by == limit
    assert not model.calibrated
    assert model.error > 0.2


def test_the_steady_state_shows_where_the_recording_begins_with_a_host_running_ahead():
    model, steps = model_of("v100_ns_timestamps.pt.trace")
    lengths = [(step.end_ns - step.start_ns) / 1e6 for step in steps]
    assert lengths[0] < 40
    assert model.step_ms == pytest.approx(np.median(lengths[2:]), rel=0.01)
    assert model.unchanged.limited_by == "device"
    assert model.unchanged.host_ms < 0.5 * model.step_ms


def test_with_its_waits_deleted_the_replay_misses_the_recorded_step():
    model, steps = model_of("resnet50_b64_h200")
    assert model.replay(changes.drop_waits()).step_ms < 0.93 * recorded_ms(steps)


def test_without_the_gaps_between_operators_the_replay_misses_by_far():
    model, steps = model_of("gpt_b4x1024_bf16_h200")
    gaps = changes.remove_host(select_host(StretchKind.GAP))
    assert model.replay(gaps).step_ms < 0.9 * recorded_ms(steps)


@pytest.mark.parametrize("seed", [1, 2])
def test_when_work_was_recorded_to_start_does_not_matter(seed):
    """Starts moved, order and durations kept: not a nanosecond's difference."""
    timeline = recorded("gpt_b4x1024_bf16_h200")
    steps = find_steps(timeline).steps
    jitter = np.random.default_rng(seed).integers(0, 40_000, len(timeline.device)).cumsum()
    moved = replace(timeline.device, start=timeline.device.start + jitter)
    other = build_model(replace(timeline, device=moved), steps)
    model = build_model(timeline, steps)
    for change in ((), (changes.drop_waits(),), (changes.drop_launch_cost(),)):
        assert other.replay(*change) == model.replay(*change)


def test_durations_do_matter():
    timeline = recorded("v100_ns_timestamps.pt.trace")
    steps = find_steps(timeline).steps
    device = timeline.device
    longer = replace(device, start=device.start * 11 // 10, duration=device.duration * 11 // 10)
    grown = (
        build_model(replace(timeline, device=longer), steps).step_ms
        / build_model(timeline, steps).step_ms
    )
    assert grown == pytest.approx(1.1, abs=0.01)


def test_work_launched_before_the_window_is_left_out():
    timeline = recorded("resnet50_b64_h200")
    steps = find_steps(timeline).steps
    part = build_model(timeline, steps[2:4])
    launched = timeline.host.start[timeline.device.launch[part.tasks.work.event]]
    assert launched.min() >= steps[2].start_ns
    assert launched.max() < steps[3].end_ns
    assert len(part.tasks.work) == pytest.approx(len(timeline.device) / 3, rel=0.01)


def test_waits_are_told_apart():
    model, _ = model_of("resnet50_b64_h200")
    kinds = np.bincount(model.tasks.waits.what, minlength=len(WaitKind))
    assert kinds[WaitKind.TO_DEVICE] == 18  # three a step
    assert kinds[WaitKind.ITEM] >= 5
    assert kinds[WaitKind.OTHER] == 0
    assert (model.tasks.waits.stream == -1).all()  # the recording carries no stream of a wait


def test_one_graph_launch_stands_for_many_kernels():
    timeline = recorded("vllm_decode_cuda_graphs")
    work = model_of_trace(timeline).tasks.work
    in_graphs = work.at[work.graph]
    assert len(in_graphs) > 100
    assert np.bincount(in_graphs).max() > 100


def test_kernels_that_overlapped_on_their_stream_still_may():
    model, _ = model_of("resnet50_b64_h200")
    assert (model.tasks.work.overlaps > 0).sum() > 50
    none = replace(model.tasks.work, overlaps=np.zeros(len(model.tasks.work)))
    slower = replace(model, tasks=replace(model.tasks, work=none))
    free = (changes.drop_launch_cost(), changes.drop_waits())
    assert slower.replay(*free).step_ms > model.replay(*free).step_ms


def test_every_phase_of_training_has_host_time_and_work():
    model, _ = model_of("resnet50_b64_h200")
    for phase in ("forward", "backward", "optimizer", "h2d"):
        number = STEP_PHASES.index(phase)
        assert (model.tasks.host.duration[model.tasks.host.phase == number]).sum() > 0
        assert (model.tasks.work.phase == number).any()


def test_main_and_autograd_threads_are_one_chain():
    model, steps = model_of("resnet18_b32_h200")
    assert model.unchanged.host_ms == pytest.approx(recorded_ms(steps), rel=0.01)
    backward = model.tasks.host.phase == STEP_PHASES.index("backward")
    assert backward.mean() > 0.2


def slowed(timeline, steps, by):
    """The recording as a slower recorder would have it: host time stretched phase by phase."""
    chain = host_chain(timeline, steps[0].start_ns, steps[-1].end_ns)
    step = np.searchsorted([one.start_ns for one in steps], chain.start, "right") - 1
    phases = label_stretches(timeline, chain, step, None).phase
    stretch = np.array([by[phase] for phase in STEP_PHASES])[phases]
    old = np.append(chain.start, chain.end[-1])
    new = np.append(0, np.cumsum(chain.duration * stretch)) + old[0]

    def warp(times):
        inside = np.interp(times, old, new).astype(np.int64)
        return np.where(times > old[-1], times + int(new[-1] - old[-1]), inside)

    host, device = timeline.host, timeline.device
    begun = warp(host.start)
    return (
        replace(
            timeline,
            host=replace(host, start=begun, duration=warp(host.end) - begun),
            device=replace(device, start=warp(device.start)),
        ),
        [
            structs.replace(s, start_ns=int(warp(s.start_ns)), end_ns=int(warp(s.end_ns)))
            for s in steps
        ],
    )


SLOWER = dict(zip(STEP_PHASES, (1.0, 1.2, 1.8, 1.3, 2.2, 1.4), strict=True))


def clocks_say(factors, step_ms):
    return Calibration(
        factors=factors, uncertainty=dict.fromkeys(factors, 0.01),
        bare_ms=dict.fromkeys(factors, 0.0), window_ms={}, step_ms=step_ms, usual_ms=step_ms,
        steps=100,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["resnet50_b64_h200", "resnet18_b32_h200"])
def test_the_clocks_factors_give_the_step_before_recording_slowed_it(name):
    """Not so without them, with one factor for all, or with a dependency taken away."""
    timeline = recorded(name)
    steps = find_steps(timeline).steps[1:-1]
    truth = build_model(timeline, steps).step_ms
    heavy, marks = slowed(timeline, steps, SLOWER)
    calibrated = build_model(heavy, marks, clocks_say({p: 1 / f for p, f in SLOWER.items()}, truth))
    assert calibrated.calibrated
    assert calibrated.step_ms == pytest.approx(truth, rel=0.03)
    assert build_model(heavy, marks).step_ms > 1.2 * truth
    one = build_model(heavy, marks, clocks_say(dict.fromkeys(STEP_PHASES, 1 / 1.8), truth)).step_ms
    assert abs(one / truth - 1) > 0.03
    if name == "resnet50_b64_h200":
        assert calibrated.replay(changes.drop_waits()).step_ms < 0.96 * truth


def test_without_host_events_there_is_no_model():
    timeline = recorded("resnet18_b32_h200")
    empty = replace(
        timeline,
        host=make_events(HostEvents, start=[]),
        device=make_events(DeviceEvents, start=[]),
        memory=make_events(MemoryEvents, time=[]),
    )
    assert build_model(empty, find_steps(timeline).steps) is None
