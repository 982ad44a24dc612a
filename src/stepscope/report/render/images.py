"""Charts as pictures, drawn by matplotlib without a window or global state."""

import math
import warnings
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from stepscope.record.errors import MissingExtra
from stepscope.report.story.blocks import Cell, Chart, Series, Story
from stepscope.report.text import keep_start, one_line

_COLOURS = ["#3f6fcf", "#d9822b", "#2b8f86", "#8a63c9", "#c2554f", "#5f9440", "#bd5a94", "#808a96"]
_LONGEST = 44
"""Letters of a name."""


def _style(series: Series, at: int) -> dict[str, Any]:
    """Its legend name, and its colour by position, from the page's light theme."""
    # Names with a leading underscore would be missing from the legend.
    name = label_text(series.name)
    label = f" {name}" if series.name.startswith("_") else name
    return {"color": _COLOURS[at % len(_COLOURS)], "label": label or None}


def label_text(value: str, most: int = _LONGEST) -> str:
    """Literal text, shortened: matplotlib would read formulas between dollars."""
    return keep_start(one_line(value), most).replace("$", r"\$")


def _labels_of(chart: Chart) -> list[str]:
    return list(dict.fromkeys(str(x) for series in chart.series for x in series.x))


def _set_ticks(axes: Any, labels: list[str], upright: bool = False) -> None:
    texts = [label_text(label) for label in labels]
    if upright:
        axes.set_yticks(range(len(labels)), texts)
        axes.invert_yaxis()
    else:
        axes.set_xticks(range(len(labels)), texts, rotation=30)


def _positions_of(chart: Chart, series: Series, axes: Any) -> list[float]:
    """Points' positions; names are placed side by side in order of appearance."""
    if not any(isinstance(x, str) for one in chart.series for x in one.x):
        return [math.nan if isinstance(x, str) or x is None else float(x) for x in series.x]
    labels = _labels_of(chart)
    _set_ticks(axes, labels)
    at = {label: place for place, label in enumerate(labels)}
    return [float(at[str(x)]) for x in series.x]


_MOST_TILES = 16
_CAPS = {"error_kw": {"ecolor": "#5b6470", "elinewidth": 1, "capsize": 2}}


def _bars(chart: Chart, axes: Any) -> None:
    """Side by side or stacked, with their intervals."""
    labels, stacked = _labels_of(chart), chart.kind == "stacked"
    shown = [series for series in chart.series if not series.line]
    wide = 0.8 if stacked else 0.8 / max(1, len(shown))
    ends = [0.0] * len(labels)
    for at, series in enumerate(shown):
        values, low, high = (
            _by_label(series.x, side, labels) for side in (series.y, series.low, series.high)
        )
        moved = 0.0 if stacked else (at - (len(shown) - 1) / 2) * wide
        places = [place + moved for place in range(len(labels))]
        errors = None
        if series.low and series.high:
            below = [max(v - end, 0.0) for v, end in zip(values, low, strict=True)]
            errors = [below, [max(end - v, 0.0) for v, end in zip(values, high, strict=True)]]
        style, begin = _style(series, at) | _CAPS, list(ends)
        if chart.across:
            axes.barh(places, values, wide * 0.92, left=begin, xerr=errors, **style)
        else:
            axes.bar(places, values, wide * 0.92, bottom=begin, yerr=errors, **style)
        if stacked:
            tops = [0.0 if math.isnan(value) else value for value in values]
            ends = [end + top for end, top in zip(ends, tops, strict=True)]
    _set_ticks(axes, labels, upright=chart.across)


def _by_label(x: Sequence[Cell], values: Sequence[float], labels: list[str]) -> list[float]:
    """Values by label, NaN if missing."""
    found = {str(at): value for at, value in zip(x, values, strict=False)}
    return [found.get(label, math.nan) for label in labels]


def _histogram(chart: Chart, axes: Any) -> None:
    """Draws counted bins, or counts values."""
    for at, series in enumerate(chart.series):
        if series.line:
            continue
        if len(series.x) and len(series.y):
            places = _positions_of(chart, series, axes)
            steps = [after - before for before, after in pairwise(places)]
            axes.bar(places, series.y, width=min(steps, default=0.8) * 0.96, **_style(series, at))
        else:
            axes.hist(series.x if len(series.x) else series.y, bins=40, **_style(series, at))


