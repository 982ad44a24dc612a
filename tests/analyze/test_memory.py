import importlib.util
import json
import subprocess
import sys
from dataclasses import asdict

import pytest

from stepscope.analyze.run.totals import memory_owners
from stepscope.record.errors import BrokenRun
from stepscope.record.frames import Frame, find_owner
from stepscope.store.memory_lines import (
    CPU_LINES,
    CPU_RAW,
    CUDA_LINES,
    LineBytes,
    MemoryLines,
    reduce_memray,
    replay_cuda_history,
)

TORCH = "/venv/lib/python3.12/site-packages/torch"


def frames(line, function="forward", op="_conv_forward"):
    return [
        {"name": op, "filename": f"{TORCH}/nn/modules/conv.py", "line": 553},
        {"name": "_call_impl", "filename": f"{TORCH}/nn/modules/module.py", "line": 1787},
        {"name": function, "filename": "/p/train.py", "line": line},
        {"name": "<module>", "filename": "/p/train.py", "line": 99},
    ]


def alloc(addr, size, line, at=0):
    return {"action": "alloc", "addr": addr, "size": size, "stream": 0, "time_us": at,
            "frames": frames(line)}  # fmt: skip


def free(addr, size, at=0):
    entry = {"addr": addr, "size": size, "stream": 0, "time_us": at}
    return [{"action": "free_requested", **entry}, {"action": "free_completed", **entry}]


def lines(rows):
    return [(row.line, row.bytes, row.count) for row in rows]


def test_the_peak_is_owned_by_the_lines_alive_then():
    result = replay_cuda_history(
        [
            {"action": "segment_alloc", "addr": 1, "size": 2 << 20, "stream": 0},
            alloc(1, 100, 10),
            alloc(2, 50, 11),
            alloc(3, 60, 11),
            *free(2, 50),
            alloc(2, 10, 12),
            {"action": "snapshot", "addr": 0, "size": 0, "stream": 0},
        ]
    )
    assert result.peak_bytes == 210
    assert lines(result.at_peak) == [(11, 110, 2), (10, 100, 1)]
    first = result.at_peak[0]
    assert (first.file, first.function, first.detail) == (
        "/p/train.py",
        "forward",
        "conv._conv_forward",
    )


def test_memory_counts_until_its_free_is_requested_not_completed():
    requested, completed = free(1, 100)
    result = replay_cuda_history([alloc(1, 100, 10), requested, alloc(2, 100, 11), completed])
    assert result.peak_bytes == 100


def test_an_address_used_again_belongs_to_its_last_owner():
    result = replay_cuda_history([alloc(1, 100, 10), *free(1, 100), alloc(1, 120, 11)])
    assert (result.peak_bytes, lines(result.at_peak)) == (120, [(11, 120, 1)])


def test_a_history_that_lost_its_beginning_is_completed_from_frees_and_live_blocks():
    blocks = [
        {"address": 7, "size": 512, "requested_size": 500, "state": "active_allocated",
         "frames": frames(5)},
        {"address": 8, "size": 512, "requested_size": 500, "state": "inactive", "frames": []},
        {"address": 9, "size": 512, "state": "active_awaiting_free", "frames": []},
        {"address": 2, "size": 512, "requested_size": 300, "state": "active_allocated",
         "frames": frames(6)},
    ]  # fmt: skip
    result = replay_cuda_history([*free(1, 400), alloc(2, 300, 6)], blocks)
    assert result.peak_bytes == 900
    assert lines(result.at_peak) == [(5, 500, 1), (0, 400, 1)]
    assert result.at_peak[1].file == ""


def test_growth_is_net_per_line_between_the_marks():
    entries = [
        alloc(1, 100, 10, at=1),
        alloc(2, 40, 20, at=2),
        # the first mark, at 5
        *free(1, 100, at=6),
        alloc(3, 100, 10, at=7),
        alloc(4, 40, 20, at=8),
        alloc(5, 40, 20, at=9),
        # the last mark, at 10
        *free(2, 40, at=11),
        *free(4, 40, at=11),
        *free(5, 40, at=11),
    ]
    grown = replay_cuda_history(entries, first_us=5, last_us=10).growth
    assert lines(grown) == [(20, 80, 2)]


def test_a_failed_allocation_and_unknown_actions_change_nothing():
    oom = {"action": "oom", "size": 10**12, "device_free": 5, "stream": 0, "frames": frames(3)}
    unmapped = {"action": "segment_unmap", "addr": 4, "size": 9, "stream": 0}
    result = replay_cuda_history([alloc(1, 100, 10), oom, unmapped])
    assert (result.peak_bytes, lines(result.growth)) == (100, [(10, 100, 1)])


