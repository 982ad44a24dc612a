"""What a recording may ask for: more is refused in a line, or left out and said."""

import gzip
import json
import os
import random
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from fuzz.calls import verdict

from stepscope.analyze.timeline.steps import find_steps
from stepscope.record.errors import StepscopeError
from stepscope.record.timeline import Timeline
from stepscope.trace.format import Repair
from stepscope.trace.kineto import blocks
from stepscope.trace.kineto.read import read_kineto
from stepscope.trace.limits import MOST_DEVICES, EventBudget

OPERATOR = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 5}
KERNEL = {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 3, "dur": 5}
MOVE = {"ph": "i", "name": "[memory]", "pid": 1, "tid": 1, "ts": 2}


def written(folder: Path, *events: dict[str, Any]) -> Path:
    path = folder / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    return path


def read(folder: Path, *events: dict[str, Any]) -> Timeline:
    return read_kineto(written(folder, *events))


def test_optimizer_ranges_without_duration_still_mark_steps(tmp_path: Path) -> None:
    step = {**OPERATOR, "cat": "user_annotation", "name": "Optimizer.step#SGD.step", "dur": 0}
    events = [OPERATOR, *({**step, "ts": at} for at in (10, 20, 30))]
    assert [one.end_ns for one in find_steps(read(tmp_path, *events)).steps] == [9000, 19000, 29000]


@pytest.mark.parametrize("device", [2**63, -(2**63), 2**64, 2**31, "9" * 5000, "cuda:0"])
def test_an_impossible_device_is_an_unknown_one(tmp_path: Path, device: object) -> None:
    path = written(tmp_path, OPERATOR, {**KERNEL, "args": {"device": device, "stream": 7}})
    assert [one.device for one in read_kineto(path).streams] == [-1]
    ended = verdict(["analyze", str(path), "--json"], seconds=60)
    assert (ended.problem, ended.code) == (None, 0)


def test_devices_beyond_the_busiest_are_taken_as_one(tmp_path: Path) -> None:
    kernels = [
        {**KERNEL, "ts": at, "args": {"device": n, "stream": 7}}
        for n in range(MOST_DEVICES + 10)
        for at in range(2 if n < MOST_DEVICES else 1)
    ]
    timeline = read(tmp_path, *kernels)
    assert {one.device for one in timeline.streams} == {-1, *range(MOST_DEVICES)}
    assert "10 devices beyond the 64 busiest are taken as one" in timeline.quality.notes


@pytest.mark.parametrize("size", [2**60, 2**62, -(2**60), 2**63 - 1])
def test_an_absurd_size_is_left_out_and_counted(tmp_path: Path, size: int) -> None:
    move = {**MOVE, "args": {"Bytes": size, "Total Allocated": size, "Addr": 1}}
    path = written(tmp_path, OPERATOR, move, {**MOVE, "args": {"Bytes": 64, "Addr": 2}})
    timeline = read_kineto(path)
    assert timeline.memory.bytes.tolist() == [-1, 64]
    assert timeline.quality.repaired[Repair.ABSURD_SIZE] == 2
    assert verdict(["analyze", str(path)], seconds=60).code == 0


def test_durations_that_add_up_to_centuries_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StepscopeError, match=r"trace\.json: the durations .* over 146 years"):
        read(tmp_path, *[{**OPERATOR, "dur": 2**51}] * 3)


def test_text_that_unfolds_too_far_is_refused_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same event over and over: it compresses further than any recording does."""
    monkeypatch.setattr(blocks, "_ALWAYS_READ", 1 << 20)
    path = tmp_path / "trace.json.gz"
    step = gzip.compress((json.dumps(OPERATOR) + ",").encode() * 20_000)
    path.write_bytes(gzip.compress(b'{"traceEvents": [') + 3 * step)
    with pytest.raises(StepscopeError, match=r"more than 100 times its size.*gunzip it first"):
        read_kineto(path, processes=1)


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_a_large_file_that_was_not_written_whole_is_refused(tmp_path: Path, name: str) -> None:
    """Zeros in the middle of gzip may stand for the same events over and over."""
    path = tmp_path / name
    text = json.dumps([OPERATOR] * 20_000).encode()
    packed = gzip.compress(text, 1) if name.endswith("gz") else text
    path.write_bytes(packed[: len(packed) // 2])
    os.truncate(path, 20 << 30)
    with pytest.raises(
        StepscopeError, match=r"nothing was written at byte [\d,]+ of 21,474,836,480"
    ):
        read_kineto(path)


def test_text_that_unfolds_as_recordings_do_is_read(tmp_path: Path) -> None:
    draw, path = random.Random(0), tmp_path / "trace.json.gz"
    events = [{**OPERATOR, "ts": n, "args": {"External id": draw.random()}} for n in range(2000)]
    path.write_bytes(gzip.compress(json.dumps(events).encode()))
    assert read_kineto(path).quality.kept == 2000


def test_a_budget_is_shared_among_readers() -> None:
    budget = EventBudget(100).shared(4)
    budget.check(25)
    with pytest.raises(StepscopeError, match="events: record fewer steps"):
        budget.check(26)


@pytest.mark.parametrize("part", [0, 1])
def test_text_without_events_is_given_up_by_each_of_several_readers(
    tmp_path: Path, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "LARGEST_EVENT", 50_000)
    path = tmp_path / "trace.json"
    path.write_bytes(b'{"traceEvents": [' + bytes(10_000_000))
    with pytest.raises(StepscopeError, match="no event boundary in bytes"):
        list(blocks.blocks(blocks.PlainText(path), 1000, blocks.Share(part, 2)))


@pytest.mark.parametrize("ahead", [0, 5])
def test_several_readers_have_each_block_once(ahead: int) -> None:
    own = [list(islice(blocks.Share(n, 3, ahead).numbers(), 20)) for n in range(3)]
    assert own[0][:ahead] == list(range(ahead))
    assert sorted(number for some in own for number in some)[:50] == list(range(50))
    assert all(some == sorted(some) for some in own)
