"""Nsight Systems exports: the real sample against SQL, other schemas, and damage."""

import gzip
import random
import sqlite3
import stat
from collections import Counter
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from plain import TRACES

from stepscope.record.errors import StepscopeError
from stepscope.record.timeline import (
    NOTHING,
    DeviceInfo,
    DeviceKind,
    Geometry,
    HostKind,
    Timeline,
    distinct_rows,
)
from stepscope.trace.nsight.events import call_name
from stepscope.trace.nsight.sqlite_export import UnreadableReport, export_report
from stepscope.trace.nsight.systems import read_nsys

SECOND = 1_000_000_000


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("nsys") / "h100 50% #1?.sqlite"  # to be quoted in a URI
    path.write_bytes(gzip.decompress((TRACES / "h100_2gpu_1s.sqlite.gz").read_bytes()))
    return path


@pytest.fixture(scope="module")
def timeline(sample: Path) -> Timeline:
    return read_nsys(sample)


def ask(path: Path, sql: str) -> list[tuple]:
    copy = path.with_name("copy.sqlite")
    copy.write_bytes(path.read_bytes())
    with closing(sqlite3.connect(copy)) as connection:
        return connection.execute(sql).fetchall()


def global_id(pid: int, tid: int = 0) -> int:
    return 1 << 48 | pid << 24 | tid


def make(path: Path, tables: dict[str, tuple[str, list[tuple]]]) -> Path:
    """A database from each table's columns and rows; columns have no types, so any value fits."""
    with closing(sqlite3.connect(path)) as connection:
        for name, (columns, rows) in tables.items():
            connection.execute(f"create table {name} ({columns})")
            marks = ", ".join("?" * len(columns.split(",")))
            connection.executemany(f"insert into {name} values ({marks})", rows)
        connection.commit()
    return path


def names(timeline: Timeline, column: np.ndarray) -> list[str]:
    return [timeline.name_of(index) for index in column.tolist()]


STRINGS = (
    "id, value",
    [(1, "gemm<float>(float*)"), (2, "cudaLaunchKernel_v7000"), (3, "main"), (4, "poll")],
)
CALLS = "start, end, globalTid, correlationId, nameId"
KERNELS = "start, end, deviceId, streamId, correlationId, globalPid, demangledName"


# The real sample


def test_sample_has_every_row_of_the_export(sample: Path, timeline: Timeline) -> None:
    (counts,) = ask(
        sample,
        "select (select count(*) from CUPTI_ACTIVITY_KIND_KERNEL),"
        "(select count(*) from CUPTI_ACTIVITY_KIND_MEMCPY),"
        "(select count(*) from CUPTI_ACTIVITY_KIND_MEMSET),"
        "(select count(*) from CUPTI_ACTIVITY_KIND_RUNTIME),"
        "(select count(*) from NVTX_EVENTS),"
        "(select count(*) from CUPTI_ACTIVITY_KIND_OVERHEAD),"
        "(select count(*) from CUPTI_ACTIVITY_KIND_SYNCHRONIZATION)",
    )
    kinds = np.bincount(timeline.device.kind, minlength=3)
    host = np.bincount(timeline.host.kind, minlength=5)
    ranges = host[HostKind.OPERATOR] + host[HostKind.ANNOTATION]
    overhead = host[HostKind.OVERHEAD]
    assert (*kinds, host[HostKind.RUNTIME], ranges, overhead, len(timeline.syncs)) == counts
    assert timeline.quality.read == timeline.quality.kept == sum(counts)
    assert not timeline.quality.dropped
    assert not timeline.quality.repaired


