"""Charts as plotly figures with the page's CSS variables as colours."""

import math
from collections.abc import Sequence
from typing import Any

from stepscope.report.render.html.escape import escape_label
from stepscope.report.story.blocks import Axis, Cell, Chart, Role, Series
from stepscope.report.text import keep_start

_COLOURS = 8

_ROLES = {
    Role.DATA: 2,
    Role.COPY: 4,
    Role.FORWARD: 1,
    Role.BACKWARD: 3,
    Role.OPTIMIZER: 6,
    Role.COMPUTE: 1,
    Role.COMMUNICATION: 5,
    Role.IDLE: 8,
    Role.OTHER: 8,
}


def series_colour(role: Role | None, position: int) -> str:
    """A series' colour, by its role if it has one, else by its position in the chart."""
    number = position % (_COLOURS - 1) + 1 if role is None else _ROLES[role]
    return f"var(--series-{number})"


Trace = dict[str, Any]
_LONGEST_NAME = 60
_MARKED_POINTS = 40
_LARGEST_POINT = 34


def _traces(chart: Chart) -> list[Trace]:
    made: list[Trace] = []
    for position, series in enumerate(chart.series):
        paint = series_colour(series.role, position)
        if series.line or chart.kind == "line":
            made += _line(series, paint, dashed=series.line and chart.kind != "line")
        elif chart.kind == "scatter":
            made.append(_points(series, paint))
        elif chart.kind == "histogram" and not (series.x and series.y):
            values = _plotly_values(series.x or series.y)
            marker = {"color": paint, "line": {"width": 0}}
            made.append(_trace(series, "histogram", told=False) | {"x": values, "marker": marker})
        else:
            made.append(_bars(chart, series, paint))
    return made


def _plotly_values(values: Sequence[Cell]) -> list[Any]:
    """Values for plotly: text escaped, numbers to seven digits."""

    def number(value: float | bool | None) -> float | None:
        return None if value is None or not math.isfinite(value) else float(f"{value:.7g}")

    return [escape_label(value) if isinstance(value, str) else number(value) for value in values]


def _trace(series: Series, kind: str, *, told: bool = True, across: bool = False) -> Trace:
    """A trace with its name and, if `told`, its hover text."""
    trace: Trace = {
        "type": kind,
        "name": escape_label(keep_start(series.name, _LONGEST_NAME)),
        "showlegend": bool(series.name),
    }
    if told and series.text:
        trace["hovertext"] = [escape_label(text) for text in series.text]
        trace["hovertemplate"] = f"%{{hovertext}}<br>%{{{'x' if across else 'y'}}}<extra></extra>"
    return trace


def _interval(series: Series) -> Trace | None:
    if not (series.low and series.high):
        return None
    above = [high - y for high, y in zip(series.high, series.y, strict=True)]
    below = [y - low for low, y in zip(series.low, series.y, strict=True)]
    sides = {"array": _plotly_values(above), "arrayminus": _plotly_values(below)}
    style = {"thickness": 1.2, "width": 4, "color": "var(--muted)"}
    return {"type": "data", "symmetric": False} | sides | style


def _bars(chart: Chart, series: Series, paint: str) -> Trace:
    places, values = _plotly_values(series.x), _plotly_values(series.y)
    trace = _trace(series, "bar", across=chart.across)
    trace["marker"] = {"color": paint, "line": {"width": 0}}
    interval = _interval(series)
    if interval is not None:
        trace["error_x" if chart.across else "error_y"] = interval
    if chart.kind == "stacked":
        trace |= {"text": trace["name"], "textposition": "inside", "insidetextanchor": "middle"}
        trace |= {"textangle": 0, "insidetextfont": {"color": "var(--on-series)"}}
    if chart.across:
        return trace | {"orientation": "h", "x": values, "y": places}
    return trace | {"x": places, "y": values}


