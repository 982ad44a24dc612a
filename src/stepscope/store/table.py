"""Tables that survive the death of their writer.

A table is an ordinary `.npy` file of float64 records mapped into memory: stored values survive even
SIGKILL. Space is allocated before it is mapped, so a full disk is an OSError at growth and never a
SIGBUS in the program. Rows beyond the last one written are zero.
"""

import mmap
import os
import re
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.record.errors import BrokenRun
from stepscope.record.row_log import MAY_BE_UNKNOWN
from stepscope.store.json_file import HeldFile, read_plain

if TYPE_CHECKING:
    import numpy.typing as npt

HEADER_BYTES = 4096
LARGEST = 2 << 30
"""Bytes of the largest table read: ten million rows of the row log."""
_COLUMN = re.compile(r"\('(\w+)', '<f8'\)")
_ROWS = re.compile(r"'shape': \((\d{1,18}),\)")
_MAGIC = b"\x93NUMPY\x02\x00"
_abandoned: "list[memoryview[float]]" = []
"""Whose descriptors the program has closed: freed, they would close its own by that number."""


class Table:
    """A growing table; `cells` is a flat view of doubles, `width` of them per row."""

    def __init__(self, path: Path, columns: tuple[str, ...], chunk_rows: int = 4096) -> None:
        self.path = path
        self.columns = columns
        self.width = len(columns)
        self.rows = 0
        self._chunk_rows = chunk_rows
        self._file = HeldFile(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        self.cells: memoryview[float] = self._map(chunk_rows)

    def _map(self, rows: int) -> "memoryview[float]":
        size = HEADER_BYTES + rows * self.width * 8
        number = self._number()
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(number, 0, size)
        else:
            have = os.fstat(number).st_size
            os.pwrite(number, bytes(size - have), have)
        os.pwrite(number, _header(self.columns, rows), 0)
        self.rows = rows
        return memoryview(mmap.mmap(number, size))[HEADER_BYTES:].cast("d")

    def _number(self) -> int:
        if not self._file.is_held():
            _abandoned.append(self.cells)
        return self._file.number()

    def grow(self) -> "memoryview[float]":
        """Make room for another chunk of rows; returns the new `cells`. Raises OSError on a full
        disk."""
        self.cells = self._map(self.rows + self._chunk_rows)
        return self.cells

    def close(self, rows: int) -> None:
        """Truncate the file to the rows written."""
        number = self._number()
        self.cells = memoryview(b"").cast("d")
        os.pwrite(number, _header(self.columns, rows), 0)
        os.ftruncate(number, HEADER_BYTES + rows * self.width * 8)
        self._file.close()


def _header(columns: tuple[str, ...], rows: int) -> bytes:
    descr = [(name, "<f8") for name in columns]
    text = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': ({rows},), }}".encode()
    prefix = _MAGIC + (HEADER_BYTES - 12).to_bytes(4, "little")
    return prefix + text.ljust(HEADER_BYTES - 13) + b"\n"


def trim_table(path: Path, last: str) -> None:
    """Truncate a table whose writer died to the rows in which column `last` was written."""
    table = read_table(path)
    if not table.size:
        return
    rows = int((table[last] != 0).sum())
    if rows < table.size:
        with open(path, "r+b") as file:
            file.write(_header(table.dtype.names or (), rows))
            file.truncate(HEADER_BYTES + rows * table.itemsize)


def read_table(path: Path, wanted: Collection[str] = ()) -> "npt.NDArray[Any]":
    """The rows of a table, open or closed; a missing or torn file gives what it has.

    Raises BrokenRun for missing `wanted` columns and impossible numbers.
    """
    import numpy as np

    try:
        data = read_plain(path, LARGEST)
    except FileNotFoundError:
        return np.zeros(0)
    header = data[:HEADER_BYTES]
    if len(data) <= HEADER_BYTES or not any(header):
        return np.zeros(0)
    columns = _columns(header)
    if not columns or not {*wanted} <= {*columns}:
        raise BrokenRun(f"{path} is damaged: its header does not name the columns of this table")
    rows = (len(data) - HEADER_BYTES) // (8 * len(columns))
    cells = np.frombuffer(data, "<f8", rows * len(columns), HEADER_BYTES)
    _check(path, cells.reshape(rows, len(columns)), columns)
    return cells.view([(name, "<f8") for name in columns])


def _check(path: Path, cells: "npt.NDArray[Any]", columns: list[str]) -> None:
    """Raise BrokenRun if a required number is NaN or does not fit in 64 bits."""
    import numpy as np

    for index, name in enumerate(columns):
        column = cells[:, index]
        fine = np.abs(column) < 2.0**63
        if name in MAY_BE_UNKNOWN:
            fine |= np.isnan(column)
        if name != "loss" and not fine.all():
            row = int(np.argmin(fine))
            raise BrokenRun(f"{path} is damaged: {name} of row {row + 1} is {column[row]:g}")


def _columns(header: bytes) -> list[str]:
    """The names in a header; none if it is not in the form we write."""
    text = header.decode("latin1")
    columns, rows = _COLUMN.findall(text), _ROWS.search(text)
    known = rows is not None and header == _header(tuple(columns), int(rows[1]))
    return columns if known and len({*columns}) == len(columns) else []
