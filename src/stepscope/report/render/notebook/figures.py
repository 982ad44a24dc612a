"""A report's charts and tables as objects: plotly figures, arrays, data frames."""

import re
from base64 import b64encode
from functools import cache
from html import escape
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.record.errors import MissingExtra, UsageError
from stepscope.report.render.html.charts import plotly_figure
from stepscope.report.render.html.escape import escape_label
from stepscope.report.render.html.page import asset
from stepscope.report.render.images import write_image
from stepscope.report.story.blocks import Chart, Table
from stepscope.report.text import aligned_rows, safe, table_cells

_NAMED = re.compile(r"^(var|soft)\((--[a-z0-9-]+)\)$")
_TOKEN = re.compile(r"(--[a-z0-9-]+):\s*([^;]+);")
_TITLE_PX, _NOTE_PX, _LEGEND_PX = 30, 18, 24
_COLOURED = ("color", "colors", "fillcolor")
"""Only these keys hold colours; none of them holds strangers' text."""


class Drawing:
    """One chart of a report. `chart` is what it shows."""

    def __init__(self, chart: Chart) -> None:
        self.chart = chart

    def plotly(self) -> Any:
        """A plotly Figure to modify or save. Raises MissingExtra without plotly."""
        try:
            from plotly.graph_objects import Figure
        except ImportError:
            raise MissingExtra("plotly", "notebook", "a chart in a notebook") from None
        return Figure(standalone_figure(self.chart))

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        """Plotly's display, plus a picture for viewers without scripts."""
        bundle: dict[str, Any] = {"text/plain": repr(self), **self.plotly()._repr_mimebundle_()}
        picture = None if "text/html" in bundle else _picture(self.chart)
        return bundle if picture is None else {**bundle, "image/png": picture}

    def __repr__(self) -> str:
        series = ", ".join(one.name for one in self.chart.series if one.name)
        return f"<chart {self.chart.id}: {self.chart.title}{f' ({series})' if series else ''}>"


def standalone_figure(chart: Chart) -> dict[str, Any]:
    """The chart's figure with a title and its own colours, independent of the page."""
    made: dict[str, Any] = _painted(plotly_figure(chart), "")
    layout, colours = made["layout"], _colours()
    above = _TITLE_PX + (_NOTE_PX if chart.note else 0)
    above += _LEGEND_PX if layout.get("showlegend") else 0
    note = f"<br><sub>{escape_label(chart.note)}</sub>" if chart.note else ""
    title = {"text": escape_label(chart.title) + note, "font": {"size": 15}, "pad": {"t": 10}}
    layout |= {
        "title": title | {"x": 0.01, "y": 1, "yref": "container", "yanchor": "top"},
        "height": layout["height"] + above,
        "margin": {**layout["margin"], "t": layout["margin"]["t"] + above},
        "template": "none",
        "paper_bgcolor": colours["--surface"],
        "plot_bgcolor": colours["--surface"],
        "font": {"family": "sans-serif", "size": 12, "color": colours["--ink"]},
    }
    for axis in ("xaxis", "yaxis"):
        if axis in layout:
            usual = {"gridcolor": colours["--grid"], "ticklabelstandoff": 6}
            layout[axis] = usual | layout[axis]
    return made


def _picture(chart: Chart) -> str | None:
    """A PNG in base64; None without matplotlib."""
    with TemporaryDirectory(prefix="stepscope-") as folder:
        file = Path(folder, "chart.png")
        try:
            write_image(chart, file)
        except MissingExtra:
            return None
        return b64encode(file.read_bytes()).decode("ascii")


@cache
def _colours() -> dict[str, str]:
    """The page's light theme, by role."""
    light = asset("page/tokens.css").partition("}")[0]
    return {name: value.strip() for name, value in _TOKEN.findall(light)}


def _painted(value: Any, key: str) -> Any:
    """A copy with roles replaced by colours."""
    if isinstance(value, dict):
        return {name: _painted(one, name) for name, one in value.items()}
    if isinstance(value, list):
        return [_painted(one, key) for one in value]
    found = _NAMED.match(value) if isinstance(value, str) and key in _COLOURED else None
    if found is None:
        return value
    colour = _colours()[found[2]]
    if found[1] == "var":
        return colour
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.18)"


_CELL = "padding:2px 10px;text-align:"


class ResultTable:
    """Columns with rows; `rows` holds raw values, None: unknown."""

    def __init__(self, block: Table) -> None:
        self._block = block

    @property
    def title(self) -> str:
        """Its title in the report."""
        return self._block.title or self._block.id

    @property
    def columns(self) -> list[str]:
        """Names, with the unit in brackets: `time [ms]`."""
        return [column.data_heading for column in self._block.columns]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One dictionary per row."""
        return [dict(zip(self.columns, row, strict=True)) for row in self._block.rows]

    def numpy(self) -> dict[str, npt.NDArray[Any]]:
        """One array per column: floats with NaN for unknown values, or objects."""
        found: dict[str, npt.NDArray[Any]] = {}
        for at, column in enumerate(self._block.columns):
            cells = [row[at] for row in self._block.rows]
            if column.number and not any(isinstance(cell, str) for cell in cells):
                numbers = [np.nan if cell is None else cell for cell in cells]
                found[column.data_heading] = np.array(numbers, dtype=float)
            else:
                found[column.data_heading] = np.array(cells, dtype=object)
        return found

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
        return "\n".join(aligned_rows(self._block, self.columns))

    def _repr_html_(self) -> str:
        sides = ["right" if column.number else "left" for column in self._block.columns]

        def line(tag: str, cells: list[str]) -> str:
            pairs = zip(cells, sides, strict=True)
            made = (f'<{tag} style="{_CELL}{side}">{escape(cell)}</{tag}>' for cell, side in pairs)
            return f"<tr>{''.join(made)}</tr>"

        head = line("th", [safe(name) for name in self.columns])
        shown = self._block.shown
        body = "".join(line("td", cells) for cells in table_cells(self._block, shown))
        more = len(self) - shown
        rest = f"<p>{more:,} more: .rows, .numpy(), .to_pandas()</p>" if more > 0 else ""
        return f"<table><thead>{head}</thead><tbody>{body}</tbody></table>{rest}"
