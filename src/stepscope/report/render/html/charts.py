"""Charts as plotly figures whose colours are the page's own variables."""

import math
from collections.abc import Sequence
from typing import Any

from stepscope.report.render.html.escape import escape_label
from stepscope.report.story.blocks import Axis, Cell, Chart, Role, Series

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
    """Of a series, by its role where it has one, else by its position in the chart."""
    number = position % (_COLOURS - 1) + 1 if role is None else _ROLES[role]
    return f"var(--series-{number})"


def _soft_colour(colour_of: str) -> str:
    """The same colour, thin enough to lie behind a line."""
    return colour_of.replace("var(", "soft(", 1)


Trace = dict[str, Any]
_LONGEST_NAME = 60
_MARKED_POINTS = 40
_LARGEST_POINT = 34


def plotly_traces(chart: Chart) -> list[Trace]:
    """What is drawn of a chart, in the order of its series."""
    made: list[Trace] = []
    for position, series in enumerate(chart.series):
        paint = series_colour(series.role, position)
        if series.line or chart.kind == "line":
            made += _line(series, paint, dashed=series.line and chart.kind != "line")
        elif chart.kind == "scatter":
            made.append(_points(series, paint))
        elif chart.kind == "histogram":
            made.append(_histogram(series, paint))
        else:
            made.append(_bars(chart, series, paint))
    return made


def _plotly_values(values: Sequence[Cell]) -> list[Any]:
    """Values for the library, text escaped."""
    return [escape_label(value) if isinstance(value, str) else _number(value) for value in values]


