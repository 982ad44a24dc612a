"""Columns of a piece of a trace, and the interned tables that their numbers point into."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from stepscope.record.timeline import (
    NOTHING,
    Collective,
    Column,
    DeviceEvents,
    Geometry,
    HostEvents,
    MemoryEvents,
    Shapes,
    Stream,
    SyncEvents,
    Thread,
    column_types,
)

Columns = dict[str, Column]
HalfSpan = tuple[int, int, int, int]  # thread, ns; kind and name of a beginning, NOTHING for an end


class _Interned(dict[Any, int]):
    """Anything hashable -> its number, in order of first appearance."""

    def __init__(self) -> None:
        super().__init__()
        self.new: list[Any] = []

    def __missing__(self, key: Any) -> int:
        self[key] = number = len(self)
        self.new.append(key)
        return number


BETWEEN_TEXTS = b"\0"  # joins JSON texts into one key: it cannot stand in any of them


class Tables:
    """What one reader has interned so far, as it stands in the file."""

    def __init__(self) -> None:
        self.names = _Interned()
        self.threads = _Interned()  # pid, tid
        self.streams = _Interned()  # device, stream; pid and tid for where those are missing
        self.shapes = _Interned()  # dims, types, strides, values: JSON texts, joined
        self.geometries = _Interned()  # grid and block as JSON texts, joined, then numbers
        self.collectives = _Interned()  # name, dtype, in, out, size, group, ranks as JSON text

    def take_new(self) -> dict[str, list[Any]]:
        """What was met since the last call, by table."""
        new = {}
        for name, table in vars(self).items():
            new[name], table.new = table.new, []
        return new


@dataclass(slots=True)
class Chunk:
    """Columns without values are left out."""

    columns: dict[type, Columns] = field(default_factory=dict)
    new: dict[str, list[Any]] = field(default_factory=dict)
    halves: list[HalfSpan] = field(default_factory=list)
    labels: dict[tuple[str, str], str] = field(default_factory=dict)
    read: int = 0
    repaired: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    ignored: Counter[str] = field(default_factory=Counter)

    def add(self, table: type, columns: Columns) -> None:
        """Put rows after those already there."""
        known = self.columns.get(table)
        if not known:
            self.columns[table] = columns
            return
        sizes = [len(next(iter(some.values()))) for some in (known, columns)]
        self.columns[table] = joined = {}
        for name, dtype in column_types(table).items():
            if name in known or name in columns:
                empty = (np.full(size, NOTHING, np.int8).astype(dtype) for size in sizes)
                halves = zip((known, columns), empty, strict=True)
                joined[name] = np.concatenate([some.get(name, none) for some, none in halves])


_TABLES = {
    "name": "names",
    "thread": "threads",
    "stream": "streams",
    "waits_for": "streams",
    "shapes": "shapes",
    "geometry": "geometries",
    "collective": "collectives",
}
INTERNED_COLUMNS: dict[type, dict[str, str]] = {
    events: {name: _TABLES[name] for name in column_types(events) if name in _TABLES}
    for events in (HostEvents, DeviceEvents, MemoryEvents, SyncEvents)
}
"""Which columns hold numbers of which table."""

NumberMaps = dict[str, Column]
_LARGEST_NUMBER = 2**31  # of a device, of registers, of blocks: one that is larger says nothing
_BAD_JSON = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_JSON = msgspec.json.Decoder()
_INTEGERS = msgspec.json.Decoder(list[int])


def merge_tables(chunks: list[tuple[int, Chunk]]) -> tuple[dict[str, list[Any]], list[NumberMaps]]:
    """One numbering for what several readers interned, in order of first appearance.

    Takes (reader, chunk) in the file's order. Gives the lists, and for each reader how to get from
    its numbers to theirs: a map's last place is NOTHING, as the index -1 finds it.
    """
    merged = {name: _Interned() for name in _MAKERS}
    readers = 1 + max((reader for reader, _ in chunks), default=0)
    numbers: list[dict[str, list[int]]] = [{name: [] for name in _MAKERS} for _ in range(readers)]
    for reader, chunk in chunks:
        for name, keys in chunk.new.items():
            make, table = _MAKERS[name], merged[name]
            numbers[reader][name] += [table[make(key)] for key in keys]
    maps = [{name: np.array([*each[name], NOTHING], np.int32) for name in each} for each in numbers]
    return {name: list(table) for name, table in merged.items()}, maps


def _stream(key: tuple[Any, Any, Any, Any]) -> Stream:
    """Older recordings give device and stream as process and thread only."""
    device, stream, pid, tid = key
    try:
        index = int(pid if device is None else device)
    except ValueError:
        index = NOTHING
    index = index if abs(index) < _LARGEST_NUMBER else NOTHING
    return Stream(index, str(tid if stream is None else stream))


def _compact(text: bytes) -> bytes:
    """Without the spaces, which differ between writers."""
    try:
        return msgspec.json.format(text, indent=-1) if text else b""
    except _BAD_JSON:
        return text


def _geometry(key: tuple[Any, ...]) -> Geometry:
    texts, registers, shared, blocks, warps, percent = key
    grid, block = texts.split(BETWEEN_TEXTS)
    occupancy = None if percent is None or not 0 <= percent <= 100 else percent / 100
    registers, shared, blocks, warps = map(_sensible, (registers, shared, blocks, warps))
    return Geometry(_integers(grid), _integers(block), registers, shared, blocks, warps, occupancy)


def _sensible(value: Any) -> Any:
    """The number, None where it can only be a mistake."""
    return value if value is not None and 0 <= value < _LARGEST_NUMBER else None


def _integers(text: bytes) -> tuple[int, ...] | None:
    try:
        numbers = tuple(_INTEGERS.decode(text))
    except _BAD_JSON:
        return None
    return numbers if all(0 <= number < 2 * _LARGEST_NUMBER for number in numbers) else None


def _collective(key: tuple[Any, ...]) -> Collective:
    name, dtype, given, made, size, group, ranks = key
    try:
        listed = _JSON.decode(ranks) if ranks else None
    except _BAD_JSON:
        listed = None
    if listed is not None and not isinstance(listed, str):
        listed = _compact(ranks).decode()
    group = None if group is None else str(group)
    return Collective(name, dtype, given, made, size, group, listed)


_MAKERS: dict[str, Any] = {
    "names": str,
    "threads": lambda key: Thread(*map(str, key)),
    "streams": _stream,
    "shapes": lambda key: Shapes(*map(_compact, key.split(BETWEEN_TEXTS))),
    "geometries": _geometry,
    "collectives": _collective,
}