def test_sample_kernels_have_the_times_names_and_sizes_of_the_export(
    sample: Path, timeline: Timeline
) -> None:
    expected = ask(
        sample,
        "select k.start, k.end - k.start, s.value, k.deviceId, k.streamId, k.gridX, k.gridY,"
        " k.gridZ, k.blockX, k.registersPerThread, k.staticSharedMemory + k.dynamicSharedMemory"
        " from CUPTI_ACTIVITY_KIND_KERNEL k join StringIds s on s.id = k.demangledName",
    )
    device = timeline.device
    (base,) = ask(
        sample,
        "select startTime - utcEpochNs from ANALYSIS_DETAILS, TARGET_INFO_SESSION_START_TIME",
    )[0]
    read = []
    for n in np.flatnonzero(device.kind == DeviceKind.KERNEL).tolist():
        stream = timeline.streams[device.stream[n]]
        shape = timeline.geometries[device.geometry[n]]
        assert shape.grid is not None
        assert shape.block is not None
        read.append(
            (
                int(device.start[n]) + timeline.origin_ns + base,
                int(device.duration[n]),
                timeline.name_of(device.name[n]),
                stream.device,
                int(stream.stream),
                *shape.grid,
                shape.block[0],
                shape.registers,
                shape.shared_bytes,
            )
        )
    assert sorted(read) == sorted(expected)


def test_sample_busy_time_of_each_device_equals_a_sweep_over_the_export(
    sample: Path, timeline: Timeline
) -> None:
    for number in (0, 1):
        rows = ask(
            sample,
            " union all ".join(
                f"select start, end from CUPTI_ACTIVITY_KIND_{t} where deviceId = {number}"
                for t in ("KERNEL", "MEMCPY", "MEMSET")
            ),
        )
        edges = sorted([(s, 1) for s, _ in rows] + [(e, -1) for _, e in rows])
        busy = running = last = 0
        for time, step in edges:
            busy += time - last if running else 0
            running, last = running + step, time
        device = timeline.device
        on = np.array([s.device == number for s in timeline.streams])[device.stream]
        start, end = device.start[on], np.maximum.accumulate(device.end[on])
        idle = np.maximum(start[1:] - end[:-1], 0).sum()
        assert int(end[-1] - start[0] - idle) == busy > SECOND // 10


def test_sample_launches_are_those_of_the_same_process_and_correlation(
    sample: Path, timeline: Timeline
) -> None:
    tables = ("KERNEL", "MEMCPY", "MEMSET")
    expected = sum(
        ask(
            sample,
            f"select count(*) from CUPTI_ACTIVITY_KIND_{t} d where exists (select 1 from "
            "CUPTI_ACTIVITY_KIND_RUNTIME r where r.correlationId = d.correlationId "
            "and r.globalTid >> 24 = d.globalPid >> 24)",
        )[0][0]
        for t in tables
    )
    device, host = timeline.device, timeline.host
    linked = device.launch != NOTHING
    assert int(linked.sum()) == expected > 2000
    launches = device.launch[linked]
    assert np.array_equal(host.correlation[launches], device.correlation[linked])
    assert set(names(timeline, host.name[launches])) == {
        "cudaLaunchKernel",
        "cudaLaunchKernelExC",
        "cudaMemcpyAsync",
        "cudaMemsetAsync",
    }
    process = np.array([int(t.pid) for t in timeline.threads])[host.thread[launches]]
    number = np.array([s.device for s in timeline.streams])[device.stream[linked]]
    assert set(zip(process.tolist(), number.tolist(), strict=True)) == {(111, 0), (112, 1)}
    missing = len(device) - expected
    assert f"{missing} device events have no recorded launch." in timeline.quality.notes


def test_sample_copies_are_named_as_pytorch_names_them(timeline: Timeline) -> None:
    other = timeline.device.kind != DeviceKind.KERNEL
    assert Counter(names(timeline, timeline.device.name[other])) == {
        "Memcpy HtoD (Pageable -> Device)": 4,
        "Memcpy HtoD (Pinned -> Device)": 446,
        "Memcpy DtoH (Device -> Pinned)": 4,
        "Memcpy DtoD (Device -> Device)": 450,
        "Memset (Device)": 22,
    }
    assert timeline.device.bytes[other].min() > 0
    assert set(timeline.device.bytes[~other].tolist()) == {NOTHING}


