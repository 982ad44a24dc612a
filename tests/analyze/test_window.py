"""What a window's trace says about the device, from traces made by hand."""

import gzip
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.analyze.window import CACHE, covered, window_facts

TRACE = "window.pt.trace.json.gz"


def event(cat, ts, dur, name="work", **more):
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, **more}


def mark(number, ts):
    return event("user_annotation", ts, 1000, f"ProfilerStep#{number}")


@pytest.fixture
def write(tmp_path):
    def write(events):
        with gzip.open(tmp_path / TRACE, "wt") as file:
            json.dump({"schemaVersion": 1, "traceEvents": events}, file)
        return tmp_path

    return write


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
    facts = window_facts(folder)
    assert facts["steps"] == 2
    assert facts["busy_ms"] == pytest.approx(0.3)
    assert facts["kernels"] == 1
    assert facts["operators"] == 0.5


def test_kernels_that_overlap_count_their_time_once(write):
    folder = write([mark(1, 0), event("kernel", 0, 100), event("kernel", 50, 100, stream=7)])
    assert window_facts(folder)["busy_ms"] == pytest.approx(0.15)


def test_the_devices_copy_of_a_mark_is_not_another_step(write):
    copy = event("gpu_user_annotation", 0, 900, "ProfilerStep#1")
    folder = write([mark(1, 0), copy, event("kernel", 0, 100)])
    assert window_facts(folder)["steps"] == 1


def test_on_the_cpu_nothing_is_said_about_a_device(write):
    facts = window_facts(write([mark(1, 0), event("cpu_op", 0, 10)]))
    assert facts["busy_ms"] is None
    assert facts["kernels"] == 0


def test_events_of_other_shapes_are_passed_over(write):
    odd = [{}, {"ph": "M", "name": "process_name"}, {"ph": "X", "name": None}, {"name": 3}]
    facts = window_facts(write([*odd, mark(1, 0), event("kernel", 0, 100)]))
    assert facts["busy_ms"] == pytest.approx(0.1)


def test_an_empty_trace_divides_by_nothing(write):
    facts = window_facts(write([]))
    assert facts["steps"] == 0
    assert facts["busy_ms"] is None


def test_the_answer_is_kept_beside_the_trace(write):
    folder = write([mark(1, 0), event("kernel", 0, 100)])
    first = window_facts(folder)
    (folder / TRACE).unlink()
    assert json.loads((folder / CACHE).read_text()) == first
    assert window_facts(folder) == first


def test_a_broken_cache_is_made_again(write):
    folder = write([mark(1, 0), event("kernel", 0, 100)])
    (folder / CACHE).write_text('{"steps": 1')
    assert window_facts(folder)["steps"] == 1


def test_a_folder_that_cannot_be_written_is_read_all_the_same(write):
    folder = write([mark(1, 0), event("kernel", 0, 100)])
    (folder / CACHE).mkdir()
    assert window_facts(folder)["steps"] == 1


def test_without_a_window_there_is_nothing(tmp_path):
    assert window_facts(tmp_path) is None
    assert not (tmp_path / CACHE).exists()


def damaged(data, at=40):
    return data[:at] + bytes(byte ^ 0xFF for byte in data[at : at + 20]) + data[at + 20 :]


BROKEN = {
    "not compressed": lambda data: b"not gzip at all",
    "empty": lambda data: b"",
    "cut short": lambda data: data[: len(data) // 2],
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
    assert window_facts(folder) is None
    assert not (folder / CACHE).exists()


SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=15)


@settings(max_examples=60, derandomize=True, deadline=None, database=None)
@given(SPANS)
def test_covered_is_the_length_of_the_union(spans):
    intervals = sorted((float(begin), float(begin + length)) for begin, length in spans)
    cells = {cell for begin, length in spans for cell in range(begin, begin + length)}
    assert covered(intervals) == len(cells)


def test_nothing_covers_nothing():
    assert covered([]) == 0
