"""Files that are cut short, damaged, or no traces at all."""

import gzip
import json
import os
import random
import re
import subprocess
import sys
from json import JSONDecoder
from pathlib import Path

import pytest
from plain import TRACES

from stepscope.record.errors import StepscopeError
from stepscope.trace.kineto import blocks, reader
from stepscope.trace.kineto.read import read_kineto

TEXT = gzip.decompress((TRACES / "cuda_event_sync_multi_stream.json.gz").read_bytes())
FIRST = re.search(rb'"traceEvents"\s*:\s*\[', TEXT)
assert FIRST


def ends() -> list[int]:
    """Where each event of TEXT ends."""
    text, decoder = TEXT.decode(), JSONDecoder()
    found, position = [], FIRST.end() if FIRST else 0
    while (begin := text.find("{", position)) >= 0 and "]" not in text[position:begin]:
        _, position = decoder.raw_decode(text, begin)
        found.append(position)
    return found


ENDS = ends()


@pytest.mark.parametrize("block_bytes", [1 << 20, 2000])
def test_a_cut_off_trace_gives_its_whole_events(block_bytes: int, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    whole = read_kineto(TRACES / "cuda_event_sync_multi_stream.json.gz")
    picks = random.Random(1).sample(range(ENDS[60], len(TEXT) - 2), 120)
    for cut in [*picks, ENDS[70], ENDS[70] + 1, ENDS[-1], ENDS[-1] + 2]:
        path.write_bytes(TEXT[:cut])
        timeline = read_kineto(path, processes=1, block_bytes=block_bytes)
        quality = timeline.quality
        assert quality.read == sum(end <= cut for end in ENDS), cut
        assert quality.truncated, cut
        assert "cut short" in quality.notes[0]
        assert len(timeline.device) <= len(whole.device)


def test_a_cut_off_trace_in_two_processes(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    for cut in (ENDS[100] - 5, ENDS[-1]):
        path.write_bytes(TEXT[:cut])
        timeline = read_kineto(path, processes=2, block_bytes=5000)
        assert timeline.quality.read == sum(end <= cut for end in ENDS)
        assert timeline.quality.truncated


def test_a_cut_off_gzip_gives_what_it_has(tmp_path: Path) -> None:
    packed = gzip.compress(TEXT)
    path = tmp_path / "trace.json.gz"
    counts = []
    for cut in (len(packed) * 2 // 3, len(packed) - 200, len(packed) - 8, len(packed) - 1):
        path.write_bytes(packed[:cut])
        timeline = read_kineto(path)
        assert timeline.quality.truncated
        assert "compressed data ends too early" in timeline.quality.notes[0]
        counts.append(timeline.quality.read)
    assert counts == sorted(counts)
    assert counts[0] > 50
    assert counts[-1] == len(ENDS)


def test_a_gzip_cut_before_any_event_is_one_clear_error(tmp_path: Path) -> None:
    packed = gzip.compress(TEXT)
    path = tmp_path / "trace.json.gz"
    for cut in (2, 9, 15, 60, 500):
        path.write_bytes(packed[:cut])
        with pytest.raises(StepscopeError, match="compressed data ends too early"):
            read_kineto(path)


def test_damage_costs_only_the_event_it_is_in(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    for number, damage in ((90, b'"'), (95, b"}"), (100, b"{"), (len(ENDS) - 1, b'"')):
        middle = (ENDS[number - 1] + ENDS[number]) // 2
        path.write_bytes(TEXT[:middle] + damage + TEXT[middle:])
        quality = read_kineto(path).quality
        assert sum(quality.dropped.values()) <= 2, damage
        assert len(ENDS) - 2 <= quality.read <= len(ENDS) + 1, damage
        assert not quality.truncated, damage


def test_an_endless_depth_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    deep = b',{"ph":"X","args":{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}}"
    path.write_bytes(TEXT[: ENDS[100]] + deep + TEXT[ENDS[100] :])
    quality = read_kineto(path).quality
    assert quality.dropped == {"not valid JSON": 1}
    assert quality.read == len(ENDS) + 1


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b" \n\t ", "is empty"),
        (gzip.compress(b"", mtime=0), "is empty"),
        (b"<!DOCTYPE html><html><body>403</body></html>", "web page"),
        (random.Random(2).randbytes(5000), "not a trace"),
        (b"step,time\n1,2\n", "not a trace"),
        (b'{"hello": [1, 2, 3]}', "no events"),
        (b'{"traceEvents": []}', "no events"),
        (b'{"traceEvents": 5}', "no events"),
        (b"[]", "no events"),
        (b"[1, 2, 3]", "not an event"),
        (b'{"trace', "no events"),
        (b'[{"ph": "M", "name": "x"}]', "no operators, kernels or memory events.*1 labels"),
        ("{}".encode("utf-16"), "not a trace"),
    ],
)
def test_what_is_no_trace_is_one_clear_line(content: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "odd.json"
    path.write_bytes(content)
    with pytest.raises(StepscopeError, match=words) as caught:
        read_kineto(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(StepscopeError, match="No such file"):
        read_kineto(tmp_path / "none.json")


def test_what_never_ends_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    for path in (tmp_path / "pipe.json", tmp_path, Path("/dev/zero")):
        with pytest.raises(StepscopeError, match="not a regular file"):
            read_kineto(path)


def test_an_event_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (blocks, reader):
        monkeypatch.setattr(module, "LARGEST_EVENT", 1 << 20)
    path = tmp_path / "trace.json"
    path.write_bytes(b'[{"ph":"X","ts":1,"name":"' + b"x" * (4 << 20) + b'"}')
    with pytest.raises(StepscopeError, match="limit 1 MB"):
        read_kineto(path, block_bytes=1 << 16)


def test_a_large_event_of_many_parts_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "LARGEST_EVENT", 1 << 18)
    path = tmp_path / "trace.json"
    path.write_text('[{"ph":"X","ts":1,"args":[' + json.dumps({"ph": 1}) + ',{"ph":1}' * 50_000)
    with pytest.raises(StepscopeError, match="an event of over 0 MB"):
        read_kineto(path, block_bytes=1 << 14)


@pytest.mark.parametrize("filling", [b" ", b"\0", b'{"a":1},', b"x"])
def test_a_file_made_to_exhaust_memory_is_refused(filling: bytes, tmp_path: Path) -> None:
    path = tmp_path / "bomb.json.gz"
    step = filling * ((1 << 20) // len(filling))
    path.write_bytes(gzip.compress(b'{"traceEvents": [') + 200 * gzip.compress(step))
    code = f"""
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
from stepscope.record.errors import StepscopeError
from stepscope.trace.kineto.read import read_kineto
try:
    read_kineto({str(path)!r}, processes=1)
except StepscopeError as error:
    print("refused:", error)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.startswith("refused:"), done.stderr
