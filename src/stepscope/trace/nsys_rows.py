"""Small tools for columns on their way from an export into a timeline."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from stepscope.record.timeline import NOTHING, Column, Quality
from stepscope.trace.nsys_tables import NO_TIME

Rows = dict[str, Column]

_LATEST = 2**61  # ns, 73 years: sums and differences of such times fit in 64 bits


class Interned(dict[Any, int]):
    """Gives each new key the next number."""

    def __missing__(self, key: Hashable) -> int:
        self[key] = len(self)
        return self[key]


def process_of(identifier: Column) -> Column:
    """The process id inside a serialised process or thread id, NOTHING where there is none."""
    return np.where(identifier < 0, NOTHING, identifier >> 24 & 0xFFFFFF)


def distinct(columns: Sequence[Column]) -> tuple[list[tuple[int, ...]], Column]:
    """The distinct rows of integer columns, and for each row which one it is."""
    if not len(columns[0]):
        return [], np.empty(0, np.int32)
    code, size = np.zeros(len(columns[0]), np.int64), 1
    for column in columns:
        low, span = int(column.min()), int(column.max()) - int(column.min()) + 1
        if size * span >= _LATEST:  # only then are the codes themselves too large to combine
            column = np.unique(column, return_inverse=True)[1]
            code = np.unique(code, return_inverse=True)[1]
            low, span, size = 0, int(column.max()) + 1, int(code.max()) + 1
        code = code * span + (column - low)
        size *= span
    _, where, inverse = np.unique(code, return_index=True, return_inverse=True)
    rows = zip(*(column[where].tolist() for column in columns), strict=True)
    return list(rows), inverse.astype(np.int32)


def mapped(columns: Sequence[Column], value: Callable[..., int], dtype: Any = np.int32) -> Column:
    """A column computed by calling `value` once for each distinct row."""
    rows, which = distinct(columns)
    return np.array([value(*row) for row in rows], dtype)[which]


def stacked(parts: Sequence[Rows]) -> Rows:
    """The rows of all parts, one after the other."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def with_times(rows: Rows, quality: Quality, what: str) -> Rows:
    """Rows whose start is a time. An end that is none, or too early, becomes the start."""
    start, end = rows["start"], rows["end"]
    quality.read += len(start)
    # CUPTI writes zeros where it has no times.
    good = (start >= 0) & (start < _LATEST) & ((start > 0) | (end > 0))
    if dropped := int(len(good) - good.sum()):
        count(quality.dropped, f"{what} without a start", dropped)
        rows = {name: column[good] for name, column in rows.items()}
        start, end = rows["start"], rows["end"]
    early = (end < start) | (end >= _LATEST)
    if mended := int(early.sum()):
        count(quality.repaired, f"{what} without a valid end: taken as 0 ns long", mended)
        rows = {**rows, "end": np.where(early, start, end)}
    return rows


def close_open(rows: Rows, last: int) -> Rows:
    """Ranges that were still open when recording stopped, ended at its last moment."""
    return {**rows, "end": np.where(rows["end"] == NO_TIME, last, rows["end"])}


def count(tally: dict[str, int], what: str, number: int) -> None:
    """Add to a tally of `Quality`; nothing happened is not worth an entry."""
    if number:
        tally[what] = tally.get(what, 0) + number
