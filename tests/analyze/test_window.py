"""What a window's trace says about the device, from traces made by hand."""

import gzip
import json

import pytest

from stepscope.analyze.run.records import WINDOW_CACHE, RunRecords
from stepscope.analyze.run.totals import busy_ms_per_step

TRACE = "window.pt.trace.json.gz"


def event(cat, ts, dur, name="work", **more):
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "pid": 0, "tid": 1, **more}


def mark(number, ts):
    return event("user_annotation", ts, 1000, f"ProfilerStep#{number}")


@pytest.fixture
def write(tmp_path):
    def write(events):
        with gzip.open(tmp_path / TRACE, "wt") as file:
            json.dump({"schemaVersion": 1, "traceEvents": events}, file)
        return tmp_path

    return write


def used(folder):
    window = RunRecords(folder).windows.timeline
    return {
        "busy_ms": busy_ms_per_step(window),
        "kernels": window.launch.kernels / window.steps.count,
    }


def test_busy_time_and_kernels_are_per_step(write):
    folder = write(
        [
            mark(10, 0),
            mark(11, 1000),
            event("cpu_op", 0, 10, "aten::mm"),
            event("kernel", 100, 200, "gemm"),
            event("kernel", 1100, 300, "gemm"),
            event("gpu_memcpy", 1500, 100),
        ]
    )
    assert RunRecords(folder).windows.timeline.steps.count == 2
    assert used(folder) == {"busy_ms": pytest.approx(0.3), "kernels": 1}


def test_kernels_that_overlap_count_their_time_once(write):
    folder = write([mark(1, 0), event("kernel", 0, 100), event("kernel", 50, 100, tid=7)])
    assert used(folder)["busy_ms"] == pytest.approx(0.15)


def test_work_that_outlasts_the_last_step_counts(write):
    folder = write([mark(1, 0), event("kernel", 900, 500)])
    assert used(folder)["busy_ms"] == pytest.approx(0.5)


def test_on_the_cpu_nothing_is_said_about_a_device(write):
    folder = write([mark(1, 0), event("cpu_op", 0, 10)])
    assert used(folder) == {"busy_ms": None, "kernels": 0}


@pytest.mark.parametrize("text", ['{"steps": 1', "[]", '{"schema": "of another version"}'])
def test_a_cache_that_cannot_be_used_is_made_again(write, text):
    folder = write([mark(1, 0), event("kernel", 0, 100)])
    (folder / WINDOW_CACHE).write_text(text)
    assert used(folder)["kernels"] == 1


def test_lines_and_modules_come_from_the_window_with_stacks(write, tmp_path):
    folder = write([mark(1, 0), event("kernel", 0, 100)])
    line = event("python_function", 0, 900, "train.py(7): main")
    launch = event("cuda_runtime", 10, 5, "cudaLaunchKernel", args={"correlation": 3})
    operator = event("cpu_op", 5, 20, "aten::mm")
    kernel = event("kernel", 30, 50, "gemm", pid=0, args={"correlation": 3, "device": 0})
    with gzip.open(folder / "stacks.pt.trace.json.gz", "wt") as file:
        json.dump({"traceEvents": [mark(1, 0), line, operator, launch, kernel]}, file)
    stacks = RunRecords(folder).windows.stacks
    assert stacks.steps == 1
    assert [group.name for group in stacks.by.line] == ["train.py(7): main"]
    assert [line.name for line in stacks.host.lines] == ["train.py(7): main"]
    assert stacks.host.lines[0].self_ns > 0


def test_without_a_window_there_is_nothing(tmp_path):
    assert RunRecords(tmp_path).windows.timeline is None


def damaged(data, at=40):
    return data[:at] + bytes(byte ^ 0xFF for byte in data[at : at + 20]) + data[at + 20 :]


BROKEN = {
    "not compressed": lambda data: b"not gzip at all",
    "empty": lambda data: b"",
    "cut in its header": lambda data: data[:5],
    "damaged": damaged,
    "not JSON": lambda data: gzip.compress(b"{"),
    "not text": lambda data: gzip.compress(b"\xff\xfe\xff"),
    "a list": lambda data: gzip.compress(b"[]"),
    "a number": lambda data: gzip.compress(b"3"),
    "no events": lambda data: gzip.compress(b"{}"),
    "events that are no list": lambda data: gzip.compress(b'{"traceEvents": 3}'),
    "events that are no objects": lambda data: gzip.compress(b'{"traceEvents": [3, "x"]}'),
    "work without a time": lambda data: gzip.compress(
        b'{"traceEvents": [{"ph": "X", "cat": "kernel"}]}'
    ),
    "a time that is no number": lambda data: gzip.compress(
        b'{"traceEvents": [{"ph": "X", "cat": "kernel", "ts": [], "dur": 1}]}'
    ),
}


@pytest.mark.parametrize("breaking", BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_trace_tells_nothing(write, breaking):
    events = [event("kernel", i * 7919 % 1000, i, f"kernel {i * i}") for i in range(200)]
    folder = write([mark(1, 0), *events])
    trace = folder / TRACE
    trace.write_bytes(breaking(trace.read_bytes()))
    assert RunRecords(folder).windows.timeline is None
