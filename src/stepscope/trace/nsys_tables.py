"""Columns of an Nsight Systems SQLite export, read defensively.

Tables and columns differ between versions of the exporter and are created only when there is
something to put in them. What is missing or not of the expected type reads as NOTHING.
"""

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from stepscope.record.errors import StepscopeError
from stepscope.record.timeline import NOTHING, Column

NO_TIME = -(2**63)
_CHUNK = 4_000
_LONGEST_ROW = 2**20  # bytes
_SHORTEST_ROW = 4  # bytes that any row takes in a file
_STRINGS_AT_ONCE = 500

# A damaged name inside SQLite's own message cannot be decoded, and shows as a UnicodeError.
_DAMAGE = (sqlite3.Error, UnicodeError)

Intern = Callable[[bytes], int]  # what stands for a text in a column


class UnreadableReport(StepscopeError):  # noqa: N818
    """A file of Nsight Systems or Nsight Compute cannot be read."""


class Database:
    """An export, opened so that nothing is written beside it and its schema is not trusted."""

    def __init__(self, path: Path) -> None:
        self.damaged: list[str] = []  # what could be read in part only
        if not path.is_file():
            raise UnreadableReport(f"{path}: there is no such file")
        self._most_rows = path.stat().st_size // _SHORTEST_ROW
        self._connection = sqlite3.connect(
            f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True
        )
        try:
            self._columns = self._schema_of_what_is_there()
        except (*_DAMAGE, AttributeError) as error:
            self.close()
            raise UnreadableReport(
                f"{path}: not a readable SQLite database ({error}); "
                "export the report again with `nsys export --type sqlite FILE`"
            ) from None

    def close(self) -> None:
        self._connection.close()

    def has(self, table: str, *columns: str) -> bool:
        return table in self._columns and self._columns[table].issuperset(columns)

    def first(self, table: str, *columns: str) -> str:
        """The first of the columns that the table has, or the last one named."""
        return next((c for c in columns if self.has(table, c)), columns[-1])

    def integer(self, table: str, column: str) -> str:
        """SQL for an integer: NOTHING where there is none, NO_TIME for `start` and `end`."""
        missing = NO_TIME if column in ("start", "end") else NOTHING
        if not self.has(table, column):
            return str(missing)
        return f'iif(typeof("{column}") = \'integer\', "{column}", {missing})'

    def integers(self, table: str, columns: Sequence[str]) -> dict[str, Column]:
        """int64 columns by name."""
        return self.select(table, {c: self.integer(table, c) for c in columns}, {})

    def select(
        self, table: str, integers: Mapping[str, str], texts: Mapping[str, tuple[str, Intern]]
    ) -> dict[str, Column]:
        """Columns from SQL in one pass: int64 from integers, int32 from what texts intern to.

        A text that is missing is interned as b"".
        """
        wanted = [
            *integers.values(),
            *(f"iif(typeof({sql}) = 'text', {sql}, '')" for sql, _ in texts.values()),
        ]
        names = [*integers, *texts]
        types = [np.int64] * len(integers) + [np.int32] * len(texts)
        interns = [None] * len(integers) + [intern for _, intern in texts.values()]
        parts: list[list[Column]] = [[np.empty(0, dtype)] for dtype in types]
        for rows in self._rows(table, wanted):
            for part, dtype, intern, cells in zip(
                parts, types, interns, zip(*rows, strict=True), strict=True
            ):
                values = cells if intern is None else map(intern, cells)
                part.append(np.fromiter(values, dtype, len(rows)))
        return {name: np.concatenate(part) for name, part in zip(names, parts, strict=True)}

    def records(self, table: str, columns: Sequence[str]) -> list[dict[str, Any]]:
        """A small table whole, as text and numbers; None where there is nothing."""
        wanted = [f'"{c}"' if self.has(table, c) else "null" for c in columns]
        return [
            {c: _text(v) if isinstance(v, bytes) else v for c, v in zip(columns, row, strict=True)}
            for rows in self._rows(table, wanted)
            for row in rows
        ]

    def strings(self, ids: Column) -> dict[int, str]:
        """The texts that ids of the table StringIds stand for."""
        if not self.has("StringIds", "id", "value"):
            return {}
        wanted = np.unique(ids).tolist()
        texts = {}
        # Only these: the table also keeps what programs printed, whole.
        for begin in range(0, len(wanted), _STRINGS_AT_ONCE):
            some = ", ".join(map(str, wanted[begin : begin + _STRINGS_AT_ONCE]))
            for rows in self._rows("StringIds", ["id", "value"], f"where id in ({some})"):
                texts.update({key: _text(v) for key, v in rows if isinstance(v, bytes)})
        return texts

    def _schema_of_what_is_there(self) -> dict[str, frozenset[str]]:
        try:
            return self._schema()
        except _DAMAGE:
            # SQLite refuses a file that is shorter than it should be, unless asked to bear with it.
            self._connection.execute("pragma writable_schema = on")
            schema = self._schema()
            self.damaged.append("the file")
            return schema

    def _schema(self) -> dict[str, frozenset[str]]:
        # Bytes, as names in a stranger's file need not be UTF-8. A root page means a real table:
        # views and virtual tables could run code of the file's choosing.
        self._connection.text_factory = bytes
        self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_ROW)
        self._connection.execute("pragma trusted_schema = off")
        tables = self._connection.execute(
            "select name from sqlite_master where type = 'table' and rootpage > 0"
        ).fetchall()
        schema = {}
        for name in (_text(row[0]) for row in tables):
            quoted = name.replace('"', '""')
            columns = self._connection.execute(f'pragma table_info("{quoted}")')
            schema[name] = frozenset(_text(row[1]) for row in columns)
        return schema

    def _rows(self, table: str, wanted: Sequence[str], which: str = "") -> Iterator[list[Any]]:
        """Rows in the file's order. What follows a damaged page is given up."""
        if table not in self._columns:
            return
        rows: list[Any] = []
        seen = 0
        try:
            cursor = self._connection.execute(f'select {", ".join(wanted)} from "{table}" {which}')
            # Pages that point at each other can hold more rows than there is room for.
            while seen <= self._most_rows:
                rows = []
                rows.extend(islice(cursor, _CHUNK))
                if not rows:
                    return
                seen += len(rows)
                yield rows
            rows = []
        except _DAMAGE:
            pass
        if table not in self.damaged:
            self.damaged.append(table)
        if rows:
            yield rows


def _text(value: bytes) -> str:
    return value.decode(errors="replace")
