"""What the page's timeline is given: every event in its place, or an honest account of the rest."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from handmade import Handmade
from numpy.typing import NDArray
from packed_timelines import unpacked

from stepscope.analyze.timeline.idle import explain_idle
from stepscope.analyze.timeline.steps import find_steps
from stepscope.record.timeline import Geometry, MemoryEvents, Shapes, Timeline, make_events
from stepscope.report.render.html.timeline import Packing, encode_timeline


class Decoded:
    """A payload as the page reads it."""

    def __init__(self, payload: bytes) -> None:
        self.head, self.columns = unpacked(payload)
        self.gap, self.duration = (self.columns[c].astype(float) for c in ("gap", "duration"))
        self.start = np.zeros(len(self.gap))
        for _, first, count in self.head["rows"]:
            own = slice(first, first + count)
            ends = np.cumsum(self.gap[own] + self.duration[own])
            self.start[own] = ends - self.duration[own]

    def lane(self, label: str) -> list[list[tuple[str, float, float]]]:
        """Its rows of (name, start, end)."""
        at = next(n for n, lane in enumerate(self.head["lanes"]) if lane["label"].startswith(label))
        return [
            [
                (self.name(n), self.start[n], self.start[n] + self.duration[n])
                for n in range(first, first + count)
            ]
            for lane, first, count in self.head["rows"]
            if lane == at
        ]

    def name(self, event: int) -> str:
        name: str = self.head["names"][self.columns["name"][event]]
        return name

    def of_kind(self, *kinds: str) -> NDArray[np.int64]:
        """The events of all lanes of these kinds."""
        wanted = [n for n, lane in enumerate(self.head["lanes"]) if lane["kind"] in kinds]
        rows = [np.arange(f, f + c) for lane, f, c in self.head["rows"] if lane in wanted]
        return np.concatenate(rows) if rows else np.zeros(0, np.int64)


def training(steps: int = 3) -> Timeline:
    """Steps of data, forward, backward and optimizer, with a kernel each."""
    made = Handmade()
    for n in range(steps):
        at = n * 100_000
        made.annotation(f"ProfilerStep#{n}", at, at + 90_000)
        made.annotation("enumerate(DataLoader)#_Single.__next__", at + 1_000, at + 20_000)
        made.operator("aten::linear", at + 21_000, at + 30_000)
        call = made.host("cudaLaunchKernel", at + 22_000, at + 24_000)
        made.work(at + 25_000, at + 35_000, call, name="gemm")
        node = "autograd::engine::evaluate_function: AddmmBackward0"
        made.operator(node, at + 40_000, at + 50_000, thread="autograd")
        call = made.host("cudaLaunchKernel", at + 41_000, at + 42_000, thread="autograd")
        made.work(at + 43_000, at + 53_000, call, name="gemm_backward")
        made.annotation("Optimizer.step#SGD.step", at + 60_000, at + 70_000)
        made.work(at + 65_000, at + 66_000, name="Memcpy HtoD", bytes=2048)
    return made.timeline()


def test_every_event_of_the_host_and_of_devices_is_there_with_its_times():
    timeline = training()
    told = Decoded(encode_timeline(timeline))
    shown = told.of_kind("thread")
    recorded = sorted(
        (timeline.names[n], s, d)
        for n, s, d in zip(
            timeline.host.name, timeline.host.start, timeline.host.duration, strict=True
        )
    )
    assert sorted((told.name(n), told.start[n], told.duration[n]) for n in shown) == recorded
    device = told.of_kind("stream", "copy")
    assert sorted(told.start[device]) == sorted(timeline.device.start)
    assert told.head["events"] == len(timeline.host) + len(timeline.device)
    assert told.head["merged"] == 0


def test_events_lie_below_the_ones_around_them_and_none_overlap_in_a_row():
    rng = np.random.default_rng(3)
    made = Handmade()
    for _ in range(400):
        start = int(rng.integers(0, 10_000))
        made.operator(f"op{rng.integers(0, 9)}", start, start + int(rng.integers(0, 800)))
    told = Decoded(encode_timeline(made.timeline()))
    rows = told.lane("main")
    assert sum(map(len, rows)) == 400
    for row in rows:
        assert all(b[1] >= a[2] for a, b in pairwise(row))


def test_an_event_that_outlasts_the_one_around_it_does_not_push_down_what_follows():
    made = Handmade()
    for n in range(2_000):  # each begins just before the one before it has ended
        made.annotation(f"range {n}", n * 100, n * 100 + 105)
    assert len(Decoded(encode_timeline(made.timeline())).lane("main")) == 2


def test_events_that_lie_too_deep_are_counted_and_cost_no_more_than_others():
    made = Handmade()
    for n in range(3_000):  # all of them open at once, none in another
        made.operator("overlapping", n, n + 5_000)
    told = Decoded(encode_timeline(made.timeline()))
    assert len(told.lane("main")) == 96
    assert told.head["untold"] == 3_000 - 96


def test_kernels_lead_to_the_calls_that_launched_them():
    timeline = training()
    told = Decoded(encode_timeline(timeline))
    launched = np.cumsum(told.columns["launched"].astype(int))
    calls = np.cumsum(told.columns["launch"].astype(int))
    pairs = {
        (told.name(w), told.start[w], told.start[c]) for w, c in zip(launched, calls, strict=True)
    }
    expected = {
        (timeline.names[timeline.device.name[n]], s, timeline.host.start[call])
        for n, (s, call) in enumerate(
            zip(timeline.device.start, timeline.device.launch, strict=True)
        )
        if call >= 0
    }
    assert pairs == expected


def test_idle_time_by_cause_adds_up_to_what_the_analysis_says():
    timeline = training()
    told = Decoded(encode_timeline(timeline))
    (idle,) = explain_idle(timeline, find_steps(timeline))
    sums: dict[str, float] = {}
    for name, start, end in told.lane("GPU 0 idle")[0]:
        sums[name] = sums.get(name, 0) + end - start
    expected = {
        f"idle: {cause.replace('_', ' ')}": one.total_ns
        for cause, one in idle.causes.items()
        if one.total_ns
    }
    assert sums == expected
    assert sum(sums.values()) == idle.idle_ns


def test_steps_and_phases_stand_above():
    told = Decoded(encode_timeline(training(steps=2)))
    assert [name for name, *_ in told.lane("steps")[0]] == ["ProfilerStep#0", "ProfilerStep#1"]
    phases = [name for name, *_ in told.lane("phases")[0]]
    assert phases == ["data wait", "forward", "backward", "optimizer"] * 2


def test_shapes_geometry_and_sizes_are_told():
    timeline = training(steps=1)
    shapes = np.full(len(timeline.host), -1, np.int32)
    shapes[2] = 0
    geometry = np.zeros(len(timeline.device), np.int32)
    timeline = replace(
        timeline,
        shapes=[Shapes(b"[[64,3,224],[],[[1]]]", b'["float","","x"]')],
        geometries=[Geometry((8, 1, 1), (256, 1, 1), 32, 2048, occupancy=0.5)],
        host=replace(timeline.host, shapes=shapes),
        device=replace(timeline.device, geometry=geometry),
    )
    details = Decoded(encode_timeline(timeline)).head["details"]
    assert "float 64×3×224" in details
    assert "grid 8×1×1 · block 256×1×1 · 32 registers · 2.0 KiB shared · occupancy 50%" in details
    assert "2.0 KiB" in details


@pytest.mark.parametrize("dims", [b"no json", b"7", b'{"a": 1}', b""])
def test_shapes_that_are_no_list_are_told_as_recorded(dims):
    timeline = training(steps=1)
    shapes = np.zeros(len(timeline.host), np.int32)
    timeline = replace(timeline, shapes=[Shapes(dims)], host=replace(timeline.host, shapes=shapes))
    assert dims.decode() in ["", *Decoded(encode_timeline(timeline)).head["details"]]


def test_memory_is_a_level_over_time():
    level = [5_000_000_000, 6_000_000_000, 5_500_000_000]
    memory = make_events(
        MemoryEvents, time=[10, 20_000, 30_000], device=[0, 0, 0], bytes=[1, 2, -1], allocated=level
    )
    told = Decoded(encode_timeline(replace(training(), memory=memory)))
    assert told.head["counters"] == [{"label": "GPU 0 memory allocated", "device": 0}]
    assert told.columns["time0"].tolist() == [10, 20_000, 30_000]
    assert told.columns["level0"].tolist() == level


def test_a_window_longer_than_four_seconds_keeps_every_nanosecond():
    made = Handmade()
    made.operator("first", 3, 10)
    made.operator("late", 20_000_000_001, 29_000_000_002)
    assert Decoded(encode_timeline(made.timeline(span=(0, 30_000_000_000)))).lane("main")[0] == [
        ("first", 3, 10),
        ("late", 20_000_000_001, 29_000_000_002),
    ]


def test_beyond_the_most_events_short_neighbours_are_merged_and_counted():
    made = Handmade()
    for n in range(5_000):
        made.operator(f"op{n % 7}", n * 1_000, n * 1_000 + 300 + n % 50)
    for n in range(20):
        made.work(n * 10_000, n * 10_000 + 9_000, name="kernel")
    made.operator("long", 6_000_000, 9_000_000)
    timeline = made.timeline()
    told = Decoded(encode_timeline(timeline, most_events=500))
    hosts = told.of_kind("thread")
    merged = told.columns["merged"]
    counts = dict(zip(merged.tolist(), told.columns["merged_count"].tolist(), strict=True))
    busy = dict(zip(merged.tolist(), told.columns["merged_busy"].tolist(), strict=True))
    assert len(told.start) <= 500
    assert sum(counts.get(n, 1) for n in hosts.tolist()) == 5_001
    shown = sum(busy.get(n, told.duration[n]) for n in hosts.tolist())
    assert shown == timeline.host.duration.sum()
    assert told.head["merged"] == sum(counts.values()) > 0
    assert "long" in [told.name(n) for n in hosts.tolist() if n not in counts]
    assert not set(told.of_kind("stream").tolist()) & set(counts)  # kernels tell more


def test_more_bytes_than_allowed_make_it_merge_too():
    rng = np.random.default_rng(0)
    made = Handmade()
    at = 0
    for _ in range(4_000):
        at += int(rng.integers(500, 5_000))
        made.operator(f"op{rng.integers(0, 50)}", at - int(rng.integers(100, 400)), at)
    timeline = made.timeline()
    whole, small = encode_timeline(timeline), encode_timeline(timeline, most_bytes=8_000)
    assert len(small) <= 8_000 < len(whole)
    assert Decoded(small).head["merged"] > 0


def test_names_of_events_that_were_merged_away_take_no_room():
    made = Handmade()
    rng = np.random.default_rng(0)
    for n in range(3_000):
        made.operator(f"object at {rng.bytes(40).hex()}", n * 100, n * 100 + 50)
    payload = encode_timeline(made.timeline(), most_bytes=100_000)
    told = Decoded(payload)
    assert len(payload) < 100_000
    assert len(told.head["names"]) < 1_500
    assert told.head["merged"] > 1_500


def test_strangers_names_are_one_bounded_line_without_control_characters():
    made = Handmade()
    made.operator("a\nb\x1b[31m\u202e\udc80" + "x" * 5_000, 0, 10)
    (name,) = (
        n for n in Decoded(encode_timeline(made.timeline())).head["names"] if n.startswith("a")
    )
    assert name.startswith("a b·[31m·?x")
    assert len(name) == 500


def test_a_thread_without_events_and_a_recording_without_any_are_no_problem():
    told = Decoded(encode_timeline(Handmade().timeline()))
    assert told.head["lanes"] == []
    assert told.head["span"] == 1
    assert len(told.start) == 0


def test_work_on_an_unknown_stream_is_shown_too():
    timeline = training(steps=1)
    stream = np.full(len(timeline.device), -1, np.int32)
    timeline = replace(timeline, device=replace(timeline.device, stream=stream))
    labels = [lane["label"] for lane in Decoded(encode_timeline(timeline)).head["lanes"]]
    assert "unknown device stream unknown" in labels


def test_only_the_busiest_threads_have_a_lane_and_the_rest_is_counted():
    made = Handmade()
    for n in range(80):
        for at in range(3 if n < 64 else 1):
            made.operator("op", at * 10, at * 10 + 5, thread=f"t{n}")
    told = Decoded(encode_timeline(made.timeline()))
    assert sum(lane["kind"] == "thread" for lane in told.head["lanes"]) == 64
    assert told.head["untold"] == 16


def test_the_trace_is_carried_when_given():
    head, _ = unpacked(encode_timeline(training(), trace=b"its bytes"))
    assert head["trace"][1] == len(b"its bytes")
    assert unpacked(encode_timeline(training()))[0]["trace"] is None


def test_columns_come_back_as_they_went():
    packing = Packing()
    wanted = {
        "small": np.array([0, 255]),
        "middle": np.array([0, 65_535]),
        "large": np.array([0, 2**32 - 1]),
        "signed": np.array([-5, 70_000]),
        "huge": np.array([0, 2**40]),
        "none": np.zeros(0, np.int64),
    }
    for name, values in wanted.items():
        packing.add(name, values)
    _, found = unpacked(packing.packed({}))
    kinds = [packing.columns[name][0] for name in wanted]
    assert kinds == ["u1", "u2", "u4", "i4", "f8", "u1"]
    for name, values in wanted.items():
        assert found[name].tolist() == values.tolist()
