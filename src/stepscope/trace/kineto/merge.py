"""One timeline from what several readers read and what the trace says about itself."""

import json
import re
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from stepscope.record.timeline import (
    NOTHING,
    Column,
    DeviceEvents,
    DeviceInfo,
    HostEvents,
    MemoryEvents,
    Quality,
    SyncEvents,
    Timeline,
    column_types,
    make_events,
)
from stepscope.trace.format import Drop
from stepscope.trace.kineto.chunks import INTERNED_COLUMNS, Chunk, Columns, HalfSpan, merge_tables
from stepscope.trace.kineto.events import FIRST_DEVICE_CODE
from stepscope.trace.kineto.reader import CollectedParts
from stepscope.trace.limits import check_totals, fold_devices
from stepscope.trace.link import link_launches, link_parents

_EVENTS = re.compile(r'"traceEvents"\s*:\s*\[')
MOST_DEVICES = 1024


@dataclass(frozen=True, slots=True)
class TraceHeader:
    """None where the trace does not say."""

    whole: bool  # the text was complete JSON
    base_ns: int = 0  # what the writer took off every time
    rank: int | None = None
    world_size: int | None = None
    backend: str | None = None
    devices: list[DeviceInfo] = field(default_factory=list)


def read_header(outside: bytes) -> TraceHeader:
    """From a trace's text without its events: `{…, "traceEvents": [], …}`."""
    text = outside.decode("utf-8-sig", "replace")
    document = _parsed(text)
    whole = document is not None
    if document is None and (events := _EVENTS.search(text)):
        document = _parsed(text[: events.end()] + "]}")
    if not isinstance(document, dict):
        return TraceHeader(whole)
    distributed, devices = document.get("distributedInfo"), document.get("deviceProperties")
    distributed = distributed if isinstance(distributed, dict) else {}
    devices = devices if isinstance(devices, list) else []
    backend = distributed.get("backend")
    return TraceHeader(
        whole,
        _whole_number(document.get("baseTimeNanoseconds")) or 0,
        _whole_number(distributed.get("rank")),
        _whole_number(distributed.get("world_size")),
        backend if isinstance(backend, str) else None,
        [_device(n, d) for n, d in enumerate(devices[:MOST_DEVICES]) if isinstance(d, dict)],
    )


def _parsed(text: str) -> Any:
    try:
        return json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return None


def _whole_number(value: Any) -> int | None:
    """A number of at most 64 bits, also where it is written as text."""
    try:
        number = int(value) if isinstance(value, int | str) else None
    except ValueError:
        return None
    return number if number is not None and abs(number) < 2**63 else None


def _device(index: int, properties: dict[str, Any]) -> DeviceInfo:
    def number(name: str) -> int | None:
        return _whole_number(properties.get(name))

    name, major, minor = properties.get("name"), number("computeMajor"), number("computeMinor")
    recorded_id = number("id")
    return DeviceInfo(
        index=index if recorded_id is None else recorded_id,
        name=name if isinstance(name, str) else None,
        memory_bytes=number("totalGlobalMem"),
        capability=None if major is None or minor is None else (major, minor),
        multiprocessors=number("numSms"),
        warp_size=number("warpSize"),
        max_threads_per_sm=number("maxThreadsPerMultiprocessor"),
    )


def _join_readers(
    readers: list[CollectedParts],
) -> tuple[dict[str, list[Any]], dict[type, Columns], list[Chunk]]:
    """The interned lists, the columns of each table ({} where it is empty), and what else was said.

    All in the file's order and in common numbers. Takes the readers' columns one by one, so that
    none is there twice for long.
    """
    order = sorted(
        (part.number, reader, place)
        for reader, collected in enumerate(readers)
        for place, part in enumerate(collected.parts)
    )
    chunks = [readers[reader].parts[place].chunk for _, reader, place in order]
    owners = [reader for _, reader, _ in order]
    lists, maps = merge_tables(list(zip(owners, chunks, strict=True)))
    for owner, chunk in zip(owners, chunks, strict=True):
        threads, names = maps[owner]["threads"], maps[owner]["names"]
        chunk.halves = [
            (int(threads[thread]), time, kind, int(names[name]))
            for thread, time, kind, name in chunk.halves
        ]
    tables: dict[type, Columns] = {}
    for table, interned in INTERNED_COLUMNS.items():
        holders = [n for n, reader in enumerate(readers) if table in reader.columns]
        # Where each part of a reader begins in its columns.
        begins = {
            n: np.cumsum([0, *(rows.get(table, 0) for rows in readers[n].rows)]) for n in holders
        }
        tables[table] = {}
        for name in column_types(table) if holders else ():
            taken = {n: readers[n].columns[table].pop(name).take() for n in holders}
            if name in interned:
                taken = {n: maps[n][interned[name]][column] for n, column in taken.items()}
            parts = [taken[n][begins[n][k] : begins[n][k + 1]] for _, n, k in order if n in taken]
            tables[table][name] = taken[0] if len(readers) == 1 else np.concatenate(parts)
    return lists, tables, chunks


