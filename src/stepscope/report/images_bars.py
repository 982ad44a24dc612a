"""Bars, stacks, histograms, and treemaps as bars."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from stepscope.report.images_words import colour, label, labels_of, places_of, words
from stepscope.report.story.blocks import Cell, Chart

MOST_TILES = 16
_CAPS = {"error_kw": {"ecolor": "#5b6470", "elinewidth": 1, "capsize": 2}}


def bars(chart: Chart, axes: Any) -> None:
    """Side by side or stacked, with their intervals."""
    labels = labels_of(chart)
    shown = [series for series in chart.series if not series.line]
    wide = 0.8 if chart.kind == "stacked" else 0.8 / max(1, len(shown))
    ends = [0.0] * len(labels)
    for at, series in enumerate(shown):
        values = _by_label(series.x, series.y, labels)
        low, high = (_by_label(series.x, side, labels) for side in (series.low, series.high))
        moved = 0.0 if chart.kind == "stacked" else (at - (len(shown) - 1) / 2) * wide
        places = [place + moved for place in range(len(labels))]
        errors = _errors(values, low, high) if series.low and series.high else None
        style = {"color": colour(at), "label": label(series) or None}
        begin = list(ends)
        if chart.across:
            axes.barh(places, values, wide * 0.92, left=begin, xerr=errors, **style, **_CAPS)
        else:
            axes.bar(places, values, wide * 0.92, bottom=begin, yerr=errors, **style, **_CAPS)
        if chart.kind == "stacked":
            ends = [
                end + (0.0 if math.isnan(v) else v) for end, v in zip(ends, values, strict=True)
            ]
    if chart.across:
        axes.set_yticks(range(len(labels)), [words(label) for label in labels])
        axes.invert_yaxis()
    else:
        axes.set_xticks(range(len(labels)), [words(label) for label in labels], rotation=30)


def _by_label(x: Sequence[Cell], values: Sequence[float], labels: list[str]) -> list[float]:
    """NaN where a label has none."""
    found = {str(at): value for at, value in zip(x, values, strict=False)}
    return [found.get(label, math.nan) for label in labels]


def _errors(values: list[float], low: list[float], high: list[float]) -> list[list[float]]:
    below = [max(v - at, 0.0) for v, at in zip(values, low, strict=True)]
    return [below, [max(at - v, 0.0) for v, at in zip(values, high, strict=True)]]


def tiles(chart: Chart, axes: Any) -> None:
    """A treemap as bars: the largest tiles that hold no others."""
    found = []
    for series in chart.series:
        above = set(series.parents)
        pairs = zip(series.x, series.y, strict=False)
        found += [(str(name), value) for name, value in pairs if str(name) not in above]
    found = sorted(found, key=lambda one: -one[1])[:MOST_TILES]
    axes.barh(range(len(found)), [value for _, value in found], color=colour(0))
    axes.set_yticks(range(len(found)), [words(name) for name, _ in found])
    axes.invert_yaxis()


def histogram(chart: Chart, axes: Any) -> None:
    """Bins that are counted already, or values to count."""
    for at, series in enumerate(chart.series):
        style = {"color": colour(at), "label": label(series) or None}
        if series.line:
            continue
        if len(series.x) and len(series.y):
            places = places_of(chart, series, axes)
            steps = [after - before for before, after in pairwise(places)]
            axes.bar(places, series.y, width=min(steps, default=0.8) * 0.96, **style)
        else:
            axes.hist(series.x if len(series.x) else series.y, bins=40, **style)
