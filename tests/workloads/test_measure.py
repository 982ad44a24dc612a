"""Warm-up, section, clocks and the record of a loop that measures itself."""

import json
import math
from itertools import pairwise

import pytest
import torch
from msgspec import to_builtins
from torch import nn

from stepscope.record.errors import UsageError
from stepscope.record.problems import is_out_of_memory
from stepscope.workloads.arguments import parse_arguments
from stepscope.workloads.measure import clock, meter
from stepscope.workloads.measure.arithmetic import fastest_arithmetic
from stepscope.workloads.measure.clock import CudaClock, HostClock
from stepscope.workloads.measure.meter import Limits, Meter, WarmupRule, has_settled
from stepscope.workloads.measure.program import peak_memory, run_program
from stepscope.workloads.measure.record import InferMeasured, TrainMeasured
from stepscope.workloads.measure.scores import Losses

CPU = torch.device("cpu")


class Time:
    """A clock of the host that stands still unless it is told."""

    def __init__(self, monkeypatch):
        self.now = 100.0
        for module in (meter, clock):
            monkeypatch.setattr(module, "perf_counter", lambda: self.now)
        monkeypatch.setattr(meter, "monotonic_ns", lambda: round(self.now * 1e9))


@pytest.fixture
def time(monkeypatch):
    return Time(monkeypatch)


def run(meter, time, durations):
    """A loop whose calls take these seconds, over and over at the end; how many it made."""
    meter.begin()
    made = 0
    while meter.going:
        time.now += durations[min(made, len(durations) - 1)]
        made += 1
        meter.call(8)
    meter.end()
    return made


def test_calls_that_become_faster_are_not_alike_until_they_no_longer_do():
    assert not has_settled([1.0] * 10 + [0.5] * 5)
    assert has_settled([0.5] * 10 + [0.52] * 5)
    assert not has_settled([0.5] * 10 + [0.7] * 5)
    assert has_settled([0.5, 0.9, 0.4, 0.6, 0.5, 0.7, 0.4, 0.5, 0.6, 0.5] + [0.58] * 5)


def test_a_warm_up_takes_its_time_in_calls_and_in_seconds():
    rule = WarmupRule()
    assert rule.verdict([9.0, *[0.001] * 14], 15, 9.1) is None  # too few so short calls
    assert rule.verdict([9.0, *[0.001] * 100], 101, 9.2) is None  # 0.3 s after the first call
    assert rule.verdict([9.0, *[0.02] * 15], 16, 9.4) is True
    assert rule.verdict([2.0] * 4, 4, 8.0) is None
    assert rule.verdict([2.0] * 5, 5, 10.0) is True  # long calls: few must do


def test_a_warm_up_ends_in_time_and_says_whether_it_settled():
    falling = [0.8**n for n in range(50)]
    assert WarmupRule(most_calls=8).verdict(falling[:8], 8, 1.0) is False
    assert WarmupRule(most_calls=8).verdict([0.01] * 8, 8, 0.08) is True
    assert WarmupRule(most_s=120).verdict(falling, 50, 121.0) is False


def filled(meter):
    """What a meter writes down."""
    measured = InferMeasured()
    meter.fill(measured)
    return to_builtins(measured)


def test_the_section_begins_after_the_warm_up_and_lasts_as_long_as_asked(time):
    meter = Meter(HostClock(), Limits(seconds=2.0), WarmupRule())
    made = run(meter, time, [5.0, 0.1])
    document = filled(meter)
    assert document["warmup"]["settled"] is True
    assert document["warmup"]["first_call_s"] == pytest.approx(5.0)
    assert document["first_calls_extra_s"] == pytest.approx(4.9)
    assert document["calls"] == made - document["warmup"]["calls"]
    assert document["elapsed_s"] == pytest.approx(2.0, abs=0.11)
    assert document["samples"] == 8 * document["calls"]
    assert document["series_ms"] == pytest.approx([100.0] * document["calls"])
    section_ns = document["ended_ns"] - document["started_ns"]
    assert section_ns == pytest.approx(1e9 * document["elapsed_s"])


def test_a_section_has_ten_calls_however_long_they_are(time):
    meter = Meter(HostClock(), Limits(seconds=2.0), WarmupRule())
    run(meter, time, [30.0])
    assert meter.calls == 10


def test_steps_of_training_are_made_exactly_with_the_warm_up_among_them(time):
    meter = Meter(HostClock(), Limits(calls=20), WarmupRule())
    assert run(meter, time, [0.001]) == 20
    assert (meter.warm_calls, meter.calls) == (8, 12)


