"""Inference: whether a variant's outputs are the baseline's."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from stepscope.record.errors import BrokenRun
from stepscope.tune.proof import DIFFERS, IDENTICAL, MATCHES, UNCLEAR, Proof, not_proven, over
from stepscope.tune.proof_rounding import limits

Outputs = Mapping[str, Any]
"""Arrays by name: `values_0`, … (some values of each call's output), `top1_0`, … (the index of
the largest along the last dimension)."""

_FILE: Final = "outputs.npz"
_AGREE: Final = 0.98  # of top-1: outputs of nearly the same size may change places
_TIMES: Final = 4.0  # the control's error: rounding once is less than rounding everywhere
_FAR: Final = 4.0  # times the limit: no rounding explains it


def read_outputs(folder: Path) -> Outputs:
    """What the trial of this run folder kept. Raises BrokenRun."""
    path = folder / _FILE
    try:
        with np.load(path, allow_pickle=False) as kept:
            return {name: kept[name] for name in kept.files}
    except (OSError, ValueError, EOFError, KeyError) as problem:
        raise BrokenRun(f"{path}: outputs cannot be read ({problem})") from problem


def judge_outputs(
    base: Outputs,
    variant: Outputs,
    dtype: str,
    *,
    control: Outputs | None = None,
    exact: bool = False,
) -> Proof:
    """Relative error over all values of a call, the worst call's, and agreement of top-1.

    `control` are outputs of weights rounded once: errors like theirs are allowed. `exact`: another
    rounding is not expected, so that a single bit counts.
    """
    calls = [name for name in base if name.startswith("values_") and name in variant]
    if not calls:
        return not_proven("no outputs were kept")
    if any(variant[name].shape != base[name].shape for name in base if name in variant):
        return _proof(DIFFERS, "outputs have another shape", len(calls), {})
    if all(np.array_equal(base[name], variant[name], equal_nan=True) for name in calls):
        return _proof(IDENTICAL, None, len(calls), {})
    error = max(_error(base[name], variant[name]) for name in calls)
    tops = [name for name in base if name.startswith("top1_") and name in variant]
    same = [np.asarray(base[name] == variant[name]).ravel() for name in tops]
    agreement = float(np.concatenate(same).mean()) if tops else None
    shown = [_error(base[name], control[name]) for name in calls if control and name in control]
    limit = max([limits(dtype).first_norm, *(_TIMES * one for one in shown if one < 1)])
    numbers = {"output_error": error, "output_limit": limit, "top1": agreement, "dtype": dtype}
    if exact or not error <= _FAR * limit:
        return _proof(DIFFERS, f"outputs are off by {error:.2g}", len(calls), numbers)
    if error > limit:
        return _proof(UNCLEAR, f"outputs are off by {error:.2g}", len(calls), numbers)
    if agreement is not None and agreement < _AGREE:
        why = f"top-1 agrees in {agreement:.1%} only"
        return _proof(UNCLEAR, why, len(calls), numbers)
    return _proof(MATCHES, None, len(calls), numbers)


def _error(base: Any, variant: Any) -> float:
    """The norm of the difference over that of the baseline's; infinite where one is no number."""
    ours, theirs = np.asarray(base, np.float64), np.asarray(variant, np.float64)
    if not np.array_equal(np.isfinite(ours), np.isfinite(theirs)):
        return float("inf")
    known = np.isfinite(ours)
    size = float(np.linalg.norm(ours[known]))
    gone = float(np.linalg.norm(theirs[known] - ours[known]))
    return gone / size if size else (0.0 if gone == 0 else float("inf"))


def _proof(state: str, why: str | None, calls: int, numbers: dict[str, Any]) -> Proof:
    words = f"{state} {over(calls)}" + (f": {why}" if why else "")
    return Proof(state, words, calls, 1, numbers)
