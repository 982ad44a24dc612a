"""Series as the chart library's traces. NaN becomes null: a gap."""

import math
from collections.abc import Sequence
from typing import Any

from stepscope.report.html.escape import pseudo
from stepscope.report.html.palette import colour, soft
from stepscope.report.story.blocks import Cell, Chart, Series

Trace = dict[str, Any]
_LONGEST_NAME = 60
_MARKED_POINTS = 40
_LARGEST_POINT = 34


def traces(chart: Chart) -> list[Trace]:
    """What is drawn of a chart, in the order of its series."""
    made: list[Trace] = []
    for position, series in enumerate(chart.series):
        paint = colour(series.name, position)
        if series.line or chart.kind == "line":
            made += _line(series, paint, dashed=series.line and chart.kind != "line")
        elif chart.kind == "scatter":
            made.append(_points(series, paint))
        elif chart.kind == "histogram":
            made.append(_histogram(series, paint))
        else:
            made.append(_bars(chart, series, paint))
    return made


def cells(values: Sequence[Cell]) -> list[Any]:
    """Values for the library, text escaped."""
    return [pseudo(value) if isinstance(value, str) else _number(value) for value in values]


def _number(value: float | bool | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(f"{value:.7g}")


def _named(series: Series, kind: str) -> Trace:
    name = series.name
    short = name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"
    return {"type": kind, "name": pseudo(short), "showlegend": bool(name)}


def _told(series: Series, *, across: bool = False) -> Trace:
    """What hovering says."""
    if not series.text:
        return {}
    value = "%{x}" if across else "%{y}"
    return {
        "hovertext": [pseudo(text) for text in series.text],
        "hovertemplate": f"%{{hovertext}}<br>{value}<extra></extra>",
    }


def _interval(series: Series) -> Trace | None:
    if not (series.low and series.high):
        return None
    return {
        "type": "data",
        "symmetric": False,
        "array": cells([high - y for high, y in zip(series.high, series.y, strict=True)]),
        "arrayminus": cells([y - low for low, y in zip(series.low, series.y, strict=True)]),
        "thickness": 1.2,
        "width": 4,
        "color": "var(--muted)",
    }


def _bars(chart: Chart, series: Series, paint: str) -> Trace:
    places, values = cells(series.x), cells(series.y)
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
        drawn = {"x": cells(series.x), "y": cells(series.y), "marker": marker}
        return _named(series, "bar") | _told(series) | drawn
    return _named(series, "histogram") | {"x": cells(series.x or series.y), "marker": marker}


def _points(series: Series, paint: str) -> Trace:
    marker: Trace = {"color": paint, "opacity": 0.8, "size": 8, "line": {"width": 0}}
    if series.size:
        largest = max((s for s in series.size if math.isfinite(s)), default=0.0) or 1.0
        marker |= {"size": cells(series.size), "sizemode": "area", "sizemin": 4}
        marker["sizeref"] = 2.0 * largest / _LARGEST_POINT**2
    points = {"mode": "markers", "x": cells(series.x), "y": cells(series.y), "marker": marker}
    interval = _interval(series)
    if interval is not None:
        points["error_y"] = interval
    return _named(series, "scatter") | _told(series) | points


def _line(series: Series, paint: str, *, dashed: bool) -> list[Trace]:
    """The line, above its band where it has an interval."""
    x, stroke = cells(series.x), {"color": paint, "width": 1.8}
    line = _named(series, "scatter") | _told(series) | {"x": x, "y": cells(series.y)}
    marked = not dashed and len(series.y) <= _MARKED_POINTS
    line |= {"mode": "lines+markers" if marked else "lines"}
    line |= {"line": stroke | {"dash": "dash"} if dashed else stroke, "connectgaps": False}
    if not (series.low and series.high):
        return [line]
    edge: Trace = {"type": "scatter", "mode": "lines", "x": x, "line": {"width": 0}}
    edge |= {"showlegend": False, "hoverinfo": "skip"}
    low = edge | {"y": cells(series.low)}
    return [
        low,
        edge | {"y": cells(series.high), "fill": "tonexty", "fillcolor": soft(paint)},
        line,
    ]
