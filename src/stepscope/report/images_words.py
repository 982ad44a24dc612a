"""What drawings have in common: colours, words, and where names stand."""

import math
from typing import Any

from stepscope.report.story.blocks import Chart, Series
from stepscope.report.text import safe

_COLOURS = (
    "#3f6fcf", "#d9822b", "#2b8f86", "#8a63c9", "#c2554f", "#5f9440", "#bd5a94", "#808a96",
)  # fmt: skip
_LONGEST = 44
"""Letters of a name."""


def colour(at: int) -> str:
    """Of a series by its position: that of the page's light theme."""
    return _COLOURS[at % len(_COLOURS)]


def words(value: str, most: int = _LONGEST) -> str:
    """Text as it stands, shortened: matplotlib reads formulas between dollars."""
    plain = safe(value).encode("utf-8", "replace").decode("utf-8")
    short = plain if len(plain) <= most else f"{plain[: most - 1]}…"
    return short.replace("$", r"\$")


def label(series: Series) -> str:
    """A name that begins with an underscore would be left out of the legend."""
    return f" {words(series.name)}" if series.name.startswith("_") else words(series.name)


def labels_of(chart: Chart) -> list[str]:
    """The names on its first axis, in the order they come in."""
    return list(dict.fromkeys(str(x) for series in chart.series for x in series.x))


def places_of(chart: Chart, series: Series, axes: Any) -> list[float]:
    """Where points stand; names stand beside each other in the order they come in."""
    if not any(isinstance(x, str) for one in chart.series for x in one.x):
        return [math.nan if isinstance(x, str) or x is None else float(x) for x in series.x]
    labels = labels_of(chart)
    axes.set_xticks(range(len(labels)), [words(label) for label in labels], rotation=30)
    at = {label: place for place, label in enumerate(labels)}
    return [float(at[str(x)]) for x in series.x]