def _number(value: float | bool | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(f"{value:.7g}")


def _named(series: Series, kind: str) -> Trace:
    name = series.name
    short = name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"
    return {"type": kind, "name": escape_label(short), "showlegend": bool(name)}


def _told(series: Series, *, across: bool = False) -> Trace:
    """What hovering says."""
    if not series.text:
        return {}
    value = "%{x}" if across else "%{y}"
    return {
        "hovertext": [escape_label(text) for text in series.text],
        "hovertemplate": f"%{{hovertext}}<br>{value}<extra></extra>",
    }


def _interval(series: Series) -> Trace | None:
    if not (series.low and series.high):
        return None
    return {
        "type": "data",
        "symmetric": False,
        "array": _plotly_values([high - y for high, y in zip(series.high, series.y, strict=True)]),
        "arrayminus": _plotly_values(
            [y - low for low, y in zip(series.low, series.y, strict=True)]
        ),
        "thickness": 1.2,
        "width": 4,
        "color": "var(--muted)",
    }


def _bars(chart: Chart, series: Series, paint: str) -> Trace:
    places, values = _plotly_values(series.x), _plotly_values(series.y)
    trace = _named(series, "bar") | _told(series, across=chart.across)
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


def _histogram(series: Series, paint: str) -> Trace:
    marker = {"color": paint, "line": {"width": 0}}
    if series.x and series.y:
        drawn = {"x": _plotly_values(series.x), "y": _plotly_values(series.y), "marker": marker}
        return _named(series, "bar") | _told(series) | drawn
    return _named(series, "histogram") | {
        "x": _plotly_values(series.x or series.y),
        "marker": marker,
    }


def _points(series: Series, paint: str) -> Trace:
    marker: Trace = {"color": paint, "opacity": 0.8, "size": 8, "line": {"width": 0}}
    if series.size:
        largest = max((s for s in series.size if math.isfinite(s)), default=0.0) or 1.0
        marker |= {"size": _plotly_values(series.size), "sizemode": "area", "sizemin": 4}
        marker["sizeref"] = 2.0 * largest / _LARGEST_POINT**2
    points = {
        "mode": "markers",
        "x": _plotly_values(series.x),
        "y": _plotly_values(series.y),
        "marker": marker,
    }
    interval = _interval(series)
    if interval is not None:
        points["error_y"] = interval
    return _named(series, "scatter") | _told(series) | points


def _line(series: Series, paint: str, *, dashed: bool) -> list[Trace]:
    """The line, above its band where it has an interval."""
    x, stroke = _plotly_values(series.x), {"color": paint, "width": 1.8}
    line = _named(series, "scatter") | _told(series) | {"x": x, "y": _plotly_values(series.y)}
    marked = not dashed and len(series.y) <= _MARKED_POINTS
    line |= {"mode": "lines+markers" if marked else "lines"}
    line |= {"line": stroke | {"dash": "dash"} if dashed else stroke, "connectgaps": False}
    if not (series.low and series.high):
        return [line]
    edge: Trace = {"type": "scatter", "mode": "lines", "x": x, "line": {"width": 0}}
    edge |= {"showlegend": False, "hoverinfo": "skip"}
    low = edge | {"y": _plotly_values(series.low)}
    return [
        low,
        edge
        | {"y": _plotly_values(series.high), "fill": "tonexty", "fillcolor": _soft_colour(paint)},
        line,
    ]


_LONGEST = 22
_ROOT = "var(--raised)"
_ON = {True: "var(--ink)", False: "var(--on-series)"}


def treemap_trace(series: Series) -> dict[str, Any]:
    """One trace. A tile with children is as large as they are together."""
    names = [str(name) for name in series.x]
    parents = list(series.parents) or [""] * len(names)
    for parent in sorted(set(parents) - set(names) - {""}):
        names, parents = [*names, parent], [*parents, ""]
    above = _above(names, parents)
    with_children = {at for at in above if at is not None}
    values = _plotly_values(series.y) + [0.0] * (len(names) - len(series.y))
    colours = _colours(above)
    texts = [escape_label(text) for text in series.text]
    return {
        "type": "treemap",
        "ids": [str(at) for at in range(len(names))],
        "labels": [escape_label(_short(name)) for name in names],
        "customdata": [escape_label(name) for name in names],
        "parents": ["" if at is None else str(at) for at in above],
        "values": [0.0 if at in with_children else value for at, value in enumerate(values)],
        "text": texts + [""] * (len(names) - len(texts)),
        "branchvalues": "remainder",
        "textinfo": "label+text" if texts else "label+percent root",
        "hovertemplate": "%{customdata}<br>%{value} · %{percentRoot:.1%}<br>%{text}<extra></extra>",
        "textfont": {"color": [_ON[paint == _ROOT] for paint in colours]},
        "marker": {
            "colors": colours,
            "pad": {"t": 22, "l": 3, "r": 3, "b": 3},
            "line": {"width": 1, "color": "var(--surface)"},
        },
        "tiling": {"pad": 2},
        "pathbar": {"visible": False},
        "maxdepth": 3,
    }


def _short(name: str) -> str:
    """As much of a name as a tile may have room for."""
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"


def _above(names: list[str], parents: list[str]) -> list[int | None]:
    """Each tile's parent. A name that several tiles have means a root, else the first of them."""
    place: dict[str, int] = {}
    for at, (name, parent) in enumerate(zip(names, parents, strict=True)):
        if name not in place or (not parent and parents[place[name]]):
            place[name] = at
    above = [place[parent] if parent else None for parent in parents]
    for at in range(len(above)):
        if _circles(at, above):
            above[at] = None
    return above


def _circles(at: int, above: list[int | None]) -> bool:
    """Whether a tile is, by way of others, its own parent."""
    seen: set[int] = set()
    up = above[at]
    while up is not None and up != at and up not in seen:
        seen.add(up)
        up = above[up]
    return up == at


def _colours(above: list[int | None]) -> list[str]:
    """One colour for each branch below a single root, else for each root."""
    roots = [at for at, parent in enumerate(above) if parent is None]
    below = [at for at, parent in enumerate(above) if len(roots) == 1 and parent == roots[0]]
    order = {at: number for number, at in enumerate(below or roots)}
    tops = [_branch(at, above, order) for at in range(len(above))]
    return [_ROOT if top is None else f"var(--series-{order[top] % _COLOURS + 1})" for top in tops]


def _branch(at: int | None, above: list[int | None], order: dict[int, int]) -> int | None:
    """The branch a tile is in; None for what stands above the branches."""
    while at is not None and at not in order:
        at = above[at]
    return at


_ROW_PX = 26
_TOOLS_PX = 28
"""Room for the chart's buttons, which would lie on its bars where no legend is above them."""
_READABLE = {"mode": "hide", "minsize": 10}
"""Words that do not fit are left out, never made tiny."""


def plotly_figure(chart: Chart) -> dict[str, Any]:
    """Its traces, layout and height."""
    layout: dict[str, Any]
    if chart.kind == "treemap":
        margin = {"l": 0, "r": 0, "t": 0, "b": 0}
        drawn = [treemap_trace(series) for series in chart.series]
        layout = {"height": 380, "margin": margin, "uniformtext": _READABLE}
        return {"data": drawn, "layout": layout}
    layout = {
        "height": figure_height(chart),
        "margin": {"l": 8, "r": 12, "t": 8 if _legend(chart) else _TOOLS_PX, "b": 8},
        "barmode": "stack" if chart.kind == "stacked" else "group",
        "bargap": 0.04 if chart.kind == "histogram" else 0.28,
        "hovermode": "closest",
        "showlegend": _legend(chart),
        "legend": {
            "orientation": "h",
            "x": 0,
            "y": 1.02,
            "yanchor": "bottom",
            "traceorder": "normal",
        },
        "uniformtext": _READABLE,
    }
    at = [x for series in chart.series for x in series.x if isinstance(x, int | float)]
    places = _axis(chart.x, at, texts=_texts(chart))
    values = _axis(chart.y, [y for series in chart.series for y in series.y], texts=False)
    values |= {} if chart.y.log else {"rangemode": "tozero"}
    if chart.across:
        places |= {"autorange": "reversed", "showgrid": False}
        places["showticklabels"] = chart.kind != "stacked" or len(_places(chart)) > 1
        layout |= {"xaxis": values, "yaxis": places}
    else:
        layout |= {"xaxis": places, "yaxis": values}
    return {"data": plotly_traces(chart), "layout": layout}


def figure_height(chart: Chart) -> int:
    """Pixels: no more than its bars need."""
    if not chart.across:
        return 300
    rows = max(1, len(_places(chart)))
    grouped = 1 if chart.kind == "stacked" else max(1, len(chart.series))
    lines = rows * (1 + 0.6 * (grouped - 1))
    space = 60 + (24 if _legend(chart) else _TOOLS_PX - 8) + (18 if chart.y.title else 0)
    return min(round(space + _ROW_PX * max(lines, 2)), 900)


def is_wide(chart: Chart) -> bool:
    """Whether it wants the page's whole width."""
    return chart.kind == "treemap" or (chart.kind == "stacked" and chart.across)


def _legend(chart: Chart) -> bool:
    return len([series for series in chart.series if series.name]) > 1


def _places(chart: Chart) -> set[str]:
    return {str(x) for series in chart.series for x in series.x}


def _texts(chart: Chart) -> bool:
    return any(isinstance(x, str) for series in chart.series for x in series.x)


def _decades(values: list[float]) -> float:
    """How many powers of ten they span: marks between those only clutter a long axis."""
    positive = [value for value in values if value > 0 and math.isfinite(value)]
    return math.log10(max(positive) / min(positive)) if positive else 0.0


def _axis(axis: Axis, values: list[float], *, texts: bool) -> dict[str, Any]:
    kind = "category" if texts else "log" if axis.log else "linear"
    made: dict[str, Any] = {"automargin": True, "zeroline": False, "type": kind}
    if axis.title:
        made["title"] = {
            "text": escape_label(axis.title),
            "standoff": 8,
            "font": {"size": 12, "color": "var(--muted)"},
        }
    if kind == "log":
        made |= {"exponentformat": "power"} | ({"dtick": 1} if _decades(values) > 1.5 else {})
    return made
