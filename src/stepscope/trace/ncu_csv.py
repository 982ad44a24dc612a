"""The table inside what `ncu --csv --page raw` printed, among other lines."""

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from stepscope.trace.nsys_tables import UnreadableReport

_LONGEST_LINE = 2**22
_ID = re.compile(r"[0-9]{1,18}")
_RAW = "print it with `ncu --import FILE --csv --page raw`"


@dataclass(frozen=True, slots=True)
class Row:
    """One kernel: what each column says and in which unit ("" where the column has none)."""

    cells: dict[str, str]
    units: dict[str, str]
    delimiter: str


def read_rows(path: Path) -> Iterator[Row]:
    """The kernels in the file's order. Raises UnreadableReport where there is no such table.

    Lines are parsed one by one: a cut or foreign line costs itself, not what follows.
    """
    header: list[str] = []
    units: dict[str, str] = {}
    delimiter = ","
    for line in _lines(path):
        if "Kernel Name" in line and (found := _delimiter(line)):
            delimiter, units = found, {}
            header = _cells(line, delimiter)
            if "Metric Name" in header:
                raise UnreadableReport(f"{path}: this is ncu's page of details; {_RAW}")
            continue
        cells = _cells(line, delimiter) if header else []
        if not header or len(cells) != len(header):
            continue
        row = dict(zip(header, cells, strict=True))
        if _ID.fullmatch(row["ID"]):
            yield Row(row, units, delimiter)
        elif not row["ID"] and not row["Kernel Name"]:
            units = row
    if not header:
        raise UnreadableReport(f"{path}: there is no table of Nsight Compute in it; {_RAW}")


def _lines(path: Path) -> Iterator[str]:
    try:
        with path.open("rb") as probe:
            wide = probe.read(2) in (b"\xff\xfe", b"\xfe\xff")  # as Windows shells redirect
        encoding = "utf-16" if wide else "utf-8-sig"
        with path.open(encoding=encoding, errors="replace", newline="") as file:
            while line := file.readline(_LONGEST_LINE):
                if not line.startswith("=="):
                    yield line.rstrip("\r\n")
    except (OSError, UnicodeError) as error:
        raise UnreadableReport(f"{path}: cannot be read ({error})") from None


def _delimiter(line: str) -> str | None:
    """What follows the first cell of a header, `ID`; None if it is not one."""
    rest = line.replace('"', "")
    return rest[2] if rest.startswith("ID") and rest[2:3] in (",", ";", "\t") else None


def _cells(line: str, delimiter: str) -> list[str]:
    try:
        return next(csv.reader([line], delimiter=delimiter), [])
    except csv.Error:
        return []
