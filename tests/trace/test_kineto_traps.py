"""What real and hostile traces contain that a simple reader trips over."""

import json
from pathlib import Path
from typing import Any

import pytest

from stepscope.record.errors import StepscopeError
from stepscope.record.timeline import NOTHING, DeviceKind, HostKind, Timeline
from stepscope.trace import limits
from stepscope.trace.kineto.read import read_kineto

OPERATOR = {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 2, "ts": 5, "dur": 9}
LAUNCH = {**OPERATOR, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 6, "dur": 2}
LAUNCH["args"] = {"correlation": 7, "External id": 3}
KERNEL = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 20, "dur": 4}
KERNEL["args"] = {"device": 0, "stream": 7, "correlation": 7}


@pytest.fixture
def read(tmp_path: Path) -> Any:
    """Reads events, or text as it is."""

    def reads(*events: dict[str, Any], text: bytes = b"", **outside: Any) -> Timeline:
        path = tmp_path / "trace.json"
        path.write_bytes(text or json.dumps({**outside, "traceEvents": events}).encode())
        timeline = read_kineto(path)
        quality = timeline.quality
        left_out = sum(quality.dropped.values()) + sum(quality.ignored.values())
        assert quality.read == quality.kept + left_out
        return timeline

    return reads


def test_numbers_written_as_text_are_numbers(read: Any) -> None:
    as_text = {**KERNEL, "ts": "20.5", "dur": "4"}
    as_text["args"] = {"device": "0", "stream": "7", "correlation": "7", "bytes": "4096"}
    timeline = read(OPERATOR, LAUNCH, as_text)
    assert (timeline.device.start.tolist(), timeline.device.duration.tolist()) == ([15500], [4000])
    assert timeline.device.bytes.tolist() == [4096]
    assert timeline.device.launch.tolist() == [1]
    assert [(s.device, s.stream) for s in timeline.streams] == [(0, "7")]
    assert timeline.quality.repaired["number written as text"] >= 4


def test_text_that_is_no_number_leaves_the_value_out(read: Any) -> None:
    timeline = read(OPERATOR, {**KERNEL, "args": {**KERNEL["args"], "bytes": "many"}})
    assert timeline.device.bytes.tolist() == [NOTHING]


def test_threads_may_have_names_for_ids(read: Any) -> None:
    timeline = read(OPERATOR, {**OPERATOR, "pid": "Spans", "tid": "PyTorch Profiler"})
    assert [(t.pid, t.tid) for t in timeline.threads] == [("1", "2"), ("Spans", "PyTorch Profiler")]


def test_integers_beyond_64_bits_do_no_harm(read: Any) -> None:
    large = 2**70
    timeline = read(
        {**OPERATOR, "args": {"External id": large, "Comms Id": large}},
        {**KERNEL, "args": {**KERNEL["args"], "correlation": 10**300}},
        {**OPERATOR, "pid": large, "args": {"Sequence number": 4}},
    )
    assert timeline.host.external.tolist() == [NOTHING, NOTHING]
    assert timeline.host.sequence.tolist() == [NOTHING, 4]
    assert timeline.device.correlation.tolist() == [NOTHING]
    assert timeline.quality.repaired == {"number beyond 64 bits left out": 2}


@pytest.mark.parametrize(
    ("name", "wanted", "mended"),
    [
        (b"a\x01b", "a\x01b", "control character in a text"),
        (b"a\nb\tc", "a\nb\tc", "control character in a text"),
        (b"a\xffb", "a\ufffdb", "bad UTF-8 in a text"),
        (b"\xe2\x82", "\ufffd", "bad UTF-8 in a text"),
    ],
)
def test_control_characters_and_bad_utf8_in_names(
    read: Any, name: bytes, wanted: str, mended: str
) -> None:
    text = json.dumps([OPERATOR, {**OPERATOR, "name": "BAD", "ts": 6}, LAUNCH]).encode()
    timeline = read(text=text.replace(b"BAD", name))
    assert wanted in timeline.names
    assert len(timeline.host) == 3
    assert timeline.quality.repaired == {mended: 1}


