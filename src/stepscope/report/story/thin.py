"""Fewer points for a chart, none of the extremes lost."""

from typing import Any

import numpy as np
import numpy.typing as npt

MOST = 2000
"""Points of a series, rows of a table."""


def extremes(values: npt.NDArray[Any], most: int = MOST) -> npt.NDArray[np.intp]:
    """Which points to draw: all, or each stretch's lowest and highest, in order."""
    size = len(values)
    if size <= most:
        return np.arange(size)
    width = -(-size // (most // 2 - 1))
    first = np.arange(0, size, width)
    padding = np.full(-size % width, np.nan)
    rows = np.append(values.astype(float), padding).reshape(-1, width)
    low = np.where(np.isnan(rows), np.inf, rows).argmin(axis=1)
    high = np.where(np.isnan(rows), -np.inf, rows).argmax(axis=1)
    chosen = np.concatenate((first + low, first + high, [0, size - 1]))
    return np.unique(np.minimum(chosen, size - 1))


def thinned(total: int, what: str, most: int = MOST) -> str:
    """Said below a chart that draws fewer points than there are; empty where it draws all."""
    if total <= most:
        return ""
    width = -(-total // (most // 2 - 1))
    return f"Of {total:,} {what}, the lowest and highest of every {width:,} are drawn."
