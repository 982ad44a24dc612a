"""Recorded series as charts: downsampled without losing extremes, over time, and as histograms."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.report.story.blocks import Axis, Chart, Series

MAX_POINTS = 2000
"""Points of a series, rows of a table."""


def downsampled_indices(values: npt.NDArray[Any]) -> npt.NDArray[np.intp]:
    """Indices of points to draw: all, or the lowest and highest of each stretch, in order."""
    size = len(values)
    if size <= MAX_POINTS:
        return np.arange(size)
    width = -(-size // (MAX_POINTS // 2 - 1))
    first = np.arange(0, size, width)
    padding = np.full(-size % width, np.nan)
    rows = np.append(values.astype(float), padding).reshape(-1, width)
    low = np.where(np.isnan(rows), np.inf, rows).argmin(axis=1)
    high = np.where(np.isnan(rows), -np.inf, rows).argmax(axis=1)
    chosen = np.concatenate((first + low, first + high, [0, size - 1]))
    return np.unique(np.minimum(chosen, size - 1))


def downsample_note(total: int, what: str, most: int = MAX_POINTS) -> str:
    """The note below a downsampled chart; empty if it draws all points."""
    if total <= most:
        return ""
    width = -(-total // (most // 2 - 1))
    return f"Of {total:,} {what}, the lowest and highest of every {width:,} are drawn."


Samples = npt.NDArray[Any]


def seconds_since_start(document: dict[str, Any], samples: Samples) -> npt.NDArray[np.float64]:
    """Each sample's seconds since the program's start, or since the first sample if that is
    unknown."""
    start = float(document["run"].get("started_ns") or 0) or float(samples["t_ns"][0])
    seconds: npt.NDArray[np.float64] = (samples["t_ns"] - start) / 1e9
    return seconds


def over_time_chart(
    name: str,
    title: str,
    samples: Samples,
    seconds: npt.NDArray[np.float64],
    columns: Mapping[str, str],
    unit: str,
    scale: float = 1.0,
) -> Chart | None:
    """One line per column with data; None without any."""
    series = []
    for column, label in columns.items():
        values = samples[column] * scale
        if np.isfinite(values).any() and np.nanmax(np.abs(values)) > 0:
            at = downsampled_indices(values)
            series.append(Series(label, seconds[at].tolist(), values[at].tolist()))
    if not series:
        return None
    named = tuple(series) if len(columns) > 1 else (Series("", series[0].x, series[0].y),)
    note = downsample_note(len(samples), "samples")
    return Chart.lines(name, title, *named, x="s since its start", y=unit, note=note)


_BINS = 40
_FAR = 1.5  # times the 99th percentile: beyond it, bins would say nothing about the rest


def step_histogram(times_ms: npt.NDArray[Any], noun: str) -> Chart:
    """Step times in bins; outliers go into the last one, with a note."""
    low, high = float(times_ms.min()), float(times_ms.max())
    far = _FAR * float(np.percentile(times_ms, 99))
    beyond = int(np.count_nonzero(times_ms > far))
    edges = np.linspace(low, max(min(high, far), low + 1e-6), min(_BINS, len(times_ms)) + 1)
    counts, _ = np.histogram(np.minimum(times_ms, edges[-1]), edges)
    centres = (edges[:-1] + edges[1:]) / 2
    words = "takes" if beyond == 1 else "take"
    note = f"{beyond:,} {words} longer, up to {high:,.4g} ms: they are in the last bar."
    series = Series("", centres.tolist(), counts.astype(float).tolist())
    title, axes = f"How long a {noun} takes", (Axis(f"ms per {noun}"), Axis("how many"))
    shown = note if beyond else ""
    return Chart("step-histogram", "histogram", title, (series,), *axes, note=shown)
