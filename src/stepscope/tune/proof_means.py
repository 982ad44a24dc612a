"""What the means over steps and seeds say, where no single step has shown a change."""

from math import isfinite
from typing import Any

from stepscope.tune.proof import DIFFERS, MATCHES, UNCLEAR
from stepscope.tune.proof_progress import MARGIN, Pace, paces, too_small
from stepscope.tune.proof_rounding import Limits
from stepscope.tune.proof_series import Sides
from stepscope.tune.proof_tail import Tail, tail


def judge_means(
    side: Sides, limit: Limits, update: float | None, numbers: dict[str, Any]
) -> tuple[str, str | None]:
    """The state, and for all but `matches` the reason. What it rests on goes into `numbers`.

    `update`: see `proof_progress.too_small`.
    """
    end = tail(side.base, side.control, side.variant, limit)
    pace = paces(side.base, side.control, side.variant)
    best = min(pace, key=lambda one: one.high - one.low, default=None)
    numbers |= _told(end, best)
    if len(side.seeds) < 2:
        return UNCLEAR, "one seed only"
    for one in pace:
        if one.beyond:
            return DIFFERS, f"the loss falls at {1 + one.value:.0%} of the pace"
    if end.beyond:
        return DIFFERS, f"losses end {end.value:+.3g} apart"
    if not any(one.within for one in pace) and not too_small(side.base, side.variant, update):
        if best is None:
            return UNCLEAR, "the loss does not fall clearly, so another pace would not show"
        return UNCLEAR, f"its pace is known to ±{max(-best.low, best.high):.0%} only"
    if not end.within:
        return UNCLEAR, "the spread of losses at the end is too wide to call them alike"
    return MATCHES, None


def _told(end: Tail, pace: Pace | None) -> dict[str, Any]:
    told: dict[str, Any] = {"tail": end.value, "tail_low": _finite(end.low)}
    told |= {"tail_high": _finite(end.high), "tail_margin": end.margin}
    if pace is not None:
        told |= {"pace": pace.value, "pace_low": _finite(pace.low), "pace_high": _finite(pace.high)}
        told |= {"pace_steps": pace.steps, "pace_margin": MARGIN}
    return told


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None
