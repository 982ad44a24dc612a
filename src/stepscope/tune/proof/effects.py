"""How a set of fixes changes rounding and random draws, and the resulting limits for losses and
gradients."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from stepscope.fixes.registry import fix_named
from stepscope.measure.trial.record import ROUNDING_DTYPES, Trial
from stepscope.record.fix import OTHER_TARGET, Applied, DataChange, FixKind


@dataclass(frozen=True, slots=True)
class RoundingLimits:
    """What a change of rounding may do. Shares are relative to the value."""

    first_loss: float
    """Of the first step's loss, as a share; more if the control moves it by more."""
    first_norm: float  # of a gradient's norm, as a share; likewise
    growth: float  # of a variant's divergence, in multiples of the control's
    floor: float  # minimum divergence, as a share of the loss: a smaller control's is not trusted
    near: float
    """The most growth of a match. Changes of rounding stayed below 2.4 in coarse dtypes and 0.7 in
    float32, where one of three seeds that jumps 256-fold makes it 6. A learning rate times 0.9 or
    every tenth step dropped came to 3.0 and 22 at least, in a noisy CNN that hardly learns."""


_UNIT: Final = {"float32": 2.0**-24, "tfloat32": 2.0**-11, "float16": 2.0**-11, "bfloat16": 2.0**-8}


def rounding_limits(dtype: str) -> RoundingLimits:
    """In float32, sums run in another order: an error of many units, but still tiny. Coarser dtypes
    round the inputs of products and sum in float32: a few units."""
    unit = _UNIT[dtype]
    if dtype == "float32":
        return RoundingLimits(1024 * unit, 4096 * unit, growth=64.0, floor=16 * unit, near=8.0)
    return RoundingLimits(2 * unit, 16 * unit, growth=8.0, floor=unit / 8, near=2.75)


def early_limits(dtype: str) -> RoundingLimits:
    """Limits so wide that exceeding them in one seed suffices. In float32 a single activation that
    crosses zero makes a seed's divergence jump: 256 times the control's was seen."""
    limit = rounding_limits(dtype)
    growth = limit.growth * (16 if dtype == "float32" else 4)
    first = (2 * limit.first_loss, 2 * limit.first_norm)
    return RoundingLimits(*first, growth, limit.floor, limit.near)


def coarsest_rounding(fixes: Iterable[str], own: str = "float32") -> str:
    """The coarsest arithmetic among fixes as `--fix` takes them and the program's own."""
    split = (fix.partition("=") for fix in fixes)
    found = [fix_named(name).rounding(value) or own for name, _, value in split]
    return max([own, *found], key=ROUNDING_DTYPES.index)


def observed_kind(trial: Trial) -> FixKind:
    """The least exact kind that a trial's fixes turned out to be."""
    kinds = [outcome.kind for outcome in trial.fixes if outcome.kind]
    return max(kinds, key=[*FixKind].index, default=FixKind.EXACT)


def changes_draws(trial: Trial) -> bool:
    """Whether a fix reported other random draws, another order or other samples in batches. An
    older journal does not say: there, a fix less exact than usual counts."""
    return any(
        outcome.kind == FixKind.NUMERIC
        and any(_varies(outcome.name, one) for one in outcome.applied)
        for outcome in trial.fixes
    )


def _varies(name: str, one: Applied) -> bool:
    if one.target == OTHER_TARGET:
        return one.kind == FixKind.NUMERIC and fix_named(name).kind == FixKind.EXACT
    return one.varies is not None and one.varies.data != DataChange.ROUNDING


def same_batches(base: Trial, variant: Trial) -> bool:
    """Whether two trials with draws per batch had equal batches, as far as both went."""
    ours, theirs = (trial.proof.batches for trial in (base, variant))
    known = min(len(ours), len(theirs))
    return known > 0 and None not in ours[:known] and ours[:known] == theirs[:known]


def may_change_draws(fixes: Iterable[str]) -> bool:
    """Whether some fix makes the model's own random draws, as in dropout, differently."""
    return any(fix_named(fix.partition("=")[0]).redraws_model for fix in fixes)