def test_sample_ranges_of_pytorch_become_operators(timeline: Timeline) -> None:
    host = timeline.host
    operators = host.kind == HostKind.OPERATOR
    assert {n.partition("::")[0] for n in names(timeline, host.name[operators])} == {"aten"}
    assert host.external[operators].min() > 0
    annotations = names(timeline, host.name[host.kind == HostKind.ANNOTATION])
    assert "FSDP::inputs_to_device" in annotations
    assert not any("op_id" in name for name in timeline.names)


def test_sample_parents_are_the_narrowest_events_around_on_the_thread(timeline: Timeline) -> None:
    host = timeline.host
    start, end = host.start, host.end
    for n in random.Random(0).sample(range(len(host)), 200):
        around = np.flatnonzero(
            (host.thread == host.thread[n])
            & (start <= start[n])
            & (end >= end[n])
            & (end > start[n])
            & (np.arange(len(host)) < n)
        )
        assert host.parent[n] == (around.max() if len(around) else NOTHING)


def test_sample_synchronisations_stand_on_the_device_of_their_context(timeline: Timeline) -> None:
    where = {
        (timeline.streams[s].device, timeline.streams[s].stream) for s in timeline.syncs.stream
    }
    assert where == {(0, "7"), (0, "22"), (0, "26"), (1, "15"), (1, "30"), (1, "34")}
    assert set(names(timeline, timeline.syncs.name)) == {"Stream Wait Event", "Stream Sync"}


def test_sample_is_ordered_and_spans_its_events(timeline: Timeline) -> None:
    host, device = timeline.host, timeline.device
    assert (np.diff(host.start) >= 0).all()
    assert (np.diff(device.start) >= 0).all()
    assert min(host.start[0], device.start[0]) == 0
    assert timeline.span == (0, max(host.end.max(), device.end.max()))
    assert timeline.threads[0].name == "python3"
    assert (timeline.tool, timeline.rank, timeline.backend) == ("nsys", None, None)


def test_reading_leaves_nothing_beside_the_file(sample: Path) -> None:
    read_nsys(sample)
    assert not list(sample.parent.glob("*-wal")) + list(sample.parent.glob("*-journal"))


# Other schemas


def test_correlations_of_two_processes_do_not_mix(tmp_path: Path) -> None:
    path = make(
        tmp_path / "two.sqlite",
        {
            "StringIds": STRINGS,
            "CUPTI_ACTIVITY_KIND_RUNTIME": (
                CALLS,
                [(10, 20, global_id(5, 5), 7, 2), (11, 21, global_id(6, 6), 7, 2)],
            ),
            "CUPTI_ACTIVITY_KIND_KERNEL": (
                KERNELS,
                [(30, 40, 0, 7, 7, global_id(6), 1), (31, 41, 0, 7, 7, global_id(5), 1)],
            ),
            "TARGET_INFO_CUDA_DEVICE": ("pid, cudaId, gpuId", [(5, 0, 2), (6, 0, 3)]),
            "TARGET_INFO_GPU": (
                "id, name, totalMemory, smCount, threadsPerWarp, maxWarpsPerSm, computeMajor,"
                "computeMinor",
                [(2, "NVIDIA H100", 80 << 30, 132, 32, 64, 9, 0), (None, "lost", 1, 1, 1, 1, 1, 1)],
            ),
        },
    )
    read = read_nsys(path)
    assert read.device.launch.tolist() == [1, 0]
    assert len(set(read.host.correlation.tolist())) == 2
    # Both call their device 0; the machine knows them as 3 and 2.
    assert [read.streams[s].device for s in read.device.stream] == [3, 2]
    assert read.devices == [DeviceInfo(2, "NVIDIA H100", 80 << 30, (9, 0), 132, 32, 2048)]


