"""How often values occur, as bins a chart can draw."""

from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.report.story.blocks import Axis, Chart, Series

_BINS = 40
_FAR = 1.5  # times the 99th percentile: beyond that, bins would tell nothing of the rest


def step_histogram(times_ms: npt.NDArray[Any], noun: str) -> Chart:
    """Step times in bins; what lies far out is in the last one, and said."""
    low, high = float(times_ms.min()), float(times_ms.max())
    far = _FAR * float(np.percentile(times_ms, 99))
    beyond = int(np.count_nonzero(times_ms > far))
    edges = np.linspace(low, max(min(high, far), low + 1e-6), min(_BINS, len(times_ms)) + 1)
    counts, _ = np.histogram(np.minimum(times_ms, edges[-1]), edges)
    centres = (edges[:-1] + edges[1:]) / 2
    words = "takes" if beyond == 1 else "take"
    note = f"{beyond:,} {words} longer, up to {high:,.4g} ms: they are in the last bar."
    return Chart(
        "step-histogram",
        "histogram",
        f"How long a {noun} takes",
        (Series("", centres.tolist(), counts.astype(float).tolist()),),
        x=Axis(f"ms per {noun}"),
        y=Axis("how many"),
        note=note if beyond else "",
    )
