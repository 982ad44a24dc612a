"""Nsight Systems: an SQLite export as a timeline, with its clock, threads and devices."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import numpy as np

from stepscope.record.errors import StepscopeError
from stepscope.record.timeline import (
    NOTHING,
    Column,
    DeviceEvents,
    DeviceInfo,
    HostEvents,
    MemoryEvents,
    Quality,
    SyncEvents,
    Thread,
    Timeline,
    column_types,
    make_events,
)
from stepscope.trace.format import TraceFormat
from stepscope.trace.limits import check_totals, fold_devices
from stepscope.trace.link import link_launches, link_parents
from stepscope.trace.nsight.events import (
    CALLS,
    COPIES,
    GRAPHS,
    KERNELS,
    RANGES,
    SETS,
    SYSTEM_CALLS,
    read_device,
    read_host,
    read_syncs,
    renumber_devices,
    streams_of,
)
from stepscope.trace.nsight.sqlite_export import (
    NO_TIME,
    Database,
    Interned,
    Rows,
    UnreadableReport,
    export_report,
    process_of,
)


def _utc_offset(database: Database) -> int:
    """What to add to the export's times for nanoseconds since 1970, 0 where it is not said."""
    session = database.records("TARGET_INFO_SESSION_START_TIME", ["utcEpochNs"])
    analysis = database.records("ANALYSIS_DETAILS", ["startTime"])
    began = _integer(session[0]["utcEpochNs"]) if session else None
    # Times count from the start of the session or, in newer exports, on the system's clock.
    start = _integer(analysis[0]["startTime"]) if analysis else 0
    return 0 if began is None else began - (start or 0)


def _threads_of(database: Database, identifiers: Column) -> tuple[list[Thread], Column]:
    """The threads behind serialised ids, and for each id which one it is."""
    rows = database.records("ThreadNames", ["globalTid", "nameId"])
    labels = {row["globalTid"]: row["nameId"] for row in rows}
    known, which = np.unique(identifiers, return_inverse=True)
    wanted = [_integer(labels.get(key)) or NOTHING for key in known.tolist()]
    texts = database.strings(np.array(wanted, np.int64))
    threads = [
        Thread(str(key >> 24 & 0xFFFFFF), str(key & 0xFFFFFF), texts.get(name, ""))
        if key >= 0
        else Thread("unknown", "unknown")
        for key, name in zip(known.tolist(), wanted, strict=True)
    ]
    return threads, which.astype(np.int32)


def _device_numbers(database: Database) -> dict[tuple[int, int], int]:
    """(process, the number it knows a device by) to the machine's number for it.

    Processes started with different CUDA_VISIBLE_DEVICES all call their own device 0.
    """
    rows = database.records("TARGET_INFO_CUDA_DEVICE", ["pid", "cudaId", "gpuId"])
    return {
        (row["pid"], row["cudaId"]): row["gpuId"]
        for row in rows
        if all(_integer(value) is not None for value in row.values())
    }


def _devices_of(database: Database) -> list[DeviceInfo]:
    """The GPUs of the machine, by its own numbers."""
    columns = ["id", "name", "totalMemory", "smCount", "threadsPerWarp", "maxWarpsPerSm"]
    capability = ["computeMajor", "computeMinor"]
    devices = []
    for row in database.records("TARGET_INFO_GPU", [*columns, *capability]):
        numbers = {column: _integer(row[column]) for column in row}
        index, major, minor = (numbers[column] for column in ("id", *capability))
        warp, warps = numbers["threadsPerWarp"], numbers["maxWarpsPerSm"]
        if index is not None:
            info = DeviceInfo(
                index=index,
                name=row["name"] if isinstance(row["name"], str) else None,
                memory_bytes=numbers["totalMemory"],
                capability=None if major is None or minor is None else (major, minor),
                multiprocessors=numbers["smCount"],
                warp_size=warp,
                max_threads_per_sm=None if warp is None or warps is None else warp * warps,
            )
            devices.append(info)
    return devices


def _integer(value: Any) -> int | None:
    return value if isinstance(value, int) and 0 <= value < 2**62 else None


_Table = TypeVar("_Table", HostEvents, DeviceEvents, SyncEvents)
_NEEDED = {
    KERNELS: "kernels",
    COPIES: "copies",
    SETS: "memsets",
    CALLS: "CUDA calls",
    RANGES: "NVTX ranges",
}


def read_nsys(path: Path) -> Timeline:
    """The timeline of all processes in an SQLite export. Raises UnreadableReport."""
    database = Database(path)
    try:
        if not any(database.has(t, "start", "end") for t in (*_NEEDED, SYSTEM_CALLS, GRAPHS)):
            raise UnreadableReport(
                f"{path}: an SQLite database, but no Nsight Systems export with events; make one "
                "with `nsys export --type sqlite FILE`"
            )
        return _timeline(database, str(path))
    except UnreadableReport:
        raise
    except StepscopeError as error:
        raise UnreadableReport(f"{path}: {error}") from None
    finally:
        database.close()