def test_escapes_and_other_scripts_need_no_mending(read: Any) -> None:
    names = ["a\nb", "средний", "\ufffd", "\U0001f600"]
    timeline = read(*({**OPERATOR, "name": name} for name in names))
    assert timeline.names == names
    text = json.dumps([{**OPERATOR, "name": name} for name in names], ensure_ascii=False)
    again = read(text=text.encode())
    assert again.names == names
    assert not timeline.quality.repaired
    assert not again.quality.repaired


def test_half_of_a_surrogate_pair_can_be_printed(read: Any) -> None:
    text = json.dumps([OPERATOR, {**OPERATOR, "name": "BAD"}]).encode()
    timeline = read(text=text.replace(b"BAD", rb"x\ud800y"))
    assert len(timeline.host) == 2
    assert all(name.encode() for name in timeline.names)


def test_durations_that_are_missing_or_negative_become_zero(read: Any) -> None:
    missing = {key: value for key, value in OPERATOR.items() if key != "dur"}
    timeline = read(missing, {**OPERATOR, "ts": 6, "dur": -3}, {**KERNEL, "dur": -0.5})
    assert timeline.host.duration.tolist() == [0, 0]
    assert timeline.device.duration.tolist() == [0]
    assert timeline.quality.repaired == {
        "missing duration taken as zero": 1,
        "negative or absurd duration taken as zero": 2,
    }


@pytest.mark.parametrize("word", [b"NaN", b"Infinity", b"-Infinity", b"1e999", b"null", b'"x"'])
def test_a_time_that_is_no_number_drops_its_event(read: Any, word: bytes) -> None:
    text = json.dumps([OPERATOR, {**OPERATOR, "ts": 4242}]).encode().replace(b"4242", word)
    timeline = read(text=text)
    assert len(timeline.host) == 1
    assert timeline.quality.dropped == {"without a usable time": 1}


@pytest.mark.parametrize("word", [b"NaN", b"Infinity", b"1e999", b"null"])
def test_a_duration_that_is_no_number_is_taken_as_zero(read: Any, word: bytes) -> None:
    text = json.dumps([OPERATOR, {**OPERATOR, "dur": 4242}]).encode().replace(b"4242", word)
    timeline = read(text=text)
    assert sorted(timeline.host.duration.tolist()) == [0, 9000]
    assert timeline.quality.repaired


def test_an_event_without_a_time_is_dropped(read: Any) -> None:
    timeless = {key: value for key, value in OPERATOR.items() if key != "ts"}
    timeline = read(OPERATOR, timeless)
    assert timeline.quality.dropped == {"without a usable time": 1}


def test_time_zero_far_from_all_else_is_dropped(read: Any) -> None:
    far = 1712195495876224
    timeline = read({**OPERATOR, "ts": 0}, {**OPERATOR, "ts": far}, {**KERNEL, "ts": far + 5})
    assert timeline.span == (0, 9000)
    assert timeline.quality.dropped == {"time of zero or less, far from all others": 1}


def test_time_zero_near_the_rest_is_kept(read: Any) -> None:
    timeline = read({**OPERATOR, "ts": 0}, {**OPERATOR, "ts": 12})
    assert timeline.host.start.tolist() == [0, 12000]


def test_large_times_keep_their_nanoseconds(read: Any) -> None:
    text = (
        b'[{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":1,"ts":1712195495876224.751,"dur":1.5},'
        b'{"ph":"X","cat":"cpu_op","name":"b","pid":1,"tid":1,"ts":1712195495876224,"dur":1},'
        b'{"ph":"X","cat":"cpu_op","name":"c","pid":1,"tid":1,"ts":"1712195495876224.049","dur":1},'
        b'{"ph":"i","name":"[memory]","pid":1,"tid":1,"ts":1712195495876225.333,'
        b'"args":{"Bytes":1,"Addr":18446744073709551615,"Device Type":1,"Device Id":0}}]'
    )
    timeline = read(text=text)
    assert timeline.host.start.tolist() == [0, 49, 751]
    assert timeline.memory.time.tolist() == [1333]
    assert timeline.memory.address.tolist() == [-1]
    assert timeline.origin_ns == 1712195495876224000


def test_base_time_is_part_of_the_origin(read: Any) -> None:
    timeline = read({**OPERATOR, "ts": 2.5}, baseTimeNanoseconds=1790857026000000000)
    assert timeline.origin_ns == 1790857026000002500
    assert timeline.host.start.tolist() == [0]


