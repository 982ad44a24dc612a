"""The fast reader gives what the plain one gives, however the text is laid out and shared out."""

import gzip
import json
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from plain import TRACES, quicker, read_plain

from stepscope.record.timeline import Timeline, column_types
from stepscope.trace.kineto import blocks, read
from stepscope.trace.kineto.read import read_kineto
from stepscope.trace.kineto.reader import fit_together

FILES = sorted(path.name for path in TRACES.glob("*.json.gz"))
SMALL = ("cuda_event_sync_multi_stream.json.gz", "vllm_decode_cuda_graphs.json.gz")
LISTS = {
    "name": "names",
    "thread": "threads",
    "stream": "streams",
    "shapes": "shapes",
    "geometry": "geometries",
    "collective": "collectives",
}


def resolved(timeline: Timeline) -> dict[str, Any]:
    """All that a timeline says, with what is interned put back in place."""
    result: dict[str, Any] = {
        name: getattr(timeline, name)
        for name in ("tool", "origin_ns", "span", "rank", "world_size", "backend", "devices")
    }
    for table in ("host", "device", "memory"):
        rows = getattr(timeline, table)
        for name, dtype in column_types(type(rows)).items():
            column = getattr(rows, name)
            assert column.dtype == dtype
            values = column.tolist()
            if name in LISTS and not (table == "memory" and name != "thread"):
                known = getattr(timeline, LISTS[name])
                values = [known[value] if value >= 0 else None for value in values]
            result[f"{table}.{name}"] = values
    return result


@cache
def expected(name: str) -> dict[str, Any]:
    return resolved(read_plain(TRACES / name))


def differences(timeline: Timeline, name: str) -> list[str]:
    """What a timeline says otherwise than the plain reader's of a recording."""
    found, wanted = resolved(timeline), expected(name)
    return [key for key in wanted if found[key] != wanted[key]]


def counted(timeline: Timeline) -> None:
    """Every event of the file is in the timeline or accounted for."""
    quality = timeline.quality
    left_out = sum(quality.dropped.values()) + sum(quality.ignored.values())
    assert quality.read == quality.kept + left_out
    tables = (timeline.host, timeline.device, timeline.memory, timeline.syncs)
    assert quality.kept == sum(map(len, tables))


@pytest.mark.parametrize("name", quicker(FILES))
def test_every_recording_equals_the_plain_reader(name: str) -> None:
    timeline = read_kineto(TRACES / name)
    assert differences(timeline, name) == []
    counted(timeline)
    assert not timeline.quality.truncated
    assert not timeline.quality.dropped


@pytest.mark.parametrize(
    "name", quicker(["a100_nccl_rank0.json.gz", "v100_ns_timestamps.pt.trace.json.gz"])
)
def test_two_processes_read_the_same_as_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = read_kineto(TRACES / name, processes=1)
    fits = []
    monkeypatch.setattr(read, "fit_together", lambda p: fits.append(fit_together(p)) or fits[-1])
    shared = read_kineto(TRACES / name, processes=2)
    assert fits == [True]
    assert differences(shared, name) == []
    assert (shared.names, shared.streams, shared.geometries, shared.collectives) == (
        alone.names,
        alone.streams,
        alone.geometries,
        alone.collectives,
    )
    assert shared.quality == alone.quality


def _reordered(document: dict[str, Any]) -> dict[str, Any]:
    events = [dict(sorted(event.items(), reverse=True)) for event in document["traceEvents"]]
    return {"traceEvents": events, **{k: v for k, v in document.items() if k != "traceEvents"}}


def _forms(name: str) -> dict[str, bytes]:
    text = gzip.decompress((TRACES / name).read_bytes())
    document = json.loads(text)
    return {
        "plain": text,
        "compact": json.dumps(document, separators=(",", ":")).encode(),
        "indented": json.dumps(document, indent=4).encode(),
        "windows lines": json.dumps(document, indent=1).replace("\n", "\r\n").encode(),
        "other key order": json.dumps(_reordered(document)).encode(),
        "byte order mark": b"\xef\xbb\xbf" + text,
    }


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize(
    "form",
    ["plain", "compact", "indented", "windows lines", "other key order", "byte order mark"],
)
def test_layout_does_not_matter(name: str, form: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(_forms(name)[form])
    assert differences(read_kineto(path), name) == []


@pytest.mark.parametrize("block_bytes", [97, 400, 1000, 4096, 30_000])
@pytest.mark.parametrize("form", ["plain", "compact", "indented"])
def test_blocks_of_any_size_lose_nothing(form: str, block_bytes: int, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(_forms(SMALL[0])[form])
    assert differences(read_kineto(path, processes=1, block_bytes=block_bytes), SMALL[0]) == []


@pytest.mark.parametrize("block_bytes", [1500, 9000, 100_000])
@pytest.mark.parametrize("compressed", [False, True])
def test_small_blocks_in_two_processes(block_bytes: int, compressed: bool, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    text = _forms(SMALL[1])["plain"]
    path.write_bytes(gzip.compress(text) if compressed else text)
    assert differences(read_kineto(path, processes=2, block_bytes=block_bytes), SMALL[1]) == []


def test_the_standard_library_decompresses_just_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import zlib

    monkeypatch.setattr(blocks, "inflate", zlib)
    assert differences(read_kineto(TRACES / SMALL[1]), SMALL[1]) == []


def test_where_no_process_can_be_started_one_does_it_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert differences(read_kineto(TRACES / SMALL[1], processes=2), SMALL[1]) == []


def test_several_gzip_members_are_one_text(tmp_path: Path) -> None:
    text = _forms(SMALL[0])["plain"]
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(text[:9000]) + gzip.compress(text[9000:]) + b"\0" * 50)
    timeline = read_kineto(path)
    assert differences(timeline, SMALL[0]) == []
    assert not timeline.quality.truncated


def test_synchronisations_are_kept_apart() -> None:
    timeline = read_kineto(TRACES / "cuda_event_sync_multi_stream.json.gz")
    syncs = timeline.syncs
    assert [timeline.names[n] for n in syncs.name.tolist()].count("Event Sync") >= 1
    assert len(syncs) == 5
    assert (syncs.duration >= 0).all()
    waited = [timeline.streams[n].stream for n in syncs.waits_for.tolist() if n >= 0]
    assert waited
    assert "-1" not in [stream.stream for stream in timeline.streams]


def test_work_from_before_the_recording_is_kept_and_said() -> None:
    timeline = read_kineto(TRACES / "mi300_resnet_checkpointing_stacks.json.gz")
    note = "968 of 3,653 device events were launched before the recording began"
    assert note in timeline.quality.notes


def test_many_kernels_of_one_graph_share_its_launch() -> None:
    timeline = read_kineto(TRACES / "vllm_decode_cuda_graphs.json.gz")
    calls = [timeline.name_of(n) for n in timeline.host.name.tolist()]
    launches = [calls[n] for n in timeline.device.launch.tolist() if n >= 0]
    assert launches.count("hipGraphLaunch") == 421
    assert calls.count("hipGraphLaunch") == 1


def test_thread_names_come_from_labels() -> None:
    timeline = read_kineto(TRACES / "resnet18_b32_h200.json.gz")
    assert any(thread.name.startswith("thread ") for thread in timeline.threads)


def test_a_small_trace_starts_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError

    monkeypatch.setattr("stepscope.trace.kineto.read.run_jobs", refuse)
    assert differences(read_kineto(TRACES / SMALL[1]), SMALL[1]) == []
    assert os.path.getsize(TRACES / SMALL[1]) < 1 << 20
