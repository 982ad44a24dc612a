"""Gathers one reader's parts as they come, in columns that grow in place."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from stepscope.record.errors import StepscopeError
from stepscope.record.timeline import NOTHING, Column, column_types
from stepscope.trace.kineto_chunk import Columns
from stepscope.trace.kineto_parts import Part

MOST_EVENTS = 50_000_000


class Growing:
    """A column that is extended without a second copy of it in memory."""

    def __init__(self, dtype: type) -> None:
        self._array: Column = np.empty(0, dtype)
        self._size = 0

    def extend(self, values: Column | None, count: int) -> None:
        """Add `count` values; None: nothing is known of them."""
        size = self._size + count
        if size > len(self._array):
            self._array.resize(size + size // 4, refcheck=False)
        missing = NOTHING if self._array.dtype != np.uint8 else 0
        self._array[self._size : size] = missing if values is None else values
        self._size = size

    def take(self) -> Column:
        """The column, of which this keeps nothing."""
        array, self._array = self._array, np.empty(0, self._array.dtype)
        array.resize(self._size, refcheck=False)
        self._size = 0
        return array


@dataclass(slots=True)
class Collected:
    """What one reader read. The columns of its parts stand one after the other in `columns`."""

    parts: list[Part] = field(default_factory=list)
    rows: list[dict[type, int]] = field(default_factory=list)  # of each part, by table
    columns: dict[type, dict[str, Growing]] = field(default_factory=dict)

    def add(self, part: Part) -> None:
        chunk, part.chunk.columns = part.chunk.columns, {}
        rows = {}
        for table, columns in chunk.items():
            rows[table] = _length(columns)
            growing = self.columns.setdefault(
                table, {name: Growing(dtype) for name, dtype in column_types(table).items()}
            )
            for name, column in growing.items():
                column.extend(columns.get(name), rows[table])
        self.rows.append(rows)
        self.parts.append(part)


def collect(parts: Iterable[Part]) -> Collected:
    """All parts of a reader; StepscopeError where there are too many events to hold."""
    collected = Collected()
    total = 0
    for part in parts:
        collected.add(part)
        total += sum(collected.rows[-1].values()) + len(part.chunk.halves)
        if total > MOST_EVENTS:
            raise StepscopeError(
                f"more than {MOST_EVENTS // 10**6} million events: record fewer steps at a time"
            )
    return collected


def _length(columns: Columns) -> int:
    return len(next(iter(columns.values())))
