"""What was sampled of the machine, as lines over the run's time."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.report.story.blocks import Axis, Chart, Series
from stepscope.report.story.thin import extremes, thinned

Samples = npt.NDArray[Any]


def clock(document: dict[str, Any], samples: Samples) -> npt.NDArray[np.float64]:
    """Seconds since the program's start of each sample; since the first where that is not known."""
    start = float(document["run"].get("started_ns") or 0) or float(samples["t_ns"][0])
    seconds: npt.NDArray[np.float64] = (samples["t_ns"] - start) / 1e9
    return seconds


def over_time(
    name: str,
    title: str,
    samples: Samples,
    seconds: npt.NDArray[np.float64],
    columns: Mapping[str, str],
    unit: str,
    scale: float = 1.0,
) -> Chart | None:
    """A line per column that holds something; None where none does."""
    series = []
    for column, label in columns.items():
        values = samples[column] * scale
        if np.isfinite(values).any() and np.nanmax(np.abs(values)) > 0:
            at = extremes(values)
            series.append(Series(label, seconds[at].tolist(), values[at].tolist()))
    if not series:
        return None
    named = tuple(series) if len(columns) > 1 else (Series("", series[0].x, series[0].y),)
    x, y = Axis("s since its start"), Axis(unit)
    return Chart(name, "line", title, named, x=x, y=y, note=thinned(len(samples), "samples"))