def _timeline(database: Database, source: str) -> Timeline:
    quality = Quality()
    names, shapes, geometries = Interned(), Interned(), Interned()
    host = read_host(database, names, shapes, quality)
    device = read_device(database, names, geometries, quality)
    callers = host["thread"][(host["correlation"] >= 0) & (host["thread"] >= 0)]
    processes = np.unique(process_of(callers))
    if len(processes) == 1:  # work of an unknown process is of the only one there is
        unknown = device["process"] == NOTHING
        device["process"] = np.where(unknown, processes[0], device["process"])
    device = renumber_devices(device, _device_numbers(database))
    syncs = read_syncs(database, names, device, quality)
    groups = [host, device, syncs]
    first = min((int(g["start"].min()) for g in groups if len(g["start"])), default=0)
    last = max((int(g["end"].max()) for g in groups if len(g["end"])), default=first)
    last = max(last, int(host["start"].max(initial=last)))
    host["end"] = np.where(host["end"] == NO_TIME, last, host["end"])  # ranges still open
    host, device, syncs = _ordered(host), _ordered(device), _ordered(syncs)

    awaited = {**syncs, "stream": syncs["waits_for"]}
    streams, (stream, waiting, waits_for) = streams_of([device, syncs, awaited])
    sync_streams = {"stream": waiting, "waits_for": waits_for}
    threads, thread = _threads_of(database, host["thread"])
    correlation = _correlations(host, device, syncs)
    called = (host["kind"], host["name"], host["start"], correlation[0])
    launch = link_launches(*called, list(names), device["start"], correlation[1])
    parent = link_parents(thread, host["start"], host["end"] - host["start"])
    quality.kept = sum(len(g["start"]) for g in groups)
    _note(database, quality, int((launch == NOTHING).sum()))
    linked = {"thread": thread, "correlation": correlation[0], "parent": parent}
    host_events = _events(HostEvents, host, first, **linked)
    linked = {"stream": stream, "correlation": correlation[1], "launch": launch}
    device_events = _events(DeviceEvents, device, first, **linked)
    sync_events = _events(SyncEvents, syncs, first, correlation=correlation[2], **sync_streams)
    memory = make_events(MemoryEvents)
    check_totals(host_events, device_events, memory, sync_events)
    return Timeline(
        source=source,
        tool="nsys",
        origin_ns=first + _utc_offset(database),
        names=list(names),
        threads=threads,
        streams=fold_devices(streams, stream, quality),
        shapes=list(shapes),
        geometries=list(geometries),
        collectives=[],
        devices=_devices_of(database),
        host=host_events,
        device=device_events,
        memory=memory,
        syncs=sync_events,
        span=(0, last - first),
        rank=None,
        world_size=None,
        backend="nccl" if any(name.startswith("nccl") for name in names) else None,
        quality=quality,
    )


def _events(table: type[_Table], rows: Rows, first: int, **linked: Column) -> _Table:
    """Rows as a table of the timeline, their times from `first` on."""
    columns = {name: rows[name] for name in column_types(table) if name in rows} | linked
    times = {"start": rows["start"] - first, "duration": rows["end"] - rows["start"]}
    return make_events(table, **columns | times)


def _ordered(rows: Rows) -> Rows:
    order = np.lexsort((rows["start"] - rows["end"], rows["start"]))
    return {name: column[order] for name, column in rows.items()}


def _correlations(host: Rows, device: Rows, syncs: Rows) -> list[Column]:
    """Correlation ids that are unique in the report: CUPTI counts in each process anew.

    The process stands above the 32 bits of CUPTI's own number; nothing is added for the first.
    """
    processes = [process_of(host["thread"]), device["process"], syncs["process"]]
    calling = host["correlation"] >= 0
    known = np.unique(np.concatenate([processes[0][calling], *processes[1:]]))
    known = known[known >= 0]
    columns = []
    for rows, process in zip((host, device, syncs), processes, strict=True):
        own = rows["correlation"]
        valid = (own >= 0) & (own < 2**32) & ((process >= 0) | (len(known) <= 1))
        columns.append(np.where(valid, own + (np.searchsorted(known, process) << 32), NOTHING))
    return columns


def _note(database: Database, quality: Quality, unlaunched: int) -> None:
    missing = [what for table, what in _NEEDED.items() if not database.has(table, "start", "end")]
    if missing:
        quality.notes.append(f"Not in this export: {', '.join(missing)}.")
    if unlaunched:
        quality.notes.append(f"{unlaunched} device events have no recorded launch.")
    if database.damaged:
        quality.truncated = True
        quality.notes.append(f"Damaged, read in part: {', '.join(database.damaged)}.")


def _read_report(path: Path) -> Timeline:
    with TemporaryDirectory(prefix="stepscope-") as folder:
        return replace(read_nsys(export_report(path, Path(folder))), source=str(path))


NSIGHT_EXPORT = TraceFormat(
    endings=(".sqlite",),
    recognises=lambda path, head: head.startswith(b"SQLite format 3\0"),
    read=lambda path, processes: read_nsys(path),
)
NSIGHT_REPORT = TraceFormat(
    endings=(".nsys-rep", ".qdrep"),
    recognises=lambda path, head: path.suffix in (".nsys-rep", ".qdrep"),
    read=lambda path, processes: _read_report(path),
)