def test_streams_of_two_processes_on_one_device_stay_apart(tmp_path: Path) -> None:
    rows = [(30, 40, 0, 7, 7, global_id(6), 1), (31, 41, 0, 7, 7, global_id(5), 1)]
    path = make(
        tmp_path / "shared.sqlite",
        {"StringIds": STRINGS, "CUPTI_ACTIVITY_KIND_KERNEL": (KERNELS, rows)},
    )
    read = read_nsys(path)
    assert [read.streams[s].stream for s in read.device.stream] == ["7 of 6", "7 of 5"]


def test_old_schema_without_processes_links_to_the_only_one(tmp_path: Path) -> None:
    path = make(
        tmp_path / "old.sqlite",
        {
            "StringIds": STRINGS,
            "CUPTI_ACTIVITY_KIND_RUNTIME": (CALLS, [(10, 20, global_id(5, 5), 7, 2)]),
            "CUPTI_ACTIVITY_KIND_KERNEL": (
                "start, end, deviceId, streamId, correlationId, shortName",
                [(30, 40, 0, 7, 7, 1), (50, 60, 0, 7, 7, 99)],
            ),
        },
    )
    read = read_nsys(path)
    assert read.device.launch.tolist() == [0, 0]
    assert read.device.geometry.tolist() == [NOTHING, NOTHING]
    assert names(read, read.device.name) == ["gemm<float>(float*)", "(kernel without a name)"]
    assert read.quality.notes == ["Not in this export: copies, memsets, NVTX ranges."]


def test_graph_kernels_share_a_launch_and_whole_graphs_are_noted(tmp_path: Path) -> None:
    pid = global_id(5)
    graph = "start, end, deviceId, streamId, correlationId, globalPid, graphId"
    path = make(
        tmp_path / "graph.sqlite",
        {
            "StringIds": STRINGS,
            "CUPTI_ACTIVITY_KIND_RUNTIME": (CALLS, [(10, 20, global_id(5, 5), 7, 2)]),
            "CUPTI_ACTIVITY_KIND_KERNEL": (
                f"{KERNELS}, graphNodeId",
                [
                    (30, 40, 0, 7, 7, pid, 1, 0),
                    (50, 60, 0, 7, 7, pid, 1, 81),
                    (61, 62, 0, 7, 7, pid, 1, -5),
                ],
            ),
            "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": (graph, [(70, 95, 0, 7, 7, pid, 3)]),
        },
    )
    read = read_nsys(path)
    assert read.device.launch.tolist() == [0, 0, 0, 0]
    assert read.device.graph.tolist() == [NOTHING, 81, 2**63 - 5, 3]
    assert names(read, read.device.name)[-1] == "CUDA graph 3"
    assert any("1 CUDA graph launches (0.0 ms)" in note for note in read.quality.notes)


def test_range_texts_give_sequence_and_shapes_and_marks_are_ignored(tmp_path: Path) -> None:
    tid = global_id(5, 9)
    text = "aten::mm, seq = 12, op_id = 34, sizes = [[4, 8], [8, 2]], input_op_ids = [[3,0]]"
    path = make(
        tmp_path / "nvtx.sqlite",
        {
            "StringIds": STRINGS,
            "NVTX_EVENTS": (
                "start, end, eventType, text, textId, globalTid",
                [
                    (10, 90, 59, "step, op_id = none", None, tid),
                    (11, 50, 59, text, None, tid),
                    (12, 13, 60, None, 3, tid),
                    (14, None, 34, "a mark", None, tid),
                    (15, None, 59, "still open", None, tid),
                    (16, 20, 59, b"not text", None, None),
                ],
            ),
            "OSRT_API": ("start, end, globalTid, nameId", [(30, 45, tid, 4)]),
            "ThreadNames": ("nameId, globalTid", [(3, tid)]),
        },
    )
    read = read_nsys(path)
    host = read.host
    assert names(read, host.name) == ["step", "aten::mm", "main", "still open", "(no name)", "poll"]
    assert host.kind.tolist() == [1, 0, 1, 1, 1, 3]
    assert host.external.tolist() == [-1, 34, -1, -1, -1, -1]
    assert host.sequence.tolist() == [-1, 12, -1, -1, -1, -1]
    assert read.shapes[host.shapes[1]].dims == b"[[4,8],[8,2]]"
    assert int(host.end[3]) == read.span[1] == 80
    assert read.threads[host.thread[0]].name == "main"
    assert read.threads[host.thread[4]].pid == "unknown"
    assert read.quality.ignored == {"NVTX marks and names": 1}
    assert read.quality.repaired == {"open ranges closed at the end": 1}


