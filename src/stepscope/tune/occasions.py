"""What happened between the steps of a trial, for the proof to say what it covers."""

from typing import Any

import numpy as np

from stepscope.analyze.steps import Rows, Steps
from stepscope.record.rows import Kind


def occasions(rows: Rows, steps: Steps) -> dict[str, list[int]]:
    """Steps count from 1. `epochs`, `evaluations` and `saves`: the steps after which one came,
    among those that another step followed; `short_batches`: steps with fewer samples than usual.
    """
    rows = rows[rows["end_ns"] > 0] if rows.size else rows
    if not len(steps) or not rows.size:
        return {"epochs": [], "evaluations": [], "saves": [], "short_batches": []}
    kind = rows["kind"].astype(int)
    after = np.searchsorted(steps.end, rows["end_ns"], side="left")
    after += np.isin(rows["end_ns"], steps.end)  # the row that ends a step is part of it
    evaluating = (kind == Kind.EVAL) & (steps.what == "training")
    validating = (kind == Kind.EPOCH) & np.append(evaluating[1:], False)
    count = len(steps)
    return {
        "epochs": _between(after[(kind == Kind.EPOCH) & ~validating], count),
        "evaluations": _between(after[evaluating], count),
        "saves": _between(after[(kind == Kind.SAVE) | (rows["save_ns"] > 0)], count),
        "short_batches": _short(steps),
    }


def _between(after: Any, count: int) -> list[int]:
    return [int(step) for step in np.unique(after) if 0 < step < count]


def _short(steps: Steps) -> list[int]:
    usual = float(np.median(steps.samples))
    return [
        int(place) + 1 for place in np.flatnonzero((steps.samples > 0) & (steps.samples < usual))
    ]
