"""A stretch of a trace as columns, on its way from a reader to the timeline."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stepscope.record.timeline import NOTHING, Column, column_types

Columns = dict[str, Column]
Half = tuple[int, int, int, int]  # thread, ns; kind and name of a beginning, NOTHING for an end


class Interned(dict[Any, int]):
    """Anything hashable -> its number, in order of first appearance."""

    def __init__(self) -> None:
        super().__init__()
        self.new: list[Any] = []

    def __missing__(self, key: Any) -> int:
        self[key] = number = len(self)
        self.new.append(key)
        return number


class Tables:
    """What one reader has interned so far, as it stands in the file."""

    def __init__(self) -> None:
        self.names = Interned()
        self.threads = Interned()  # pid, tid
        self.streams = Interned()  # device, stream; pid and tid for where those are missing
        self.shapes = Interned()  # dims, types, strides, values: JSON texts
        self.geometries = Interned()  # grid and block as JSON texts, then numbers
        self.collectives = Interned()  # name, dtype, in, out, size, group, ranks as JSON text

    def take_new(self) -> dict[str, list[Any]]:
        """What was met since the last call, by table."""
        new = {}
        for name, table in vars(self).items():
            new[name], table.new = table.new, []
        return new


@dataclass(slots=True)
class Chunk:
    """Columns that nothing said anything about are left out."""

    columns: dict[type, Columns] = field(default_factory=dict)
    new: dict[str, list[Any]] = field(default_factory=dict)
    halves: list[Half] = field(default_factory=list)
    labels: dict[tuple[str, str], str] = field(default_factory=dict)
    read: int = 0
    repaired: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    ignored: Counter[str] = field(default_factory=Counter)

    def add(self, table: type, columns: Columns) -> None:
        """Put rows after those already there."""
        known = self.columns.get(table)
        self.columns[table] = _joined(table, known, columns) if known else columns


def _joined(table: type, first: Columns, second: Columns) -> Columns:
    sizes = [len(next(iter(columns.values()))) for columns in (first, second)]
    result = {}
    for name, dtype in column_types(table).items():
        if name in first or name in second:
            empty = (np.full(size, NOTHING, np.int8).astype(dtype) for size in sizes)
            halves = [c.get(name, e) for c, e in zip((first, second), empty, strict=True)]
            result[name] = np.concatenate(halves)
    return result
