"""Exports read back: exact values, NULLs, several ranks, and refusals."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from plain import TRACES, read_plain
from pyarrow import feather, parquet

from stepscope.record.errors import MissingExtra, StepscopeError, UsageError
from stepscope.record.timeline import (
    NOTHING,
    Collective,
    DeviceEvents,
    Geometry,
    HostEvents,
    MemoryEvents,
    Quality,
    Shapes,
    Stream,
    SyncEvents,
    Thread,
    Timeline,
    make_events,
)
from stepscope.trace import export as module
from stepscope.trace.export import export_timelines

FORMATS = {
    ".parquet": parquet.read_table,
    ".arrow": feather.read_table,
    ".feather": feather.read_table,
}


def small(rank: int | None = None) -> Timeline:
    return Timeline(
        source=f"rank{rank}.json",
        tool="kineto",
        origin_ns=1_700_000_000_000_000_000,
        names=["aten::mm", "cudaLaunchKernel", "gemm \ud800", "Memcpy HtoD (Pinned -> Device)"],
        threads=[Thread("10", "11", "main")],
        streams=[Stream(2, "7")],
        shapes=[Shapes(b"[[4,8],[8,2]]", b'["float","float"]')],
        geometries=[Geometry((2, 66, 1), (384, 1, 1), 168, 1024, occupancy=0.5)],
        collectives=[Collective("allreduce", "BFloat16", 2**70, 64, 8)],
        devices=[],
        host=make_events(
            HostEvents,
            kind=[0, 3],
            name=[0, 1],
            start=[0, 5],
            duration=[30, 10],
            thread=[0, 0],
            correlation=[NOTHING, 77],
            sequence=[12, NOTHING],
            shapes=[0, NOTHING],
            parent=[NOTHING, 0],
        ),
        device=make_events(
            DeviceEvents,
            kind=[0, 1, 2],
            name=[2, 3, NOTHING],
            start=[20, 60, 70],
            duration=[40, 1, 0],
            stream=[0, 0, 0],
            correlation=[77, 78, NOTHING],
            bytes=[NOTHING, 4096, 0],
            geometry=[0, NOTHING, NOTHING],
            collective=[0, NOTHING, NOTHING],
            launch=[1, NOTHING, NOTHING],
        ),
        memory=make_events(MemoryEvents),
        syncs=make_events(SyncEvents),
        span=(0, 70),
        rank=rank,
        world_size=None,
        backend=None,
        quality=Quality(),
    )


@pytest.mark.parametrize("suffix", FORMATS)
def test_values_come_back_exactly(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"t{suffix}"
    export_timelines([small(3)], path)
    rows = FORMATS[suffix](path).to_pylist()
    known = [{key: value for key, value in row.items() if value is not None} for row in rows]
    host = {"source": "rank3.json", "rank": 3, "place": "host"} | {
        "process": "10",
        "thread": "11",
        "thread_name": "main",
    }
    device = {"source": "rank3.json", "rank": 3, "place": "device", "device": 2, "stream": "7"}
    at = 1_700_000_000_000_000_000
    assert known == [
        host
        | {"id": 0, "kind": "operator", "name": "aten::mm", "start_ns": at, "relative_ns": 0}
        | {"duration_ns": 30, "sequence": 12}
        | {"input_dims": "[[4,8],[8,2]]", "input_types": '["float","float"]'},
        host
        | {"id": 1, "kind": "runtime", "name": "cudaLaunchKernel", "start_ns": at + 5}
        | {"relative_ns": 5, "duration_ns": 10, "correlation": 77, "parent_id": 0},
        device
        | {"id": 2, "kind": "kernel", "name": "gemm ?", "start_ns": at + 20, "relative_ns": 20}
        | {"duration_ns": 40, "correlation": 77, "launch_id": 1}
        | {"grid": [2, 66, 1], "block": [384, 1, 1], "registers": 168, "shared_bytes": 1024}
        | {"occupancy": 0.5, "collective": "allreduce", "collective_dtype": "BFloat16"}
        | {"out_elements": 64, "group_size": 8},  # in_elements needs more than 64 bits
        device
        | {"id": 3, "kind": "copy", "name": "Memcpy HtoD (Pinned -> Device)", "bytes": 4096}
        | {"start_ns": at + 60, "relative_ns": 60, "duration_ns": 1, "correlation": 78},
        device
        | {"id": 4, "kind": "memset", "start_ns": at + 70, "relative_ns": 70, "duration_ns": 0}
        | {"bytes": 0},
    ]


@pytest.mark.parametrize("suffix", FORMATS)
def test_ranks_share_a_file_and_refer_to_their_own_rows(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"ranks{suffix}"
    other = replace(small(1), names=["other", "cudaLaunchKernel", "kernel", "copy"])
    export_timelines([small(0), other, small()], path)
    table = FORMATS[suffix](path)
    assert table["id"].to_pylist() == list(range(15))
    assert table["rank"].to_pylist() == [0] * 5 + [1] * 5 + [None] * 5
    assert table["parent_id"].to_pylist()[6] == 5
    assert table["launch_id"].to_pylist()[7] == 6
    assert table["name"].to_pylist()[5] == "other"
    assert pa.types.is_dictionary(table["name"].type)


def test_a_real_trace_comes_back_column_by_column_in_row_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_ROWS", 10_000)
    timeline = read_plain(TRACES / "a100_nccl_rank0.json.gz")
    path = tmp_path / "a.parquet"
    export_timelines([timeline], path)
    assert parquet.ParquetFile(path).num_row_groups == 4
    table = parquet.read_table(path)
    count = len(timeline.host)
    host, device = table.slice(0, count), table.slice(count)
    assert np.array_equal(host["relative_ns"].to_numpy(), timeline.host.start)
    assert np.array_equal(device["duration_ns"].to_numpy(), timeline.device.duration)
    start = timeline.device.start + timeline.origin_ns
    assert np.array_equal(device["start_ns"].to_numpy(), start)
    names = [timeline.name_of(n) for n in timeline.device.name]
    assert device["name"].to_pylist() == names
    launches = [None if n == NOTHING else int(n) for n in timeline.device.launch]
    assert device["launch_id"].to_pylist() == launches
    parents = [None if n == NOTHING else int(n) for n in timeline.host.parent]
    assert host["parent_id"].to_pylist() == parents
    grids = [timeline.geometries[g].grid if g >= 0 else None for g in timeline.device.geometry]
    assert [tuple(g) if g else None for g in device["grid"].to_pylist()] == grids
    assert device["collective"].drop_null().to_pylist()
    shapes = [
        timeline.shapes[s].dims.decode() or None if s >= 0 else None for s in timeline.host.shapes
    ]
    assert host["input_dims"].to_pylist() == shapes


def test_nothing_to_write_is_an_empty_table(tmp_path: Path) -> None:
    empty = replace(small(), host=make_events(HostEvents), device=make_events(DeviceEvents))
    for suffix, read in FORMATS.items():
        path = tmp_path / f"e{suffix}"
        export_timelines([empty], path)
        assert read(path).num_rows == 0


def test_times_beyond_64_bits_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "far.parquet"
    export_timelines([replace(small(), origin_ns=2**63 - 10)], path)
    table = parquet.read_table(path)
    assert table["start_ns"].null_count == 5
    assert table["relative_ns"].to_pylist() == [0, 5, 20, 60, 70]


def test_existing_files_are_kept_unless_forced(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    path.write_bytes(b"precious")
    with pytest.raises(UsageError, match="--force"):
        export_timelines([small()], path)
    assert path.read_bytes() == b"precious"
    export_timelines([small()], path, force=True)
    assert parquet.read_table(path).num_rows == 5
    assert [p.name for p in tmp_path.iterdir()] == ["t.parquet"]


def test_a_failed_export_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.parquet"
    path.write_bytes(b"precious")

    def broken(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(module._Table, "_batch", broken)
    with pytest.raises(StepscopeError, match="disk full"):
        export_timelines([small()], path, force=True)
    assert path.read_bytes() == b"precious"
    assert [p.name for p in tmp_path.iterdir()] == ["t.parquet"]


def test_unwritable_places_and_other_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StepscopeError, match="cannot be written"):
        export_timelines([small()], tmp_path / "absent" / "t.parquet")
    with pytest.raises(UsageError, match=r"\.parquet, \.arrow or \.feather"):
        export_timelines([small()], tmp_path / "t.csv")


def test_without_pyarrow_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtra, match=r"stepscope\[export\]"):
        export_timelines([small()], tmp_path / "t.parquet")
