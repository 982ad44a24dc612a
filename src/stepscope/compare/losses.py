"""Whether both sides computed the same: their losses, step by step."""

from collections.abc import Sequence
from math import isfinite
from typing import Any, Final

CLOSE: Final = 0.01
"""The relative difference up to which two losses count as close."""
Losses = Sequence[float | None]


def losses(base: Sequence[Losses], other: Sequence[Losses]) -> dict[str, Any] | None:
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
