"""Quantities of two sides beside each other: phases and idle time, memory, energy, GPU use, and
losses.
"""

from collections.abc import Callable, Sequence
from math import isfinite
from statistics import fmean
from typing import Any, Final

from stepscope.compare.items import Document, Side
from stepscope.record.row_log import STEP_PHASES

Rows = list[dict[str, Any]]


def phase_rows(base: Sequence[Side], other: Sequence[Side], scale: float = 1.0) -> Rows:
    """Mean time of each phase over the runs of a side, ms a step; none where a side has no runs.

    `scale` brings the other's steps to as many samples as the base's have.
    """
    ours, theirs = _means(base), _means(other)
    if ours is None or theirs is None:
        return []
    return _rows({name: (ours[name], theirs[name] * scale) for name in STEP_PHASES})


def idle_rows(base: Sequence[Side], other: Sequence[Side], scale: float = 1.0) -> Rows:
    """Idle of the device by cause in the recorded steps, ms a step."""
    ours, theirs = _idle(base), _idle(other)
    if ours is None or theirs is None:
        return []
    return _rows({name: (ours[name], theirs.get(name, 0.0) * scale) for name in ours})


def recorded_window(side: Side) -> dict[str, Any] | None:
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
        found = recorded_window(side)
        if found is not None and None not in found["idle_ns"].values():
            steps = found["steps"]["count"]
            known.append({name: ns / steps / 1e6 for name, ns in found["idle_ns"].items()})
    if not known:
        return None
    return {name: fmean(one.get(name, 0.0) for one in known) for name in known[0]}


Number = float | None
ReadAmount = Callable[[Side], Number]


def resource_rows(base: Sequence[Side], other: Sequence[Side]) -> list[dict[str, Any]]:
    """Those known of both sides: `name`, `unit`, `base`, `other`. Peaks are the highest of a side,
    the rest means."""
    found = []
    for name, unit, how, look in _AMOUNTS:
        ours, theirs = (_over(sides, look, how) for sides in (base, other))
        if ours is not None and theirs is not None:
            found.append({"name": name, "unit": unit, "base": ours, "other": theirs})
    return found


def _over(sides: Sequence[Side], look: ReadAmount, how: Callable[[list[float]], float]) -> Number:
    values = [value for side in sides if (value := look(side)) is not None]
    return float(how(values)) if values else None


def _memory(side: Side) -> Number:
    document = side.document
    if side.kind == "run":
        return _number(document["memory"], "peak_bytes")
    if side.kind == "tune":
        return _number(_tuned(document), "peak_memory_bytes")
    return _only(document, "peak_memory_bytes") if side.kind == "bench" else _recorded(document)


def _recorded(document: Document) -> Number:
    uses = [use for use in document.get("memory") or () if use.get("peak_bytes")]
    return max((float(use["peak_bytes"]) for use in uses), default=None)


def _reserved(side: Side) -> Number:
    return _number(side.document.get("gpu"), "peak_reserved_bytes") if side.kind == "run" else None


def _energy(side: Side) -> Number:
    if side.kind == "tune":
        return _number(_tuned(side.document), "energy_j_per_step")
    return _number(side.document.get("gpu"), "energy_j_per_step") if side.kind == "run" else None


def _busy(side: Side) -> Number:
    document = side.document
    if side.kind == "run":
        return _number(document.get("gpu"), "busy_fraction")
    if side.kind == "tune":
        return _number(_tuned(document), "gpu_busy")
    return _only(document, "gpu_busy") if side.kind == "bench" else None


def _kernels(side: Side) -> Number:
    if side.kind == "run":
        return _number(side.document.get("gpu"), "kernels_per_step")
    if side.kind != "trace" or not side.document["source"]["has"]["device"]:
        return None
    return float(side.document["launch"]["kernels"] / side.document["steps"]["count"])


def _tuned(document: Document) -> Document:
    """What the last word of a tune measured: with its fixes, else the program as it is."""
    measured = (document.get("final") or {}).get("measured") or {}
    found: Document = measured.get("ladder") or document.get("baseline") or {}
    return found


def _only(document: Document, name: str) -> Number:
    """Of a bench with a single point."""
    points = list(document.get("points") or ())
    return _number(points[0], name) if len(points) == 1 else None


def _number(document: Document | None, name: str) -> Number:
    value = (document or {}).get(name)
    return None if value is None else float(value)


_AMOUNTS: tuple[tuple[str, str, Callable[[list[float]], float], ReadAmount], ...] = (
    ("peak memory", "bytes", max, _memory),
    ("reserved memory", "bytes", max, _reserved),
    ("energy per step", "J", fmean, _energy),
    ("GPU busy", "share", fmean, _busy),
    ("kernels per step", "", fmean, _kernels),
)


CLOSE: Final = 0.01
"""The relative difference up to which two losses count as close."""
Losses = Sequence[float | None]


def compare_losses(base: Sequence[Losses], other: Sequence[Losses]) -> dict[str, Any] | None:
    """`state` (identical, close, differ), the `step` from which they differ, counted from 1, the
    `largest` relative difference, over how many `steps`; None where there are none to compare.

    `control`: the same state of two runs of one side, which says what means nothing; None where a
    side has one run only.
    """
    found = _pair(base[0], other[0]) if base and other else None
    if found is None:
        return None
    controls = [_pair(side[0], side[1]) for side in (base, other) if len(side) > 1]
    known = [one["state"] for one in controls if one is not None]
    return {**found, "control": max(known, key=_STATES.index) if known else None}


_STATES = ("identical", "close", "differ")


def _pair(ours: Losses, theirs: Losses) -> dict[str, Any] | None:
    both = [(a, b) for a, b in zip(ours, theirs, strict=False)]
    gaps = [_gap(a, b) for a, b in both]
    if not any(gap is not None for gap in gaps):
        return None
    known = [gap for gap in gaps if gap is not None]
    largest = max(known)
    first = next((n for n, gap in enumerate(gaps, 1) if gap is not None and gap > CLOSE), None)
    state = "identical" if largest == 0 else "close" if first is None else "differ"
    return {
        "state": state,
        "step": first,
        "largest": largest if isfinite(largest) else None,
        "steps": len(known),
    }


def _gap(a: float | None, b: float | None) -> float | None:
    """The relative difference; None where neither is known, infinite where only one is."""
    if a is None and b is None:
        return None
    if a is None or b is None:
        return float("inf")
    return 0.0 if a == b else abs(a - b) / max(abs(a), abs(b))