def _pair_halves(halves: list[HalfSpan], quality: Quality) -> Columns:
    """Columns of host events: each end belongs to the last open beginning on its thread."""
    open_: dict[int, list[HalfSpan]] = {}
    rows: list[tuple[int, int, int, int, int]] = []
    alone = others = 0
    for half in sorted(halves, key=lambda half: half[1]):
        thread, time, kind, name = half
        stack = open_.setdefault(thread, [])
        if kind != NOTHING:
            stack.append(half)
        elif stack:
            _, begin, kind, name = stack.pop()
            if kind < FIRST_DEVICE_CODE:
                rows.append((kind, name, begin, time - begin, thread))
            else:
                others += 2
        else:
            alone += 1
    alone += sum(map(len, open_.values()))
    if rows:
        quality.ignored["second halves of begin and end"] = len(rows)
    if others:
        quality.ignored["begin and end of other categories"] = others
    if alone:
        quality.dropped[Drop.UNPAIRED] = alone
    names = ("kind", "name", "start", "duration", "thread")
    columns = zip(*rows, strict=True) if rows else [()] * len(names)
    dtypes = column_types(HostEvents)
    return {n: np.array(c, dtypes[n]) for n, c in zip(names, columns, strict=True)}


_TIME = {HostEvents: "start", DeviceEvents: "start", MemoryEvents: "time", SyncEvents: "start"}
_HOUR_NS = 3600 * 10**9


def merge_readers(source: str, readers: list[CollectedParts], about: TraceHeader) -> Timeline:
    """From what each reader read; takes their columns as it goes, to save memory."""
    lists, tables, chunks = _join_readers(readers)
    labels = {key: label for chunk in chunks for key, label in chunk.labels.items()}
    quality = Quality(read=sum(chunk.read for chunk in chunks))
    for name in ("repaired", "dropped", "ignored"):
        total: Counter[str] = sum((getattr(chunk, name) for chunk in chunks), Counter())
        setattr(quality, name, dict(total))
    if halves := [half for chunk in chunks for half in chunk.halves]:
        joined = Chunk({HostEvents: tables[HostEvents]})
        joined.add(HostEvents, _pair_halves(halves, quality))
        tables |= joined.columns
    _drop_zero_times(tables, quality)
    origin = min((int(t.min()) for t in _times(tables) if len(t)), default=0)
    for table, columns in tables.items():
        if not columns:
            continue
        time = columns[_TIME[table]]
        time -= origin
        # In the file's order where times are equal.
        if table is HostEvents:
            order = np.lexsort((-columns["duration"], time))
        else:
            order = np.argsort(time, kind="stable")
        for name, column in columns.items():
            columns[name] = column[order]
    host = make_events(HostEvents, **tables[HostEvents])
    device = make_events(DeviceEvents, **tables[DeviceEvents])
    memory = make_events(MemoryEvents, **tables[MemoryEvents])
    syncs = make_events(SyncEvents, **tables[SyncEvents])
    check_totals(host, device, memory, syncs)
    lists["streams"] = fold_devices(lists["streams"], device.stream, quality)
    host = replace(host, parent=link_parents(host.thread, host.start, host.duration))
    known = (host.kind, host.name, host.start, host.correlation)
    launch = link_launches(*known, lists["names"], device.start, device.correlation)
    device = replace(device, launch=launch)
    lists["threads"] = [replace(t, name=labels.get((t.pid, t.tid), "")) for t in lists["threads"]]
    quality.kept = len(host) + len(device) + len(memory) + len(syncs)
    ends = [host.end, device.end, memory.time, syncs.start + syncs.duration]
    return Timeline(
        source=source,
        tool="kineto",
        origin_ns=about.base_ns + origin,
        **lists,
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
        dropped = quality.dropped.setdefault(Drop.ZERO_TIME, 0)
        quality.dropped[Drop.ZERO_TIME] = dropped + int((~keep).sum())
        for name, column in columns.items():
            columns[name] = column[keep]
