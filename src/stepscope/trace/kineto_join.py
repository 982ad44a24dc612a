"""Puts together what several readers read, in the file's order and in common numbers."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from stepscope.record.timeline import Column, column_types
from stepscope.trace.kineto_chunk import Chunk, Columns
from stepscope.trace.kineto_collect import Collected
from stepscope.trace.kineto_parts import Part
from stepscope.trace.kineto_tables import COLUMNS, Maps, merge_tables


def join(
    readers: list[Collected],
) -> tuple[dict[str, list[Any]], dict[type, Columns], list[Chunk]]:
    """The interned lists, the columns of each table ({} where it is empty), and what else was said.

    Takes the readers' columns one by one, so that none is there twice for long.
    """
    places = _places(readers)
    lists, maps = merge_tables([(place.reader, place.part.chunk) for place in places])
    for place in places:
        chunk, mapping = place.part.chunk, maps[place.reader]
        chunk.halves = [
            (int(mapping["threads"][thread]), time, kind, int(mapping["names"][name]))
            for thread, time, kind, name in chunk.halves
        ]
    tables = {table: _columns(table, readers, places, maps) for table in COLUMNS}
    return lists, tables, [place.part.chunk for place in places]


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a part's rows stand in its reader's columns."""

    reader: int
    part: Part
    rows: dict[type, tuple[int, int]]  # first, and one past the last


def _places(readers: list[Collected]) -> list[_Place]:
    """Of all parts, in the file's order."""
    places = []
    for number, reader in enumerate(readers):
        ends = dict.fromkeys(COLUMNS, 0)
        for part, rows in zip(reader.parts, reader.rows, strict=True):
            begins = dict(ends)
            for table, count in rows.items():
                ends[table] += count
            places.append(_Place(number, part, {t: (begins[t], ends[t]) for t in COLUMNS}))
    return sorted(places, key=lambda place: place.part.number)


def _columns(
    table: type, readers: list[Collected], places: list[_Place], maps: list[Maps]
) -> Columns:
    """One table of all readers in the file's order, in the common numbers; {} where it is empty."""
    if not any(table in reader.columns for reader in readers):
        return {}
    result = {}
    for name in column_types(table):
        taken: dict[int, Column] = {}
        for number, reader in enumerate(readers):
            if table in reader.columns:
                column = reader.columns[table].pop(name).take()
                if name in COLUMNS[table]:
                    column = maps[number][COLUMNS[table][name]][column]
                taken[number] = column
        if len(readers) == 1:
            result[name] = taken[0]
        else:
            stretches = [(place.reader, *place.rows[table]) for place in places]
            result[name] = np.concatenate([taken[n][a:b] for n, a, b in stretches if n in taken])
    return result