def _draw_chart(chart: Chart, axes: Any) -> None:
    """The chart without its title, which a report prints beside it."""
    across = chart.across or chart.kind == "treemap"
    if chart.kind == "treemap":
        # As bars: the largest leaf tiles.
        tiles: list[tuple[str, float]] = []
        for series in chart.series:
            pairs = zip(map(str, series.x), series.y, strict=False)
            tiles += [(name, value) for name, value in pairs if name not in series.parents]
        tiles = sorted(tiles, key=lambda one: -one[1])[:_MOST_TILES]
        axes.barh(range(len(tiles)), [value for _, value in tiles], color=_COLOURS[0])
        _set_ticks(axes, [name for name, _ in tiles], upright=True)
    elif chart.kind in ("bars", "stacked"):
        _bars(chart, axes)
    elif chart.kind == "histogram":
        _histogram(chart, axes)
    for at, series in enumerate(chart.series):
        if chart.kind in ("line", "scatter") or series.line:
            _points(chart, series, at, axes)
    for axis, side in ((chart.y, "x" if across else "y"), (chart.x, "y" if across else "x")):
        if axis.title:
            getattr(axes, f"set_{side}label")(label_text(axis.title), fontsize=9)
        if axis.log:
            getattr(axes, f"set_{side}scale")("log")
    few = sorted({x for one in chart.series for x in one.x if isinstance(x, int)})
    if chart.x.log and chart.kind == "line" and 1 < len(few) <= 12:
        # A logarithmic axis with few values, such as batch sizes, has ticks only there.
        axes.set_xticks(few, [f"{x:,}" for x in few])
        axes.minorticks_off()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x" if across else "y", color="#e6e7e5", linewidth=0.7)
    axes.set_axisbelow(True)
    if len([series for series in chart.series if series.name]) > 1 and chart.kind != "treemap":
        places = {"loc": "lower center", "bbox_to_anchor": (0.5, 1.0)}
        axes.legend(**places, ncols=min(len(chart.series), 4), frameon=False, fontsize=8)
    axes.tick_params(labelsize=8)


def _points(chart: Chart, series: Series, at: int, axes: Any) -> None:
    x, style = _positions_of(chart, series, axes), _style(series, at)
    if chart.kind == "scatter" and not series.line:
        largest = max(series.size, default=1.0) or 1.0
        areas = [8 + 160 * one / largest for one in series.size] or 18
        axes.scatter(x, series.y, s=areas, alpha=0.75, linewidths=0, **style)
        return
    dashed = "--" if series.line and chart.kind != "line" else "-"
    marker = "o" if len(x) <= 40 and dashed == "-" else None
    axes.plot(x, series.y, linestyle=dashed, linewidth=1.3, marker=marker, markersize=3, **style)
    if series.low and series.high:
        paint = style["color"]
        axes.fill_between(x, series.low, series.high, color=paint, alpha=0.15, linewidth=0)


_SALT = {"svg.hashsalt": "stepscope", "pdf.fonttype": 42, "svg.fonttype": "none"}


def drawable_charts(story: Story) -> list[Chart]:
    """Charts with anything to draw, in order."""
    found = (block for block in story.blocks if isinstance(block, Chart))
    return [chart for chart in found if any(len(one.y) or len(one.x) for one in chart.series)]


def write_image(chart: Chart, path: Path, *, titled: bool = False) -> None:
    """Write one chart, reproducibly. `titled`: with its title above, for a file shown on its own.
    Raises MissingExtra without matplotlib."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("matplotlib", "report", "a picture") from None
    height = 3.2  # inches, by its number of bars
    if chart.across or chart.kind == "treemap":
        rows = min(len(_labels_of(chart)), _MOST_TILES if chart.kind == "treemap" else 60)
        groups = 1 if chart.kind in ("stacked", "treemap") else max(1, len(chart.series))
        height = min(1.3 + 0.28 * rows * (1 + 0.5 * (groups - 1)), 11.0)
    with rc_context(_SALT), warnings.catch_warnings():
        # Missing glyphs are drawn as boxes, without a warning.
        warnings.simplefilter("ignore")
        figure = Figure(figsize=(7.2, height), layout="constrained")
        _draw_chart(chart, figure.subplots())
        if titled:
            figure.suptitle(label_text(chart.title, 90), fontsize=10, fontweight="bold")
        # Without a date in it.
        dated = {".png": {"Software": None}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
        figure.savefig(path, dpi=160, metadata=dated.get(path.suffix))