def test_awaited_streams_come_from_recorded_events(tmp_path: Path) -> None:
    pid = global_id(5)
    path = make(
        tmp_path / "sync.sqlite",
        {
            "CUPTI_ACTIVITY_KIND_KERNEL": (
                f"{KERNELS}, contextId",
                [(30, 40, 4, 7, 7, pid, 1, 2), (30, 40, 4, 9, 8, pid, 1, 2)],
            ),
            "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": (
                "start, end, deviceId, contextId, streamId, correlationId, globalPid, syncType,"
                "eventSyncId",
                [(41, 42, 0, 2, 9, 1, pid, 2, 77), (43, 50, 0, 2, 0xFFFFFFFF, 2, pid, 4, None)],
            ),
            "CUPTI_ACTIVITY_KIND_CUDA_EVENT": ("globalPid, eventSyncId, streamId", [(pid, 77, 7)]),
        },
    )
    read = read_nsys(path)
    assert names(read, read.syncs.name) == ["Stream Wait Event", "Context Sync"]
    assert [read.streams[s].stream if s >= 0 else None for s in read.syncs.stream] == ["9", None]
    assert [read.streams[s].stream if s >= 0 else None for s in read.syncs.waits_for] == ["7", None]
    assert {s.device for s in read.streams} == {4}


def test_copies_without_kinds_of_memory_say_what_is_known(tmp_path: Path) -> None:
    path = make(
        tmp_path / "copies.sqlite",
        {
            "CUPTI_ACTIVITY_KIND_MEMCPY": (
                "start, end, deviceId, streamId, bytes, copyKind",
                [(1, 2, 0, 7, 64, 1), (3, 4, 0, 7, 64, 99)],
            ),
            "CUPTI_ACTIVITY_KIND_MEMSET": (
                "start, end, deviceId, streamId, bytes",
                [(5, 6, 0, 7, 8)],
            ),
        },
    )
    read = read_nsys(path)
    assert names(read, read.device.name) == [
        "Memcpy HtoD (Unknown -> Device)",
        "Memcpy Unknown (Unknown -> Unknown)",
        "Memset (Unknown)",
    ]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("cudaLaunchKernel_v7000", "cudaLaunchKernel"),
        ("cudaMemcpyAsync_v3020_ptsz", "cudaMemcpyAsync"),
        ("cudaLaunchKernel_ptsz", "cudaLaunchKernel"),
        ("cuLaunchKernelEx", "cuLaunchKernelEx"),
        ("pthread_cond_wait", "pthread_cond_wait"),
    ],
)
def test_calls_lose_their_version(written: str, meant: str) -> None:
    assert call_name(written) == meant


# Damage


def test_odd_values_are_mended_or_dropped_and_counted(tmp_path: Path) -> None:
    pid = global_id(5)
    path = make(
        tmp_path / "odd.sqlite",
        {
            "StringIds": STRINGS,
            "CUPTI_ACTIVITY_KIND_KERNEL": (
                KERNELS,
                [
                    (100, 140, 0, 7, 7, pid, 1),
                    (150, 120, 0, 7, 2**40, pid, 1),  # ends before it starts
                    (None, 120, 0, 7, 7, pid, 1),
                    ("soon", 120, 0, 7, 7, pid, 1),
                    (2**62, 2**62 + 5, 0, 7, 7, pid, 1),
                    (-4, 120, 0, 7, 7, pid, 1),
                    (0, 0, 0, 7, 7, pid, 1),  # CUPTI did not get the times
                    (160, 2**62, 0, 7, 7, pid, 1),
                    (170, 2.5, None, "x", b"y", "z", 1.5),
                ],
            ),
        },
    )
    read = read_nsys(path)
    assert read.device.start.tolist() == [0, 50, 60, 70]
    assert read.device.duration.tolist() == [40, 0, 0, 0]
    assert read.device.correlation.tolist()[1] == NOTHING
    assert read.quality.dropped == {"kernels without a start": 5}
    assert read.quality.repaired == {"kernels without a valid end, taken as 0 ns": 3}
    assert (read.quality.read, read.quality.kept) == (9, 4)