def test_calls_of_inference_are_all_in_the_section(time):
    meter = Meter(HostClock(), Limits(calls=20, within=False), WarmupRule())
    run(meter, time, [0.1])
    assert meter.calls == 20
    assert meter.warm_calls >= 5


def test_one_step_is_measured_without_a_warm_up(time):
    meter = Meter(HostClock(), Limits(calls=1), WarmupRule())
    assert run(meter, time, [0.1]) == 1
    assert filled(meter)["warmup"] == {
        "calls": 0,
        "seconds": 0.0,
        "settled": False,
        "first_call_s": None,
    }
    assert meter.calls == 1


def test_what_happens_in_a_pause_is_left_out(time):
    meter = Meter(HostClock(), Limits(calls=4), None)
    meter.begin()
    for _ in range(2):
        time.now += 0.5
        meter.call(1)
    with meter.paused():
        time.now += 1000
    for _ in range(2):
        time.now += 0.5
        meter.call(1)
    meter.end()
    assert meter.section_s == pytest.approx(2.0)
    assert meter.series_s == pytest.approx([0.5] * 4)
    assert meter.pauses == 1
    assert not meter.going


def test_a_pause_that_ends_the_loop_is_no_part_of_the_section(time):
    meter = Meter(HostClock(), Limits(calls=4), None)
    meter.begin()
    time.now += 0.5
    meter.call(1)
    with meter.paused():
        time.now += 1000
        meter.going = False
    meter.end()
    assert (meter.section_s, meter.pauses) == (0.5, 0)
    assert meter.ended_ns - meter.started_ns == 5e8


class Device:
    """A device that does its work one after the other, behind the host."""

    def __init__(self, time):
        self.time = time
        self.busy_until = 0.0
        self.waits = 0

    def work(self, seconds):
        self.busy_until = max(self.busy_until, self.time.now) + seconds


class Event:
    """Stands for torch.cuda.Event on that device."""

    device = None

    def __init__(self, enable_timing=False):
        self.at = None

    def record(self):
        self.at = max(self.device.busy_until, self.device.time.now)

    def synchronize(self):
        self.device.waits += 1
        self.device.time.now = max(self.device.time.now, self.at)

    def elapsed_time(self, other):
        assert max(self.at, other.at) <= self.device.time.now, "not over yet"
        return 1e3 * (other.at - self.at)


@pytest.fixture
def device(time, monkeypatch):
    monkeypatch.setattr(torch.cuda, "Event", Event)
    Event.device = Device(time)
    return Event.device


def run_on_device(meter, device, device_s, host_s):
    meter.begin()
    waits = None
    while meter.going:
        device.work(device_s)
        device.time.now += host_s
        meter.call(8)
        if meter.calls and waits is None:
            waits = device.waits
    waits = device.waits - (waits or 0)
    meter.end()
    return waits


def test_a_host_ahead_of_its_device_is_not_held_up_in_the_section(device):
    meter = Meter(CudaClock(), Limits(seconds=2.0), WarmupRule())
    waits = run_on_device(meter, device, device_s=0.01, host_s=0.001)
    assert meter.settled
    assert waits <= 1
    assert meter.section_s == pytest.approx(2.0, rel=0.06)
    assert meter.series_s == pytest.approx([0.01] * meter.calls, rel=0.2)
    assert sum(meter.series_s) == pytest.approx(meter.section_s, rel=0.01)


def test_a_device_that_waits_for_its_host_is_timed_as_long_as_asked(device):
    meter = Meter(CudaClock(), Limits(seconds=2.0), WarmupRule())
    run_on_device(meter, device, device_s=0.001, host_s=0.01)
    assert meter.section_s == pytest.approx(2.0, rel=0.06)


def test_a_section_planned_too_short_goes_on(device, monkeypatch):
    meter = Meter(CudaClock(), Limits(seconds=2.0), WarmupRule())
    monkeypatch.setattr(Limits, "planned", lambda *_: 20 if meter.calls < 20 else 200)
    run_on_device(meter, device, device_s=0.01, host_s=0.001)
    assert meter.calls == 200


