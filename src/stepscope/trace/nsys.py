"""Nsight Systems: an SQLite export as a timeline."""

from pathlib import Path

import numpy as np

from stepscope.record.timeline import (
    NOTHING,
    Column,
    DeviceEvents,
    HostEvents,
    MemoryEvents,
    Quality,
    SyncEvents,
    Timeline,
    events,
)
from stepscope.trace.link import launch_column, parent_column
from stepscope.trace.nsys_about import (
    device_numbers,
    devices_of,
    only_process,
    threads_of,
    utc_offset,
)
from stepscope.trace.nsys_device import COPIES, GRAPHS, KERNELS, SETS, read_device
from stepscope.trace.nsys_host import CALLS, RANGES, SYSTEM_CALLS, read_host
from stepscope.trace.nsys_rows import Interned, Rows, close_open, process_of
from stepscope.trace.nsys_streams import numbered, read_syncs, streams_of
from stepscope.trace.nsys_tables import Database, UnreadableReport

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
                f"{path}: an SQLite database, but not an export of Nsight Systems with events in "
                "it; make one with `nsys export --type sqlite FILE`"
            )
        return _timeline(database, str(path))
    finally:
        database.close()


def _timeline(database: Database, source: str) -> Timeline:
    quality = Quality()
    names, shapes, geometries = Interned(), Interned(), Interned()
    host = read_host(database, names, shapes, quality)
    device = read_device(database, names, geometries, quality)
    device = _attributed(device, only_process(host["thread"][host["correlation"] >= 0]))
    device = numbered(device, device_numbers(database))
    syncs = read_syncs(database, names, device, quality)
    groups = [host, device, syncs]
    first = min((int(g["start"].min()) for g in groups if len(g["start"])), default=0)
    last = max((int(g["end"].max()) for g in groups if len(g["end"])), default=first)
    last = max(last, int(host["start"].max(initial=last)))
    host, device, syncs = _ordered(close_open(host, last)), _ordered(device), _ordered(syncs)

    awaited = {**syncs, "stream": syncs["waits_for"]}
    streams, (stream, sync_stream, waits_for) = streams_of([device, syncs, awaited])
    threads, thread = threads_of(database, host["thread"])
    correlation = _correlations(host, device, syncs)
    launch = launch_column(
        host["kind"],
        host["name"],
        host["start"],
        correlation[0],
        list(names),
        device["start"],
        correlation[1],
    )
    quality.kept = sum(len(g["start"]) for g in groups)
    _note(database, quality, int((launch == NOTHING).sum()))
    return Timeline(
        source=source,
        tool="nsys",
        origin_ns=first + utc_offset(database),
        names=list(names),
        threads=threads,
        streams=streams,
        shapes=list(shapes),
        geometries=list(geometries),
        collectives=[],
        devices=devices_of(database),
        host=events(
            HostEvents,
            kind=host["kind"],
            name=host["name"],
            start=host["start"] - first,
            duration=host["end"] - host["start"],
            thread=thread,
            correlation=correlation[0],
            external=host["external"],
            sequence=host["sequence"],
            shapes=host["shapes"],
            parent=parent_column(thread, host["start"], host["end"] - host["start"]),
        ),
        device=events(
            DeviceEvents,
            kind=device["kind"],
            name=device["name"],
            start=device["start"] - first,
            duration=device["end"] - device["start"],
            stream=stream,
            correlation=correlation[1],
            bytes=device["bytes"],
            geometry=device["geometry"],
            graph=device["graph"],
            launch=launch,
        ),
        memory=events(MemoryEvents),
        syncs=events(
            SyncEvents,
            name=syncs["name"],
            start=syncs["start"] - first,
            duration=syncs["end"] - syncs["start"],
            stream=sync_stream,
            correlation=correlation[2],
            waits_for=waits_for,
        ),
        span=(0, last - first),
        rank=None,
        world_size=None,
        backend="nccl" if any(name.startswith("nccl") for name in names) else None,
        quality=quality,
    )


def _attributed(device: Rows, process: int | None) -> Rows:
    """Work of an export that does not say whose it was belongs to the one process there is."""
    if process is None:
        return device
    said = device["process"]
    return {**device, "process": np.where(said == NOTHING, process, said)}


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
        quality.notes.append(f"{unlaunched} pieces of device work have no recorded launch.")
    if database.damaged:
        quality.truncated = True
        quality.notes.append(f"Damaged, read in part: {', '.join(database.damaged)}.")