def _points(series: Series, paint: str) -> Trace:
    marker: Trace = {"color": paint, "opacity": 0.8, "size": 8, "line": {"width": 0}}
    if series.size:
        largest = max((s for s in series.size if math.isfinite(s)), default=0.0) or 1.0
        marker |= {"size": _plotly_values(series.size), "sizemode": "area", "sizemin": 4}
        marker["sizeref"] = 2.0 * largest / _LARGEST_POINT**2
    points = {"x": _plotly_values(series.x), "y": _plotly_values(series.y), "marker": marker}
    interval = _interval(series)
    if interval is not None:
        points["error_y"] = interval
    return _trace(series, "scatter") | {"mode": "markers"} | points


def _line(series: Series, paint: str, *, dashed: bool) -> list[Trace]:
    """The line, and its band if it has an interval."""
    x, stroke = _plotly_values(series.x), {"color": paint, "width": 1.8}
    line = _trace(series, "scatter") | {"x": x, "y": _plotly_values(series.y)}
    marked = not dashed and len(series.y) <= _MARKED_POINTS
    line |= {"mode": "lines+markers" if marked else "lines"}
    line |= {"line": stroke | {"dash": "dash"} if dashed else stroke, "connectgaps": False}
    if not (series.low and series.high):
        return [line]
    edge: Trace = {"type": "scatter", "mode": "lines", "x": x, "line": {"width": 0}}
    edge |= {"showlegend": False, "hoverinfo": "skip"}
    soft = paint.replace("var(", "soft(", 1)  # faint enough behind a line
    band = {"y": _plotly_values(series.high), "fill": "tonexty", "fillcolor": soft}
    return [edge | {"y": _plotly_values(series.low)}, edge | band, line]


_LONGEST = 22
_ROOT = "var(--raised)"


def treemap_trace(series: Series) -> dict[str, Any]:
    """One trace. A tile with children is as large as their sum."""
    names = [str(name) for name in series.x]
    parents = list(series.parents) or [""] * len(names)
    for parent in sorted(set(parents) - set(names) - {""}):
        names, parents = [*names, parent], [*parents, ""]
    above = _above(names, parents)
    with_children = {at for at in above if at is not None}
    values = _plotly_values(series.y) + [0.0] * (len(names) - len(series.y))
    colours = _colours(above)
    texts = [escape_label(text) for text in series.text]
    ink, on_series = "var(--ink)", "var(--on-series)"
    return {
        "type": "treemap",
        "ids": [str(at) for at in range(len(names))],
        "labels": [escape_label(keep_start(name, _LONGEST)) for name in names],
        "customdata": [escape_label(name) for name in names],
        "parents": ["" if at is None else str(at) for at in above],
        "values": [0.0 if at in with_children else value for at, value in enumerate(values)],
        "text": texts + [""] * (len(names) - len(texts)),
        "branchvalues": "remainder",
        "textinfo": "label+text" if texts else "label+percent root",
        "hovertemplate": "%{customdata}<br>%{value} · %{percentRoot:.1%}<br>%{text}<extra></extra>",
        "textfont": {"color": [ink if paint == _ROOT else on_series for paint in colours]},
        "marker": {
            "colors": colours,
            "pad": {"t": 22, "l": 3, "r": 3, "b": 3},
            "line": {"width": 1, "color": "var(--surface)"},
        },
        "tiling": {"pad": 2},
        "pathbar": {"visible": False},
        "maxdepth": 3,
    }


def _above(names: list[str], parents: list[str]) -> list[int | None]:
    """Each tile's parent. A name shared by several tiles means a root, else the first of them; a
    tile that is its own ancestor has none."""
    place: dict[str, int] = {}
    for at, (name, parent) in enumerate(zip(names, parents, strict=True)):
        if name not in place or (not parent and parents[place[name]]):
            place[name] = at
    above = [place[parent] if parent else None for parent in parents]
    for at in range(len(above)):
        seen: set[int] = set()
        up = above[at]
        while up is not None and up != at and up not in seen:
            seen.add(up)
            up = above[up]
        if up == at:
            above[at] = None
    return above


