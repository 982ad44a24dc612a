"""What a set of fixes changes in rounding and in random draws, and the limits that follow for
losses and gradients.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from stepscope.fixes.base import FixKind
from stepscope.fixes.registry import fix_named
from stepscope.measure.trial import ROUNDING_DTYPES, Trial


@dataclass(frozen=True, slots=True)
class RoundingLimits:
    """What a change of rounding is allowed. Shares are of the value itself."""

    first_loss: float
    """The loss of the first step, as a share; more where the control moves it by more."""
    first_norm: float
    """The norm of a gradient, as a share; likewise."""
    growth: float
    """How many times the control's divergence a variant's may be."""
    floor: float
    """The divergence, as a share of the loss, below which the control is not believed."""


_UNIT: Final = {"float32": 2.0**-24, "tfloat32": 2.0**-11, "float16": 2.0**-11, "bfloat16": 2.0**-8}


def rounding_limits(dtype: str) -> RoundingLimits:
    """In float32 sums are taken in another order: an error of many units, and still a tiny one.

    Coarser ones round what goes into products and sum in float32: a few units.
    """
    unit = _UNIT[dtype]
    if dtype == "float32":
        return RoundingLimits(1024 * unit, 4096 * unit, growth=64.0, floor=16 * unit)
    return RoundingLimits(2 * unit, 16 * unit, growth=8.0, floor=unit / 8)


def early_limits(dtype: str) -> RoundingLimits:
    """What is so far out that one seed suffices. In float32 a single activation that falls on the
    other side of zero makes a seed's divergence jump: 256 times the control's was seen."""
    limit = rounding_limits(dtype)
    return replace(
        limit,
        first_loss=2 * limit.first_loss,
        first_norm=2 * limit.first_norm,
        growth=limit.growth * (16 if dtype == "float32" else 4),
    )


def coarsest_rounding(fixes: Iterable[str], own: str = "float32") -> str:
    """The coarsest arithmetic among fixes as `--fix` takes them and the program's own."""
    found = [own]
    for fix in fixes:
        name, _, value = fix.partition("=")
        found.append(fix_named(name).rounding(value) or own)
    return max(found, key=ROUNDING_DTYPES.index)


_REDRAWS: Final = ("compile", "cuda_graph", "sdpa")
_SAYS: Final = ("draw", "samples", "shuffles", "order")


def observed_kind(trial: Trial) -> str:
    """The least exact kind that a trial's fixes turned out to be of."""
    kinds = [str(fix["kind"]) for fix in trial.fixes if fix.get("kind")]
    return max(kinds, key=[*FixKind].index, default=FixKind.EXACT)


def changes_draws(trial: Trial) -> bool:
    """Whether a fix said that batches have other random draws, another order or other samples."""
    return any(fix.get("kind") == FixKind.NUMERIC and _says(fix) for fix in trial.fixes)


def same_batches(base: Trial, variant: Trial) -> bool:
    """Whether all the batches of two trials with held draws were alike, as far as both went."""
    ours, theirs = (trial.proof.get("batches") or [] for trial in (base, variant))
    known = min(len(ours), len(theirs))
    return known > 0 and None not in ours[:known] and ours[:known] == theirs[:known]


def may_change_draws(fixes: Iterable[str]) -> bool:
    """Whether some fix runs the model's own random draws, as of dropout, in another way."""
    return any(fix.partition("=")[0] in _REDRAWS for fix in fixes)


def _says(fix: dict[str, Any]) -> bool:
    return any(word in _reason(text) for text in fix.get("where") or () for word in _SAYS)


def _reason(text: str) -> str:
    """What stands after the place in the program, or in brackets."""
    return text.partition(": ")[2] or text.partition("(")[2]
