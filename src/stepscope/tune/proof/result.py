"""Proofs without a comparison, and which events of training the steps of a proof covered."""

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any, Final

from stepscope.fixes.registry import fix_named
from stepscope.measure.trial.record import Trial
from stepscope.record.fix import TrainingChange
from stepscope.record.proof import Because, Proof, ProofReason, ProofState


def not_proven(reason: ProofReason, **more: Any) -> Proof:
    """Nothing could be compared; `more` are fields of `Because`."""
    return Proof(ProofState.NOT_PROVEN, Because(reason, **more))


def training_changes(fixes: Iterable[str]) -> tuple[TrainingChange, ...]:
    """What these fixes, as `--fix` takes them, change in training."""
    changes = [fix_named(fix.partition("=")[0]).training_change for fix in fixes]
    return tuple(change for change in changes if change is not None)


def changes_training(fixes: Iterable[str]) -> Proof:
    """Of semantic fixes."""
    return Proof(ProofState.CHANGES, changes=training_changes(fixes))


def _followed(name: str) -> Callable[[Trial], bool]:
    """Whether such a thing occurred after some step that another step followed."""

    def occurred(trial: Trial) -> bool:
        found: Sequence[int] = trial.proof.get(name) or ()
        return any(0 < step < trial.steps for step in found)

    return occurred


def _scheduled(trial: Trial) -> bool:
    return any(a != b for a, b in pairwise(_known(trial.proof.get("rates"))))


def _known(values: Any) -> list[float]:
    return [value for value in values or () if value is not None]


def _short(trial: Trial) -> bool:
    return bool(trial.proof.get("short_batches"))


EVENTS: Final[dict[str, Callable[[Trial], bool]]] = {
    "epoch end": _followed("epochs"),
    "short last batch": _short,
    "train→eval→train": _followed("evaluations"),
    "scheduler step": _scheduled,
    "save": _followed("saves"),
    "load": _followed("loads"),
}
"""By name: whether it happened in a trial and training went on."""


def coverage(trials: Sequence[Trial]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What happened in all of these trials, and what in none or not in all."""
    covered = tuple(name for name, had in EVENTS.items() if trials and all(map(had, trials)))
    return covered, tuple(name for name in EVENTS if name not in covered)
