"""An Nsight Systems SQLite export: made from a report where need be, its columns read defensively.

Tables and columns differ between versions of the exporter and are created only when there is
something to put in them. What is missing or not of the expected type reads as NOTHING.
"""

import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from stepscope.record.errors import StepscopeError
from stepscope.record.timeline import NOTHING, Column, Quality
from stepscope.trace.limits import event_budget

NO_TIME = -(2**63)
_CHUNK = 4_000
_LONGEST_ROW = 2**20  # bytes
_SHORTEST_ROW = 4  # bytes that any row takes in a file
_STRINGS_AT_ONCE = 40_000  # as text they are shorter than the longest row

# A damaged name inside SQLite's own message cannot be decoded, and shows as a UnicodeError.
_DAMAGE = (sqlite3.Error, UnicodeError)

Intern = Callable[[bytes], int]  # what stands for a text in a column


class UnreadableReport(StepscopeError):  # noqa: N818
    """A file of Nsight Systems or Nsight Compute cannot be read."""


class Database:
    """An export, opened so that nothing is written beside it and its schema is not trusted."""

    def __init__(self, path: Path) -> None:
        self.damaged: list[str] = []  # what could be read only in part
        if not path.is_file():
            raise UnreadableReport(f"{path}: no such file")
        self._most_rows = path.stat().st_size // _SHORTEST_ROW
        self._budget, self._seen = event_budget(), 0
        self._connection = sqlite3.connect(
            f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True
        )
        try:
            try:
                self._columns = self._schema()
            except _DAMAGE:
                # SQLite refuses a file shorter than it should be, unless told to put up with it.
                self._connection.execute("pragma writable_schema = on")
                self._columns = self._schema()
                self.damaged.append("the file")
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
        interns = [None] * len(integers) + [intern for _, intern in texts.values()]
        types = [np.int64 if intern is None else np.int32 for intern in interns]
        parts: list[list[Column]] = [[np.empty(0, dtype)] for dtype in types]
        for rows in self._rows(table, wanted):
            columns = zip(*rows, strict=True)
            for part, dtype, intern, cells in zip(parts, types, interns, columns, strict=True):
                values = cells if intern is None else map(intern, cells)
                part.append(np.fromiter(values, dtype, len(rows)))
        names = (*integers, *texts)
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
            some = str(wanted[begin : begin + _STRINGS_AT_ONCE])
            which = "where id in (select value from json_each(?))"
            for rows in self._rows("StringIds", ["id", "value"], which, some):
                texts.update({key: _text(v) for key, v in rows if isinstance(v, bytes)})
        return texts

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

    def _rows(
        self, table: str, wanted: Sequence[str], which: str = "", *parameters: str
    ) -> Iterator[list[Any]]:
        """Rows in the file's order. What follows a damaged page is given up."""
        if table not in self._columns:
            return
        rows: list[Any] = []
        seen = 0
        try:
            sql = f'select {", ".join(wanted)} from "{table}" {which}'
            cursor = self._connection.execute(sql, parameters)
            # Pages that point at each other can hold more rows than there is room for.
            while seen <= self._most_rows:
                rows = []
                rows.extend(islice(cursor, _CHUNK))
                if not rows:
                    return
                seen += len(rows)
                self._seen += len(rows)
                self._budget.check(self._seen)
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


def stack_rows(parts: Sequence[Rows]) -> Rows:
    """The rows of all parts, one after the other; NOTHING in columns that a part lacks."""
    empty = [np.full(len(part["start"]), NOTHING, np.int8) for part in parts]
    return {
        name: np.concatenate([p.get(name, none) for p, none in zip(parts, empty, strict=True)])
        for name in dict.fromkeys(name for part in parts for name in part)
    }


def with_times(rows: Rows, quality: Quality, what: str) -> Rows:
    """Rows whose start is a time. An end that is none, or too early, becomes the start."""
    start, end = rows["start"], rows["end"]
    quality.read += len(start)
    # CUPTI writes zeros where it has no times.
    good = (start >= 0) & (start < _LATEST) & ((start > 0) | (end > 0))
    if dropped := int(len(good) - good.sum()):
        add_count(quality.dropped, f"{what} without a start", dropped)
        rows = {name: column[good] for name, column in rows.items()}
        start, end = rows["start"], rows["end"]
    early = (end < start) | (end >= _LATEST)
    if mended := int(early.sum()):
        add_count(quality.repaired, f"{what} without a valid end, taken as 0 ns", mended)
        rows = {**rows, "end": np.where(early, start, end)}
    return rows


def add_count(tally: dict[str, int], what: str, number: int) -> None:
    """Add to a tally of `Quality`; zero adds no entry."""
    if number:
        tally[what] = tally.get(what, 0) + number


_LONGEST_S = 1800.0
_NSYS_MISSING = (
    "nsys is not installed: export the report elsewhere with "
    "`nsys export --type sqlite FILE` and analyze the .sqlite"
)


def export_report(path: Path, folder: Path) -> Path:
    """The SQLite export of a `.nsys-rep`, made in the folder. Raises UnreadableReport."""
    if not path.is_file():
        raise UnreadableReport(f"{path}: no such file")
    made = folder.resolve() / f"{path.stem}.sqlite"
    arguments = ["export", "--type", "sqlite", "--output", str(made), str(path.resolve())]
    run_nvidia_tool("nsys", arguments, _NSYS_MISSING, path)
    if not made.is_file():
        raise UnreadableReport(f"{path}: nsys wrote no SQLite file")
    return made


def run_nvidia_tool(
    program: str, arguments: Sequence[str], missing: str, path: Path, stdout: Path | None = None
) -> None:
    """Run one of NVIDIA's programs on a report, its output kept in `stdout` where given."""
    found = shutil.which(program)
    if found is None:
        raise UnreadableReport(missing)
    try:
        with (stdout or Path("/dev/null")).open("wb") as output:
            done = subprocess.run(
                [found, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.PIPE,
                timeout=_LONGEST_S,
                check=False,
            )
    except subprocess.TimeoutExpired:
        raise UnreadableReport(f"{path}: {program} took longer than {_LONGEST_S:.0f} s") from None
    except OSError as error:
        raise UnreadableReport(f"{path}: {program} could not be run ({error})") from None
    if done.returncode:
        lines = done.stderr.decode(errors="replace").split("\n")
        reason = next((line.strip() for line in reversed(lines) if line.strip()), "no reason given")
        raise UnreadableReport(
            f"{path}: {program} could not read it (exit code {done.returncode}: {reason[:300]})"
        )
