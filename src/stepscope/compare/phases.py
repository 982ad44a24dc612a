"""Where the time of a step went, one side against the other."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from stepscope.compare.sides import Side
from stepscope.record.rows import STEP_PHASES

Rows = list[dict[str, Any]]


def phases(base: Sequence[Side], other: Sequence[Side], scale: float = 1.0) -> Rows:
    """Mean time of each phase over the runs of a side, ms a step; none where a side has no runs.

    `scale` brings the other's steps to as many samples as the base's have.
    """
    ours, theirs = _means(base), _means(other)
    if ours is None or theirs is None:
        return []
    return _rows({name: (ours[name], theirs[name] * scale) for name in STEP_PHASES})


def idle(base: Sequence[Side], other: Sequence[Side], scale: float = 1.0) -> Rows:
    """Idle of the device by cause in the recorded steps, ms a step."""
    ours, theirs = _idle(base), _idle(other)
    if ours is None or theirs is None:
        return []
    return _rows({name: (ours[name], theirs.get(name, 0.0) * scale) for name in ours})


def window(side: Side) -> dict[str, Any] | None:
    """The analysis of what was recorded at kernel level."""
    found: dict[str, Any] | None = (
        dict(side.document) if side.kind == "trace" else side.document.get("timeline")
    )
    return found


def _rows(pairs: dict[str, tuple[float, float]]) -> Rows:
    wholes = [sum(pair[place] for pair in pairs.values()) or 1.0 for place in (0, 1)]
    return [
        {
            "name": name,
            "base_ms": ours,
            "other_ms": theirs,
            "delta_ms": theirs - ours,
            "base_share": ours / wholes[0],
            "other_share": theirs / wholes[1],
        }
        for name, (ours, theirs) in pairs.items()
        if ours or theirs
    ]


def _means(sides: Sequence[Side]) -> dict[str, float] | None:
    runs = [side.document["phases_ms"] for side in sides if side.kind == "run"]
    if not runs or len(runs) < len(sides):
        return None
    return {name: fmean(float(run[name]) for run in runs) for name in STEP_PHASES}


def _idle(sides: Sequence[Side]) -> dict[str, float] | None:
    known = []
    for side in sides:
        found = window(side)
        if found is not None and None not in found["idle_ns"].values():
            steps = found["steps"]["count"]
            known.append({name: ns / steps / 1e6 for name, ns in found["idle_ns"].items()})
    if not known:
        return None
    return {name: fmean(one.get(name, 0.0) for one in known) for name in known[0]}