def test_an_empty_history_owns_nothing():
    assert replay_cuda_history([]) == MemoryLines("cuda", 0, [], [])


def test_the_owner_is_the_innermost_frame_of_the_program():
    stack = [
        Frame("write", "/src/stepscope/probe/log.py", 3),
        Frame("_init_group", f"{TORCH}/optim/adam.py", 160),
        Frame("helper", "/p/my/optim.py", 7),
        Frame("<module>", "/p/train.py", 9),
    ]
    assert find_owner(stack) == ("/p/my/optim.py", 7, "helper", "adam._init_group")
    assert find_owner(stack[:2]) == ("", 0, "", "adam._init_group")
    assert find_owner([]) == ("", 0, "", "")


def test_what_an_import_allocates_names_the_package_not_the_machinery_of_import():
    stack = [
        Frame("_compile_bytecode", "<frozen importlib._bootstrap_external>", 729),
        Frame("<module>", f"{TORCH}/__init__.py", 40),
        Frame("<module>", "/p/train.py", 1),
    ]
    assert find_owner(stack) == ("/p/train.py", 1, "<module>", "torch.<module>")


def test_owners_prefer_the_device_and_read_back_what_was_written(tmp_path):
    assert memory_owners(tmp_path) is None
    cpu = MemoryLines("cpu", 5, [LineBytes("/p/a.py", 1, "f", "", 5, 1)], [])
    (tmp_path / CPU_LINES).write_text(json.dumps(asdict(cpu)))
    assert memory_owners(tmp_path) == cpu
    cuda = MemoryLines("cuda:0", 7, [], [LineBytes("", 0, "", "x.y", 7, 2)], 8, 1, True)
    (tmp_path / CUDA_LINES).write_text(json.dumps(asdict(cuda)))
    assert memory_owners(tmp_path) == cuda


@pytest.mark.parametrize("text", ["{", "[]", '{"at_peak": 3, "growth": []}', '{"device": "cpu"}'])
def test_a_broken_file_is_one_clear_error(tmp_path, text):
    (tmp_path / CPU_LINES).write_text(text)
    with pytest.raises(BrokenRun, match="cannot be read"):
        memory_owners(tmp_path)


PROGRAM = """
import os, signal, sys, time, torch
from pathlib import Path
from stepscope.probe.memory_history import MemoryHistory
history = MemoryHistory()
history.start("cpu", Path(sys.argv[1]))
kept = []
def grow():
    kept.append(torch.zeros(1_000_000))  # planted growth
def peak():
    return float(torch.ones(20_000_000).sum())  # planted peak
peak()
for step in range(8):
    grow()
    torch.zeros(2_000_000).sum()
    time.sleep(0.03)
    history.mark()
if sys.argv[2] == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
history.stop()
"""


@pytest.mark.skipif(importlib.util.find_spec("memray") is None, reason="memray is not installed")
@pytest.mark.parametrize("end", ["kill", pytest.param("return", marks=pytest.mark.slow)])
def test_memray_names_the_planted_lines_however_the_program_ends(tmp_path, end):
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    ended = subprocess.run([sys.executable, str(program), str(tmp_path), end], timeout=60)
    assert ended.returncode == (0 if end == "return" else -9)
    result = reduce_memray(tmp_path)
    assert result is not None
    assert not (tmp_path / CPU_RAW).exists()
    assert memory_owners(tmp_path) == result
    source = program.read_text().splitlines()
    top = result.at_peak[0]
    assert (top.file, top.function) == (str(program), "peak")
    assert "planted peak" in source[top.line - 1]
    assert 80_000_000 <= top.bytes < 90_000_000
    assert sum(row.bytes for row in result.at_peak) == result.peak_bytes
    grown = result.growth[0]
    assert "planted growth" in source[grown.line - 1]
    assert 12_000_000 <= grown.bytes <= 33_000_000
    assert not result.truncated


def test_no_recording_gives_none_and_a_broken_one_a_clear_error(tmp_path):
    assert reduce_memray(tmp_path) is None
    pytest.importorskip("memray")
    (tmp_path / CPU_RAW).write_bytes(b"not memray")
    with pytest.raises(BrokenRun, match="cannot read the memory"):
        reduce_memray(tmp_path)
