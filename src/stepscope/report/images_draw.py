"""How each kind of chart is drawn with matplotlib's axes."""

from typing import Any

from stepscope.report.images_bars import MOST_TILES, bars, histogram, tiles
from stepscope.report.images_words import colour, label, labels_of, places_of, words
from stepscope.report.story.blocks import Axis, Chart, Series


def height(chart: Chart) -> float:
    """Inches: what its bars need."""
    if not (chart.across or chart.kind == "treemap"):
        return 3.2
    rows = min(len(labels_of(chart)), MOST_TILES if chart.kind == "treemap" else 60)
    groups = 1 if chart.kind in ("stacked", "treemap") else max(1, len(chart.series))
    return min(1.3 + 0.28 * rows * (1 + 0.5 * (groups - 1)), 11.0)


def draw(chart: Chart, axes: Any) -> None:
    """The chart without its title, which stands beside it in a report."""
    across = chart.across
    if chart.kind == "treemap":
        tiles(chart, axes)
        across = True
    elif chart.kind in ("bars", "stacked"):
        bars(chart, axes)
    elif chart.kind == "histogram":
        histogram(chart, axes)
    for at, series in enumerate(chart.series):
        if chart.kind in ("line", "scatter") or series.line:
            _points(chart, series, colour(at), axes)
    _axis(axes, chart.y, across)
    _axis(axes, chart.x, not across)
    _few_places(chart, axes)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x" if across else "y", color="#e6e7e5", linewidth=0.7)
    axes.set_axisbelow(True)
    if len([series for series in chart.series if series.name]) > 1 and chart.kind != "treemap":
        places = {"loc": "lower center", "bbox_to_anchor": (0.5, 1.0)}
        axes.legend(**places, ncols=min(len(chart.series), 4), frameon=False, fontsize=8)
    axes.tick_params(labelsize=8)


def _axis(axes: Any, axis: Axis, upright_is_other: bool) -> None:
    side = "x" if upright_is_other else "y"
    if axis.title:
        getattr(axes, f"set_{side}label")(words(axis.title), fontsize=9)
    if axis.log:
        getattr(axes, f"set_{side}scale")("log")


def _few_places(chart: Chart, axes: Any) -> None:
    """A logarithmic axis of few values, as batch sizes, is marked at just those."""
    at = sorted({x for one in chart.series for x in one.x if isinstance(x, int)})
    if chart.x.log and chart.kind == "line" and 1 < len(at) <= 12:
        axes.set_xticks(at, [f"{x:,}" for x in at])
        axes.minorticks_off()


def _points(chart: Chart, series: Series, paint: str, axes: Any) -> None:
    x = places_of(chart, series, axes)
    style = {"color": paint, "label": label(series) or None}
    if chart.kind == "scatter" and not series.line:
        largest = max(series.size, default=1.0) or 1.0
        areas = [8 + 160 * one / largest for one in series.size] or 18
        axes.scatter(x, series.y, s=areas, alpha=0.75, linewidths=0, **style)
        return
    dashed = "--" if series.line and chart.kind != "line" else "-"
    marker = "o" if len(x) <= 40 and dashed == "-" else None
    axes.plot(x, series.y, linestyle=dashed, linewidth=1.3, marker=marker, markersize=3, **style)
    if series.low and series.high:
        axes.fill_between(x, series.low, series.high, color=paint, alpha=0.15, linewidth=0)