def test_a_truncated_export_gives_what_it_has_or_one_error(sample: Path, tmp_path: Path) -> None:
    whole = sample.read_bytes()
    path = tmp_path / "cut.sqlite"
    kept = []
    for share in range(1, 20):
        path.write_bytes(whole[: len(whole) * share // 20])
        try:
            read = read_nsys(path)
        except UnreadableReport:
            continue
        assert read.quality.truncated
        assert any(note.startswith("Damaged") for note in read.quality.notes)
        assert read.quality.kept == len(read.host) + len(read.device) + len(read.syncs)
        kept.append(read.quality.kept)
    assert len(kept) > 10
    assert 20_000 < max(kept) <= 27_388


def test_flipped_bytes_end_in_a_result_or_one_error(sample: Path, tmp_path: Path) -> None:
    whole = sample.read_bytes()
    source = random.Random(3)
    path = tmp_path / "flipped.sqlite"
    for _ in range(25):
        damaged = bytearray(whole)
        for _ in range(200):
            damaged[source.randrange(len(damaged))] = source.randrange(256)
        path.write_bytes(damaged)
        try:
            read = read_nsys(path)
        except StepscopeError:
            continue
        assert (read.device.duration >= 0).all()
        assert read.host.parent.max(initial=NOTHING) < len(read.host)


def all_to(page: bytes, child: int) -> bytes:
    """An inner page of a table with each of its pointers set to one page."""
    changed = bytearray(page)
    for n in range(int.from_bytes(page[3:5], "big")):
        cell = int.from_bytes(page[12 + 2 * n : 14 + 2 * n], "big")
        changed[cell : cell + 4] = child.to_bytes(4, "big")
    changed[8:12] = child.to_bytes(4, "big")
    return bytes(changed)


def test_pages_that_point_at_each_other_do_not_multiply_rows(tmp_path: Path) -> None:
    rows = [(n + 1, n + 2, 0, 7, n, global_id(5), 1) for n in range(15_000)]
    path = make(tmp_path / "loop.sqlite", {"CUPTI_ACTIVITY_KIND_KERNEL": (KERNELS, rows)})
    content = bytearray(path.read_bytes())
    (root,) = ask(path, "select rootpage from sqlite_master")[0]
    inner, leaf = root + 1, root + 2  # were leaves, both of them
    top = bytes(content[(root - 1) * 4096 : root * 4096])
    content[(inner - 1) * 4096 : inner * 4096] = all_to(top, leaf)
    content[(root - 1) * 4096 : root * 4096] = all_to(top, inner)
    path.write_bytes(content)
    read = read_nsys(path)
    assert read.quality.truncated
    assert len(content) // 4 < len(read.device) <= len(content) // 4 + 4_000


def test_a_schema_with_undecodable_names_ends_in_a_result_or_one_error(
    sample: Path, tmp_path: Path
) -> None:
    path = tmp_path / "schema.sqlite"
    broken = sample.read_bytes().replace(b"CREATE TABLE NVTX", b"CREA\xa0E TABLE NVTX")
    path.write_bytes(broken.replace(b"NVTX_EVENTS", b"NV\xa0X_EVENTS"))
    read = read_nsys(path)
    assert read.quality.truncated
    assert len(read.device) == 4368


@pytest.mark.parametrize(
    "content", [b"", b"not a database at all" * 100, b"SQLite format 3\0" * 99]
)
def test_other_files_are_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "no.sqlite"
    path.write_bytes(content)
    with pytest.raises(UnreadableReport, match=r"no\.sqlite.*nsys export --type sqlite"):
        read_nsys(path)


def test_databases_of_others_and_missing_files_are_refused(tmp_path: Path) -> None:
    other = make(tmp_path / "other.sqlite", {"people": ("name", [("x",)])})
    with pytest.raises(UnreadableReport, match="no Nsight Systems export"):
        read_nsys(other)
    with pytest.raises(UnreadableReport, match="no such file"):
        read_nsys(tmp_path / "absent.sqlite")


def test_views_in_the_place_of_tables_are_not_run(tmp_path: Path) -> None:
    path = make(tmp_path / "view.sqlite", {"t": ("a", [(1,)])})
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(
            "create view CUPTI_ACTIVITY_KIND_KERNEL as with recursive r(start, end) as "
            "(select 1, 2 union all select start + 1, end + 1 from r) select * from r"
        )
        connection.commit()
    with pytest.raises(UnreadableReport, match="no Nsight Systems export"):
        read_nsys(path)


def test_an_export_without_events_is_an_empty_timeline(tmp_path: Path) -> None:
    read = read_nsys(make(tmp_path / "e.sqlite", {"CUPTI_ACTIVITY_KIND_KERNEL": (KERNELS, [])}))
    assert (len(read.host), len(read.device), read.span) == (0, 0, (0, 0))


def test_distinct_rows_survive_numbers_of_any_size() -> None:
    wide = np.array([-(2**62), 2**62, 0, -(2**62)], np.int64)
    rows, which = distinct_rows([wide, wide[::-1].copy(), np.array([1, 1, 1, 1])])
    assert [rows[n] for n in which] == list(
        zip(wide.tolist(), wide[::-1].tolist(), [1] * 4, strict=True)
    )


# Reports


def program(folder: Path, name: str, script: str) -> None:
    folder.mkdir()
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_reports_are_exported_by_the_installed_program(
    tmp_path: Path, sample: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path / "bin", "nsys", f'echo "$@" > "{tmp_path}/said"; cp "{sample}" "$5"')
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    report = tmp_path / "my run; rm -rf $HOME.nsys-rep"
    report.write_bytes(b"report")
    made = export_report(report, tmp_path)
    assert made == tmp_path / "my run; rm -rf $HOME.sqlite"
    assert (tmp_path / "said").read_text().split()[:3] == ["export", "--type", "sqlite"]
    assert len(read_nsys(made).device) == 4368


def test_a_missing_or_failing_nsys_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = tmp_path / "a.nsys-rep"
    report.write_bytes(b"report")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(StepscopeError, match=r"nsys is not installed: .*the \.sqlite"):
        export_report(report, tmp_path)
    program(tmp_path / "bin", "nsys", "echo no good >&2; exit 3")
    with pytest.raises(StepscopeError, match="exit code 3: no good"):
        export_report(report, tmp_path)
    (tmp_path / "bin" / "nsys").write_text("#!/bin/sh\n")
    with pytest.raises(StepscopeError, match="wrote no SQLite file"):
        export_report(report, tmp_path)
    with pytest.raises(StepscopeError, match="no such file"):
        export_report(tmp_path / "absent.nsys-rep", tmp_path)


def test_geometry_keeps_what_is_known(tmp_path: Path) -> None:
    path = make(
        tmp_path / "g.sqlite",
        {
            "CUPTI_ACTIVITY_KIND_KERNEL": (
                f"{KERNELS}, gridX, gridY, gridZ, staticSharedMemory",
                [(1, 2, 0, 7, 1, global_id(1), 1, 4, 2, 1, 256)],
            )
        },
    )
    assert read_nsys(path).geometries == [Geometry(grid=(4, 2, 1), shared_bytes=256)]
