"""A table of a report, as data."""

from html import escape
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.record.errors import UsageError
from stepscope.report.html.numbers import shown
from stepscope.report.story.blocks import Column, Table
from stepscope.report.text import safe

_CELL = "padding:2px 10px;text-align:"


class ResultTable:
    """Columns with rows; `rows` hold values as they are, None for what is not known."""

    def __init__(self, block: Table) -> None:
        self._block = block

    @property
    def title(self) -> str:
        """What it is called in the report."""
        return self._block.title or self._block.id

    @property
    def columns(self) -> list[str]:
        """Names, with the unit in brackets: `time [ms]`."""
        return [_heading(column) for column in self._block.columns]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One dictionary a row."""
        return [dict(zip(self.columns, row, strict=True)) for row in self._block.rows]

    def numpy(self) -> dict[str, npt.NDArray[Any]]:
        """An array a column: floats with NaN for what is not known, or objects."""
        values = list(zip(*self._block.rows, strict=True)) or [()] * len(self.columns)
        return {
            _heading(column): _array(column, cells)
            for column, cells in zip(self._block.columns, values, strict=True)
        }

    def to_pandas(self) -> Any:
        """A DataFrame. Raises UsageError without pandas."""
        try:
            pandas: Any = import_module("pandas")
        except ImportError:
            raise UsageError("to_pandas() needs pandas: pip install pandas") from None
        return pandas.DataFrame(self.numpy(), columns=self.columns)

    def __len__(self) -> int:
        return len(self._block.rows)

    def __repr__(self) -> str:
        lines = [self.columns, *self._cells()]
        widths = [max(len(line[at]) for line in lines) for at in range(len(self.columns))]
        return "\n".join(
            "  ".join(
                cell.rjust(width) if column.number else cell.ljust(width)
                for cell, width, column in zip(line, widths, self._block.columns, strict=True)
            ).rstrip()
            for line in lines
        )

    def _repr_html_(self) -> str:
        sides = ["right" if column.number else "left" for column in self._block.columns]
        head = "".join(
            f'<th style="{_CELL}{side}">{escape(safe(name))}</th>'
            for name, side in zip(self.columns, sides, strict=True)
        )
        body = "".join(
            "<tr>"
            + "".join(
                f'<td style="{_CELL}{side}">{escape(cell)}</td>'
                for cell, side in zip(line, sides, strict=True)
            )
            + "</tr>"
            for line in self._cells()[: self._block.shown]
        )
        more = len(self) - self._block.shown
        rest = f"<p>{more:,} more: .rows, .numpy(), .to_pandas()</p>" if more > 0 else ""
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{rest}"

    def _cells(self) -> list[list[str]]:
        columns = self._block.columns
        return [
            [safe(shown(value, column)) for value, column in zip(row, columns, strict=True)]
            for row in self._block.rows
        ]


def _heading(column: Column) -> str:
    return f"{column.name} [{column.unit}]" if column.unit else column.name


def _array(column: Column, cells: tuple[Any, ...]) -> npt.NDArray[Any]:
    if column.number and not any(isinstance(cell, str) for cell in cells):
        return np.array([np.nan if cell is None else cell for cell in cells], dtype=float)
    return np.array(cells, dtype=object)