def test_begin_and_end_are_paired_on_each_thread(read: Any) -> None:
    begin = {"ph": "B", "cat": "cpu_op", "pid": 1, "tid": 1}
    end = {"ph": "E", "pid": 1, "tid": 1}
    timeline = read(
        {**begin, "name": "outer", "ts": 0},
        {**begin, "name": "inner", "ts": 1},
        {**begin, "name": "other", "ts": 2, "tid": 2},
        {**end, "ts": 3},
        {**end, "ts": 6, "tid": 2},
        {**end, "ts": 9},
        {**end, "ts": 10},
        {**begin, "name": "never ends", "ts": 11},
    )
    names = [timeline.names[n] for n in timeline.host.name.tolist()]
    found = zip(names, timeline.host.start.tolist(), timeline.host.duration.tolist(), strict=True)
    assert sorted(found) == [("inner", 1000, 2000), ("other", 2000, 4000), ("outer", 0, 9000)]
    assert timeline.host.parent.tolist()[names.index("inner")] == names.index("outer")
    assert timeline.quality.dropped == {"begin without end, or end without begin": 2}


def test_halves_stand_beside_whole_spans(read: Any) -> None:
    begin = {"ph": "B", "cat": "user_annotation", "name": "half", "pid": 1, "tid": 2, "ts": 4}
    timeline = read(OPERATOR, begin, {**begin, "ph": "E", "ts": 20})
    assert timeline.host.kind.tolist() == [HostKind.ANNOTATION, HostKind.OPERATOR]
    assert timeline.host.parent.tolist() == [NOTHING, 0]


def test_a_bare_list_is_a_trace(read: Any) -> None:
    timeline = read(text=json.dumps([OPERATOR, KERNEL], indent=2).encode())
    assert (len(timeline.host), len(timeline.device)) == (1, 1)
    assert not timeline.quality.truncated


def test_several_lists_of_events_are_all_read(read: Any) -> None:
    one, two = json.dumps([OPERATOR]), json.dumps([KERNEL, {**OPERATOR, "ts": 9}])
    text = (
        f'{{"traceEvents": {one}, "x": 1, "traceEvents": {two}, "distributedInfo": {{"rank":3}}}}'
    )
    timeline = read(text=text.encode())
    assert (len(timeline.host), len(timeline.device)) == (2, 1)
    assert timeline.rank == 3
    assert not timeline.quality.truncated


def test_metadata_may_come_last_and_be_text(read: Any) -> None:
    document = {
        "traceEvents": [OPERATOR],
        "distributedInfo": {"rank": "3", "world_size": 8, "backend": "nccl"},
        "deviceProperties": [{"id": 0, "name": "NVIDIA H200", "numSms": "132"}, "odd"],
    }
    timeline = read(text=json.dumps(document).encode())
    assert (timeline.rank, timeline.world_size, timeline.backend) == (3, 8, "nccl")
    assert [(d.name, d.multiprocessors) for d in timeline.devices] == [("NVIDIA H200", 132)]


@pytest.mark.parametrize("odd", [None, 5, "x", [], [1], {"a": 1}])
def test_odd_metadata_is_not_believed(read: Any, odd: Any) -> None:
    keys = ("distributedInfo", "deviceProperties", "baseTimeNanoseconds", "schemaVersion")
    timeline = read(OPERATOR, **dict.fromkeys(keys, odd))
    assert len(timeline.host) == 1
    assert timeline.rank is None


@pytest.mark.parametrize(
    ("category", "kind"),
    [
        ("Operator", HostKind.OPERATOR),
        ("CPU_OP", HostKind.OPERATOR),
        ("Runtime", HostKind.RUNTIME),
        ("hip_runtime", HostKind.RUNTIME),
        ("privateuse1_runtime", HostKind.RUNTIME),
        ("privateuse1_driver", HostKind.RUNTIME),
    ],
)
def test_other_spellings_of_host_categories(read: Any, category: str, kind: HostKind) -> None:
    timeline = read({**OPERATOR, "cat": category, "args": {"external id": 5, "correlation": 6}})
    assert timeline.host.kind.tolist() == [kind]
    assert timeline.host.external.tolist() == [5]
    assert timeline.host.correlation.tolist() == [6 if kind is HostKind.RUNTIME else NOTHING]


