"""Whether two trainings of the same model came to the same: losses and scores beside each other."""

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, Final

Measured = Mapping[str, Any]

FIRST: Final = 10
"""Losses of how many first steps are compared."""
WITHIN: Final = 0.01


def curves(ours: Measured, theirs: Measured) -> dict[str, list[dict[str, Any]]]:
    """Losses by step and scores by step, of both; steps that only one has are left out."""
    losses = [dict(one.get("losses") or []) for one in (ours, theirs)]
    scores = [
        {score["step"]: score for score in one.get("scores") or [] if score["score"] is not None}
        for one in (ours, theirs)
    ]
    return {
        "losses": [
            {"step": step, "cpu": losses[0][step], "gpu": losses[1][step]}
            for step in sorted(losses[0].keys() & losses[1].keys())
        ],
        "scores": [
            {
                "step": step,
                "cpu": scores[0][step]["score"],
                "gpu": scores[1][step]["score"],
                "cpu_s": scores[0][step]["train_s"],
                "gpu_s": scores[1][step]["train_s"],
            }
            for step in sorted(scores[0].keys() & scores[1].keys())
        ],
    }


def agreement(ours: Measured, theirs: Measured) -> dict[str, Any]:
    """How far the two are apart: relative for losses, plain for scores; None where not known.

    `same` is whether the score, or without one the last loss, agrees within 1%.
    """
    first = curves(ours, theirs)["losses"][:FIRST]
    loss = _relative(ours.get("final_loss"), theirs.get("final_loss"))
    score = _difference(ours.get("final_score"), theirs.get("final_score"))
    apart = score if score is not None else loss
    return {
        "first_steps": len(first),
        "first_loss_relative": relatives(first),
        "final_loss_relative": loss,
        "final_score_difference": score,
        "score_name": ours.get("score_name"),
        "within": WITHIN,
        "same": None if apart is None else apart <= WITHIN,
    }


def relatives(losses: Sequence[Mapping[str, Any]]) -> float | None:
    """The largest relative difference of losses; None without any that are numbers."""
    found = [_relative(loss["cpu"], loss["gpu"]) for loss in losses]
    known = [value for value in found if value is not None]
    return max(known, default=None)


def _relative(a: float | None, b: float | None) -> float | None:
    if a is None or b is None or not (isfinite(a) and isfinite(b)):
        return None
    return abs(a - b) / max(abs(a), abs(b), 1e-12)


def _difference(a: float | None, b: float | None) -> float | None:
    if a is None or b is None or not (isfinite(a) and isfinite(b)):
        return None
    return abs(a - b)
