"""Whether a variant that rounds otherwise, or draws other random numbers, trains the same."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from stepscope.tune.proof import DIFFERS, Proof, not_proven, over
from stepscope.tune.proof_covers import covers
from stepscope.tune.proof_divergence import divergence
from stepscope.tune.proof_first import first_loss, norms, other_rate, update_size, usual_norm
from stepscope.tune.proof_means import judge_means
from stepscope.tune.proof_rounding import Limits, early, limits
from stepscope.tune.proof_series import Sides, of_seeds, sides
from stepscope.tune.trial import Trial

FEWEST_STEPS: Final = 12
_KNOWN: Final = 0.9  # of the steps must have a loss


def judge_numeric(
    base: Sequence[Trial],
    control: Sequence[Trial],
    variant: Sequence[Trial],
    dtype: str,
    *,
    draws: bool = False,
    more: bool = False,
) -> Proof:
    """Trials are paired by seed; `dtype` is the coarsest arithmetic, and what the control's
    weights were rounded to. With `draws` random numbers differ too: steps cannot be held against
    each other, so the means over steps and seeds are, and there is no control. `more` seeds are
    to come: only what is far out is called different yet."""
    side = sides(base, () if draws else control, variant)
    if why := _nothing(side):
        return not_proven(why)
    ours, theirs = of_seeds(base, side.seeds), of_seeds(variant, side.seeds)
    checks = [] if side.control is None else of_seeds(control, side.seeds)
    limit = early(dtype) if more or len(side.seeds) == 1 else limits(dtype)
    numbers: dict[str, Any] = {"dtype": dtype}
    reason = _unlike_runs(ours, theirs) or _lost(side)
    if reason is None and draws:
        if size := usual_norm(ours, theirs):
            reason = f"gradients are of another size ({size:+.0%})"
    elif reason is None:
        reason = _unlike_losses(side, limit, numbers)
        reason = reason or _unlike_norms(ours, checks, theirs, limit, numbers)
    state = DIFFERS
    if reason is None:
        state, reason = judge_means(side, limit, update_size(ours), numbers)
    words = f"{state} {over(side.made, len(side.seeds))}"
    words += f": {reason}" if reason else ", by their means (random draws differ)" * draws
    covered, missing = covers([*ours, *theirs])
    used = tuple(sorted({trial.number for trial in (*ours, *theirs, *checks)}))
    return Proof(state, words, side.made, len(side.seeds), numbers, covered, missing, used)


def _nothing(side: Sides) -> str | None:
    """Why there is nothing to compare."""
    if not side.seeds:
        return "no seed was run both with it and without"
    if not side.steps:
        return "the program's losses were not seen"
    if len(side.steps) < _KNOWN * side.made:
        return f"only {len(side.steps):,} of {side.made:,} steps have a loss"
    return f"only {side.made} steps" if side.made < FEWEST_STEPS else None


def _unlike_runs(base: Sequence[Trial], variant: Sequence[Trial]) -> str | None:
    for ours, theirs in zip(base, variant, strict=True):
        if step := other_rate(ours, theirs):
            return f"another learning rate at step {step}"
        if ours.ask.steps == theirs.ask.steps and len(ours.losses) != len(theirs.losses):
            return f"{len(theirs.losses):,} steps where the baseline makes {len(ours.losses):,}"
    return None


def _lost(side: Sides) -> str | None:
    gone = ~np.isfinite(side.variant).all(axis=0)
    return f"the loss is no number at step {side.steps[gone.argmax()]}" if gone.any() else None


def _unlike_losses(side: Sides, limit: Limits, numbers: dict[str, Any]) -> str | None:
    if side.steps[0] == 1:
        first = first_loss(side.base, side.control, side.variant, limit)
        numbers |= {"first_loss": first.value, "first_loss_limit": first.limit}
        if first.failed:
            return f"the first step's loss is off by {first.value:.1%}"
    if side.control is None:
        return None
    gone = divergence(side.base, side.control, side.variant, limit)
    numbers |= {"divergence": gone.ratio, "divergence_limit": limit.growth}
    if gone.ratio <= limit.growth:
        return None
    step = side.steps[gone.column]
    return f"by step {step} losses are {gone.ratio:,.0f} times as far apart as rounding takes them"


def _unlike_norms(
    base: Sequence[Trial],
    control: Sequence[Trial],
    variant: Sequence[Trial],
    limit: Limits,
    numbers: dict[str, Any],
) -> str | None:
    found = norms(base, control, variant, limit)
    if found:
        numbers |= {"first_norm": found[0].value, "first_norm_limit": found[0].limit}
    for step, check in enumerate(found, start=1):
        if check.failed:
            return f"the gradient's norm is off by {check.value:.1%} at step {step}"
    return None