@pytest.mark.parametrize(
    "name",
    [
        "ProfilerStep#3",
        "Optimizer.step#SGD.step",
        "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
    ],
)
def test_ranges_that_an_old_torch_calls_operators_are_annotations(read: Any, name: str) -> None:
    inside = {**OPERATOR, "cat": "Operator", "ts": 6, "dur": 2}
    timeline = read({**OPERATOR, "cat": "Operator", "name": name}, inside)
    assert timeline.host.kind.tolist() == [HostKind.ANNOTATION, HostKind.OPERATOR]


@pytest.mark.parametrize(
    ("category", "kind"),
    [("Kernel", DeviceKind.KERNEL), ("Memcpy", DeviceKind.COPY), ("Memset", DeviceKind.SET)],
)
def test_other_spellings_of_device_categories(read: Any, category: str, kind: DeviceKind) -> None:
    timeline = read({**KERNEL, "cat": category, "args": {}})
    assert timeline.device.kind.tolist() == [kind]
    assert [(s.device, s.stream) for s in timeline.streams] == [(0, "7")]


def test_what_is_no_work_is_counted_and_left_out(read: Any) -> None:
    timeline = read(
        OPERATOR,
        {**KERNEL, "cat": "gpu_user_annotation"},
        {"ph": "s", "id": 1, "ts": 5, "cat": "ac2g", "name": "ac2g", "pid": 1, "tid": 1},
        {"ph": "C", "name": "counter", "ts": 5, "args": {"v": 1}},
        {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}},
    )
    assert timeline.quality.ignored == {
        "of category gpu_user_annotation": 1,
        "arrows": 1,
        "counters": 1,
        "labels": 1,
    }


def test_what_is_no_event_is_dropped(read: Any) -> None:
    timeline = read(text=json.dumps([OPERATOR, 5, None, "x", [], {}, {"ph": "?"}]).encode())
    assert timeline.quality.dropped == {"not an event": 6}


def test_any_number_of_categories_is_counted_under_few_reasons(read: Any) -> None:
    strange = [{**OPERATOR, "cat": f"c{n}"} for n in range(500)]
    quality = read(OPERATOR, *strange).quality
    assert sum(quality.ignored.values()) == 500
    assert len(quality.ignored) < 50


def test_graphs_are_known_by_id_or_node(read: Any) -> None:
    timeline = read(
        {**KERNEL, "args": {**KERNEL["args"], "graph id": 12, "graph node id": 99}},
        {**KERNEL, "ts": 30, "args": {**KERNEL["args"], "graph node id": 98}},
        {**KERNEL, "ts": 40, "args": {**KERNEL["args"], "graph id": 0}},
    )
    assert timeline.device.graph.tolist() == [12, 98, NOTHING]


def test_clocks_that_differ_are_said_and_left(read: Any) -> None:
    timeline = read(LAUNCH, {**KERNEL, "ts": 4})
    assert timeline.device.launch.tolist() == [0]
    assert timeline.device.start.tolist() == [0]
    assert any("1 device events start up to" in note for note in timeline.quality.notes)


def test_objects_inside_arguments_are_not_taken_for_events(tmp_path: Path) -> None:
    inner = [{"ph": "X", "name": "not an event", "ts": 1, "n": n} for n in range(2000)]
    nested = {**OPERATOR, "args": {"list": inner, "External id": 4}}
    path = tmp_path / "trace.json"
    path.write_text(json.dumps([OPERATOR, nested, LAUNCH, nested, KERNEL]))
    for processes in (1, 2):
        timeline = read_kineto(path, processes=processes, block_bytes=5000)
        assert timeline.names == ["aten::add", "cudaLaunchKernel", "gemm"]
        assert timeline.quality.read == 5
        assert not timeline.quality.truncated


def test_too_many_events_are_refused(read: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOST_EVENTS", 3)
    with pytest.raises(StepscopeError, match="record fewer steps"):
        read(OPERATOR, LAUNCH, KERNEL, OPERATOR)


def test_more_events_than_fit_in_memory_are_refused(
    read: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "free_bytes", lambda: 3 * limits.EVENT_BYTES)
    with pytest.raises(StepscopeError, match="of memory free here: record fewer"):
        read(OPERATOR, LAUNCH, KERNEL, OPERATOR)