def test_losses_are_thinned_out_to_200_points_and_the_last_ones_kept():
    losses = Losses()
    for step in range(1, 1001):
        losses.add(torch.tensor(float(step)))
    curve = losses.curve()
    assert 100 < len(curve) <= 200
    assert curve[0] == (1, 1.0)
    gaps = {after[0] - before[0] for before, after in pairwise(curve)}
    assert len(gaps) == 1
    assert all(step == value for step, value in curve)
    assert losses.lately() == pytest.approx(sum(range(981, 1001)) / 20)


def test_no_losses_are_none():
    assert Losses().lately() is None
    assert Losses().curve() == []


def test_a_record_is_valid_json_whatever_was_measured(tmp_path):
    def body(asked, measured, device):
        measured.final_loss, measured.losses, measured.samples = math.nan, [(1, math.inf)], 3

    path = tmp_path / "m.json"
    words = ["--model", "mlp", "--device", "cpu", "--measure", str(path)]
    assert run_program("train", "", body, words) == 0
    document = json.loads(path.read_text(), parse_constant=pytest.fail)
    assert document["schema"] == "stepscope.measured/1"
    assert document["mode"] == "train"
    assert document["final_loss"] is None
    assert document["losses"] == [[1, None]]
    assert document["error"] is None
    assert list(tmp_path.iterdir()) == [path]


def test_a_record_takes_no_facts_it_does_not_have():
    with pytest.raises(AttributeError, match="tokens_per_s"):
        TrainMeasured().tokens_per_s = 1.0


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried …"), True),
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("size"), False),
    ],
)
def test_running_out_of_memory_is_told_from_other_errors(error, expected):
    assert is_out_of_memory(type(error).__name__, str(error), limited=True) is expected


def test_the_peak_of_the_host_covers_what_was_held():
    before, _ = peak_memory(CPU)
    held = torch.ones(1 << 24)
    after, reserved = peak_memory(CPU)
    assert after >= max(before, held.nbytes)
    assert reserved is None


class Casting(nn.Linear):
    """Called under autocast, as a fix may have it."""

    def __call__(self, *args):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return super().__call__(*args)


def test_arithmetic_is_that_of_the_call_whoever_set_it():
    plain, casting = nn.Linear(4, 4), Casting(4, 4)
    inputs = torch.zeros(2, 4)
    assert fastest_arithmetic(plain, CPU, inputs) == "fp32"
    assert fastest_arithmetic(casting, CPU, inputs) == "bf16"
    assert fastest_arithmetic(nn.Linear(4, 4).half(), CPU, inputs.half()) == "fp16"
    assert not casting._forward_pre_hooks


def test_arithmetic_is_known_although_the_model_fails():
    assert fastest_arithmetic(Casting(4, 4), CPU) == "bf16"


@pytest.fixture
def matmul():
    switches = torch.backends.cuda.matmul
    before = switches.allow_tf32
    yield switches
    switches.allow_tf32 = before


def test_tf32_counts_where_the_model_has_layers_that_may_use_it(matmul):
    cuda = torch.device("cuda", 0)
    assert torch.backends.cudnn.allow_tf32  # as torch comes
    matmul.allow_tf32 = False
    assert fastest_arithmetic(nn.Linear(4, 4), cuda) == "fp32"
    assert fastest_arithmetic(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Linear(4, 4)), cuda) == "tf32"
    matmul.allow_tf32 = True
    assert fastest_arithmetic(nn.Linear(4, 4), cuda) == "tf32"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--batch 4", "--model"),
        ("--model mlp --batch 0", "--batch: '0' is not an integer of 1 or more"),
        ("--model mlp --seconds inf", "--seconds"),
        ("--model mlp --seconds nan", "--seconds"),
        ("--model mlp --data pictures", "images:FOLDER"),
        ("--model mlp --measure nowhere/f.json", "no folder nowhere"),
        ("--model mlp --prompt 3", "--prompt"),
    ],
)
def test_bad_arguments_are_told_in_one_line(arguments, words):
    with pytest.raises(UsageError) as told:
        parse_arguments("train", "", arguments.split())
    assert words in str(told.value)
    assert "\n" not in str(told.value)


def test_training_reads_by_a_loader_unless_it_is_measured(tmp_path):
    measured = ["--measure", str(tmp_path / "m.json")]
    assert parse_arguments("train", "", ["--model", "mlp"]).data == "synthetic"
    assert parse_arguments("train", "", ["--model", "mlp", *measured]).data == "resident"
    assert parse_arguments(
        "train", "", ["--model", "mlp", "--data", "synthetic", *measured]
    ).data == ("synthetic")
    assert parse_arguments("infer", "", ["--model", "mlp"]).data == "resident"
