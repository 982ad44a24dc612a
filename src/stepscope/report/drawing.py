"""A chart in a notebook: interactive where plotly can be, a picture elsewhere."""

import re
from base64 import b64encode
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from stepscope.record.errors import MissingExtra
from stepscope.report.html.assets import asset
from stepscope.report.html.escape import pseudo
from stepscope.report.html.figure import figure
from stepscope.report.images import write_image
from stepscope.report.story.blocks import Chart

_NAMED = re.compile(r"^(var|soft)\((--[a-z0-9-]+)\)$")
_TOKEN = re.compile(r"(--[a-z0-9-]+):\s*([^;]+);")
_TITLE_PX, _NOTE_PX, _LEGEND_PX = 30, 18, 24
_COLOURED = ("color", "colors", "fillcolor")
"""Colours stand under these keys only; strangers' text stands under none of them."""


class Drawing:
    """One chart of a report. `chart` is what it shows."""

    def __init__(self, chart: Chart) -> None:
        self.chart = chart

    def plotly(self) -> Any:
        """A plotly Figure, to be changed or saved. Raises MissingExtra without plotly."""
        try:
            from plotly.graph_objects import Figure
        except ImportError:
            raise MissingExtra("plotly", "notebook", "a chart in a notebook") from None
        return Figure(figure_for_paper(self.chart))

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        """As plotly shows figures here; with a picture for readers that run no scripts."""
        bundle: dict[str, Any] = {"text/plain": repr(self), **self.plotly()._repr_mimebundle_()}
        picture = None if "text/html" in bundle else _picture(self.chart)
        return bundle if picture is None else {**bundle, "image/png": picture}

    def __repr__(self) -> str:
        series = ", ".join(one.name for one in self.chart.series if one.name)
        return f"<chart {self.chart.id}: {self.chart.title}{f' ({series})' if series else ''}>"


def figure_for_paper(chart: Chart) -> dict[str, Any]:
    """The chart's figure with a title and with colours that need no page around it."""
    made: dict[str, Any] = _painted(figure(chart), "")
    layout = made["layout"]
    above = _TITLE_PX + (_NOTE_PX if chart.note else 0)
    above += _LEGEND_PX if layout.get("showlegend") else 0
    layout |= {
        "title": _title(chart),
        "height": layout["height"] + above,
        "margin": {**layout["margin"], "t": layout["margin"]["t"] + above},
        "template": "none",
        "paper_bgcolor": _colours()["--surface"],
        "plot_bgcolor": _colours()["--surface"],
        "font": {"family": "sans-serif", "size": 12, "color": _colours()["--ink"]},
    }
    for axis in ("xaxis", "yaxis"):
        if axis in layout:
            usual = {"gridcolor": _colours()["--grid"], "ticklabelstandoff": 6}
            layout[axis] = usual | layout[axis]
    return made


def _title(chart: Chart) -> dict[str, Any]:
    """At the top, with the chart's note on a line of its own."""
    note = f"<br><sub>{pseudo(chart.note)}</sub>" if chart.note else ""
    return {
        "text": pseudo(chart.title) + note,
        "font": {"size": 15},
        "x": 0.01,
        "y": 1,
        "yref": "container",
        "yanchor": "top",
        "pad": {"t": 10},
    }


def _picture(chart: Chart) -> str | None:
    """PNG, in base64; None where matplotlib is not installed."""
    with TemporaryDirectory(prefix="stepscope-") as folder:
        file = Path(folder, "chart.png")
        try:
            write_image(chart, file)
        except MissingExtra:
            return None
        return b64encode(file.read_bytes()).decode("ascii")


@cache
def _colours() -> dict[str, str]:
    """The page's own, by role, as they are in the light."""
    light = asset("tokens.css").partition("}")[0]
    return {name: value.strip() for name, value in _TOKEN.findall(light)}


def _painted(value: Any, key: str) -> Any:
    """A copy in which roles have become colours."""
    if isinstance(value, dict):
        return {name: _painted(one, name) for name, one in value.items()}
    if isinstance(value, list):
        return [_painted(one, key) for one in value]
    return _colour(value) if isinstance(value, str) and key in _COLOURED else value


def _colour(text: str) -> str:
    found = _NAMED.match(text)
    if found is None:
        return text
    colour = _colours()[found[2]]
    if found[1] == "var":
        return colour
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.18)"
