"""One timeline from the chunks of a trace."""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np

from stepscope.record.timeline import (
    Column,
    DeviceEvents,
    HostEvents,
    MemoryEvents,
    Quality,
    SyncEvents,
    Timeline,
    events,
)
from stepscope.trace.kineto_chunk import Chunk, Columns, Half
from stepscope.trace.kineto_collect import Collected
from stepscope.trace.kineto_header import About
from stepscope.trace.kineto_join import join
from stepscope.trace.kineto_pairs import paired
from stepscope.trace.link import launch_column, parent_column

_TIME = {HostEvents: "start", DeviceEvents: "start", MemoryEvents: "time", SyncEvents: "start"}
_HOUR_NS = 3600 * 10**9


def merge(source: str, readers: list[Collected], about: About) -> Timeline:
    """From what each reader read; takes their columns as it goes, to save memory."""
    lists, tables, chunks = join(readers)
    labels: dict[tuple[str, str], str] = {}
    for chunk in chunks:
        labels |= chunk.labels
    quality = _counts(chunks)
    _add_halves(tables[HostEvents], [half for chunk in chunks for half in chunk.halves], quality)
    _drop_zero_times(tables, quality)
    origin = min((int(t.min()) for t in _times(tables) if len(t)), default=0)
    for table, columns in tables.items():
        _sort(table, columns, origin)
    host, device = _linked(tables[HostEvents], tables[DeviceEvents], lists["names"])
    memory = _table(MemoryEvents, tables[MemoryEvents])
    syncs = _table(SyncEvents, tables[SyncEvents])
    quality.kept = sum(map(len, (host, device, memory, syncs)))
    ends = [host.end, device.end, memory.time, syncs.start + syncs.duration]
    return Timeline(
        source=source,
        tool="kineto",
        origin_ns=about.base_ns + origin,
        names=lists["names"],
        threads=[replace(t, name=labels.get((t.pid, t.tid), "")) for t in lists["threads"]],
        streams=lists["streams"],
        shapes=lists["shapes"],
        geometries=lists["geometries"],
        collectives=lists["collectives"],
        devices=about.devices,
        host=host,
        device=device,
        memory=memory,
        syncs=syncs,
        span=(0, max((int(end.max()) for end in ends if len(end)), default=0)),
        rank=about.rank,
        world_size=about.world_size,
        backend=about.backend,
        quality=quality,
    )


def _add_halves(host: Columns, halves: list[Half], quality: Quality) -> None:
    """Put the spans that were written in two halves after the other host events."""
    if halves:
        chunk = Chunk()
        for columns in (host, paired(halves, quality)):
            if columns:
                chunk.add(HostEvents, columns)
        host.update(chunk.columns[HostEvents])


def _counts(chunks: list[Chunk]) -> Quality:
    total: dict[str, Counter[str]] = {}
    for name in ("repaired", "dropped", "ignored"):
        total[name] = sum((getattr(chunk, name) for chunk in chunks), Counter())
    return Quality(
        read=sum(chunk.read for chunk in chunks),
        repaired=dict(total["repaired"]),
        dropped=dict(total["dropped"]),
        ignored=dict(total["ignored"]),
    )


def _times(tables: dict[type, Columns]) -> list[Column]:
    return [columns[_TIME[table]] for table, columns in tables.items() if columns]


def _drop_zero_times(tables: dict[type, Columns], quality: Quality) -> None:
    """A time of zero or less where all else is hours later was never set: it would stretch all."""
    times = _times(tables)
    later = min((int(t[t > 0].min()) for t in times if (t > 0).any()), default=0)
    if later < _HOUR_NS:
        return
    for table, columns in tables.items():
        if not columns or (columns[_TIME[table]] > 0).all():
            continue
        keep = columns[_TIME[table]] > 0
        reason = "time of zero or less, far from all others"
        quality.dropped[reason] = quality.dropped.get(reason, 0) + int((~keep).sum())
        for name, column in columns.items():
            columns[name] = column[keep]


def _sort(table: type, columns: Columns, origin: int) -> None:
    """By time, from `origin`; in the file's order where times are equal."""
    if not columns:
        return
    time = columns[_TIME[table]]
    time -= origin
    if table is HostEvents:
        order = np.lexsort((-columns["duration"], time))
    else:
        order = np.argsort(time, kind="stable")
    for name, column in columns.items():
        columns[name] = column[order]


def _linked(host: Columns, device: Columns, names: list[str]) -> tuple[HostEvents, DeviceEvents]:
    calls = _table(HostEvents, host)
    work = _table(DeviceEvents, device)
    parent = parent_column(calls.thread, calls.start, calls.duration)
    launch = launch_column(
        calls.kind,
        calls.name,
        calls.start,
        calls.correlation,
        names,
        work.start,
        work.correlation,
    )
    return replace(calls, parent=parent), replace(work, launch=launch)


def _table(kind: type, columns: Columns) -> Any:
    return events(kind, **columns)