def _colours(above: list[int | None]) -> list[str]:
    """One colour per branch below a single root, else per root."""
    roots = [at for at, parent in enumerate(above) if parent is None]
    below = [at for at, parent in enumerate(above) if len(roots) == 1 and parent == roots[0]]
    order = {at: number for number, at in enumerate(below or roots)}
    made = []
    for tile in range(len(above)):
        at: int | None = tile
        while at is not None and at not in order:
            at = above[at]
        made.append(_ROOT if at is None else f"var(--series-{order[at] % _COLOURS + 1})")
    return made


_ROW_PX = 26
_TOOLS_PX = 28
"""Space for the chart's buttons, which would cover its bars without a legend."""
_READABLE = {"mode": "hide", "minsize": 10}
"""Smallest text; labels that do not fit are left out, never shrunk further."""


_LEGEND = {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "traceorder": "normal"}


def plotly_figure(chart: Chart) -> dict[str, Any]:
    """A chart's traces, layout and height."""
    layout: dict[str, Any]
    if chart.kind == "treemap":
        margin = {"l": 0, "r": 0, "t": 0, "b": 0}
        drawn = [treemap_trace(series) for series in chart.series]
        layout = {"height": 380, "margin": margin, "uniformtext": _READABLE}
        return {"data": drawn, "layout": layout}
    legend = _has_legend(chart)
    layout = {
        "height": figure_height(chart),
        "margin": {"l": 8, "r": 12, "t": 8 if legend else _TOOLS_PX, "b": 8},
        "barmode": "stack" if chart.kind == "stacked" else "group",
        "bargap": 0.04 if chart.kind == "histogram" else 0.28,
        "hovermode": "closest",
        "showlegend": legend,
        "legend": _LEGEND,
        "uniformtext": _READABLE,
    }
    at = [x for series in chart.series for x in series.x]
    numbers = [x for x in at if isinstance(x, int | float)]
    places = _axis(chart.x, numbers, texts=any(isinstance(x, str) for x in at))
    values = _axis(chart.y, [y for series in chart.series for y in series.y], texts=False)
    values |= {} if chart.y.log else {"rangemode": "tozero"}
    if chart.across:
        places |= {"autorange": "reversed", "showgrid": False}
        places["showticklabels"] = chart.kind != "stacked" or len(set(map(str, at))) > 1
        layout |= {"xaxis": values, "yaxis": places}
    else:
        layout |= {"xaxis": places, "yaxis": values}
    return {"data": _traces(chart), "layout": layout}


def figure_height(chart: Chart) -> int:
    """Height in pixels, no more than its bars need."""
    if not chart.across:
        return 300
    rows = max(1, len({str(x) for series in chart.series for x in series.x}))
    grouped = 1 if chart.kind == "stacked" else max(1, len(chart.series))
    lines = rows * (1 + 0.6 * (grouped - 1))
    space = 60 + (24 if _has_legend(chart) else _TOOLS_PX - 8) + (18 if chart.y.title else 0)
    return min(round(space + _ROW_PX * max(lines, 2)), 900)


def _has_legend(chart: Chart) -> bool:
    return sum(bool(series.name) for series in chart.series) > 1


def is_wide(chart: Chart) -> bool:
    """Whether it needs the page's whole width."""
    return chart.kind == "treemap" or (chart.kind == "stacked" and chart.across)


def _axis(axis: Axis, values: list[float], *, texts: bool) -> dict[str, Any]:
    kind = "category" if texts else "log" if axis.log else "linear"
    made: dict[str, Any] = {"automargin": True, "zeroline": False, "type": kind}
    if axis.title:
        font = {"size": 12, "color": "var(--muted)"}
        made["title"] = {"text": escape_label(axis.title), "standoff": 8, "font": font}
    if kind == "log":
        made["exponentformat"] = "power"
        positive = [value for value in values if value > 0 and math.isfinite(value)]
        # Marks between powers of ten only clutter a long axis.
        if positive and math.log10(max(positive) / min(positive)) > 1.5:
            made["dtick"] = 1
    return made
