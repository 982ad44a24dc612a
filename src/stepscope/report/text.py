"""Text and numbers for readers: printable text, numbers with units, table cells."""

import math
import re

from stepscope.report.story.blocks import Cell, Column, Table

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_NOT_IN_SLUGS = re.compile(r"[^A-Za-z0-9_-]+")


def safe(text: str) -> str:
    """Text without control characters, so that it cannot move the cursor or recolour the screen."""
    return _CONTROL.sub("·", text)


def keep_end(text: str, most: int) -> str:
    """Text of at most this length, keeping the end, the telling part of a path."""
    return text if len(text) <= most else "…" + text[1 - most :]


def keep_start(text: str, most: int) -> str:
    """Text of at most this length, keeping the start."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def one_line(text: str) -> str:
    """Text on one line, without control characters or code points that UTF-8 cannot encode."""
    joined = " ".join(text.splitlines()) if "\n" in text or "\r" in text else text
    return safe(joined).encode("utf-8", "replace").decode("utf-8")


def slug(text: str, otherwise: str = "x") -> str:
    """Plain letters only, as an id or a file name's stem; `otherwise` if nothing is left."""
    return _NOT_IN_SLUGS.sub("-", text).strip("-") or otherwise


UNKNOWN = "–"


def format_cell(value: Cell, column: Column) -> str:
    """`1,240`, `61.2%`, `0.0123`, `yes`; a dash if unknown."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if column.percent:
        return _signed(f"{_rounded(abs(value) * 100, min(column.digits, 3), most=1)}%", value)
    if isinstance(value, int):
        return _signed(f"{abs(value):,}", value)
    return _signed(_rounded(abs(value), column.digits, most=12), value)


def table_cells(table: Table, most: int | None = None) -> list[list[str]]:
    """The first `most` rows as text."""
    return [
        [safe(format_cell(value, column)) for value, column in zip(row, table.columns, strict=True)]
        for row in table.rows[:most]
    ]


def aligned_rows(table: Table, heads: list[str] | None = None) -> list[str]:
    """The whole table as plain text, numbers right-aligned; `heads` replaces its headings."""
    rows = [heads or [column.heading for column in table.columns], *table_cells(table)]
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if column.number else cell.ljust(width)
            for cell, width, column in zip(row, widths, table.columns, strict=True)
        ).rstrip()
        for row in rows
    ]


def exact_cell(value: Cell) -> str:
    """The exact value, for sorting and CSV; "" if unknown."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool):
        return str(int(value))
    return str(value)


def _rounded(value: float, digits: int, most: int) -> str:
    """To `digits` significant digits, whole numbers kept whole, with at most `most` decimals."""
    if value == 0:
        return "0"
    if value < 10.0**-6 or value >= 10.0**15:
        return f"{value:.{max(digits - 1, 0)}e}"
    before = math.floor(math.log10(value)) + 1
    return f"{value:,.{min(max(digits - before, 0), most)}f}"


def _signed(magnitude: str, value: float) -> str:
    """With a minus sign as wide as a plus."""
    return f"−{magnitude}" if value < 0 else magnitude
