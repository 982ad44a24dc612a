"""Fixes that make the program draw other random numbers: its steps can no longer be paired, unless
draws are held to their batch."""

from collections.abc import Iterable
from typing import Any, Final

from stepscope.fixes.base import Kind
from stepscope.tune.trial import Trial

_REDRAWS: Final = ("compile", "cuda_graph", "sdpa")
_SAYS: Final = ("draw", "samples", "shuffles", "order")


def least_exact(trial: Trial) -> str:
    """The least exact kind that a trial's fixes turned out to be of."""
    kinds = [str(fix["kind"]) for fix in trial.fixes if fix.get("kind")]
    return max(kinds, key=[*Kind].index, default=Kind.EXACT)


def draws_otherwise(trial: Trial) -> bool:
    """Whether a fix said that batches have other random draws, another order or other samples."""
    return any(fix.get("kind") == Kind.NUMERIC and _says(fix) for fix in trial.fixes)


def same_batches(base: Trial, variant: Trial) -> bool:
    """Whether all the batches of two trials with held draws were alike, as far as both went."""
    ours, theirs = (trial.proof.get("batches") or [] for trial in (base, variant))
    known = min(len(ours), len(theirs))
    return known > 0 and None not in ours[:known] and ours[:known] == theirs[:known]


def may_draw_otherwise(fixes: Iterable[str]) -> bool:
    """Whether some fix runs the model's own random draws, as of dropout, in another way."""
    return any(fix.partition("=")[0] in _REDRAWS for fix in fixes)


def _says(fix: dict[str, Any]) -> bool:
    return any(word in _reason(text) for text in fix.get("where") or () for word in _SAYS)


def _reason(text: str) -> str:
    """What stands after the place in the program, or in brackets."""
    return text.partition(": ")[2] or text.partition("(")[2]
