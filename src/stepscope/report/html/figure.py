"""A chart as the chart library wants it, without colours of its own: those are the page's."""

import math
from typing import Any

from stepscope.report.html.escape import pseudo
from stepscope.report.html.traces import traces
from stepscope.report.html.treemap import treemap
from stepscope.report.story.blocks import Axis, Chart

_ROW_PX = 26
_READABLE = {"mode": "hide", "minsize": 10}
"""Words that do not fit are left out, never made tiny."""


def figure(chart: Chart) -> dict[str, Any]:
    """Its traces, layout and height."""
    layout: dict[str, Any]
    if chart.kind == "treemap":
        margin = {"l": 0, "r": 0, "t": 0, "b": 0}
        drawn = [treemap(series) for series in chart.series]
        layout = {"height": 380, "margin": margin, "uniformtext": _READABLE}
        return {"data": drawn, "layout": layout}
    layout = {
        "height": height(chart),
        "margin": {"l": 8, "r": 12, "t": 8, "b": 8},
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
    return {"data": traces(chart), "layout": layout}


def height(chart: Chart) -> int:
    """Pixels: no more than its bars need."""
    if not chart.across:
        return 300
    rows = max(1, len(_places(chart)))
    grouped = 1 if chart.kind == "stacked" else max(1, len(chart.series))
    lines = rows * (1 + 0.6 * (grouped - 1))
    space = 60 + (24 if _legend(chart) else 0) + (18 if chart.y.title else 0)
    return min(round(space + _ROW_PX * max(lines, 2)), 900)


def wide(chart: Chart) -> bool:
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
            "text": pseudo(axis.title),
            "standoff": 8,
            "font": {"size": 12, "color": "var(--muted)"},
        }
    if kind == "log":
        made |= {"exponentformat": "power"} | ({"dtick": 1} if _decades(values) > 1.5 else {})
    return made
