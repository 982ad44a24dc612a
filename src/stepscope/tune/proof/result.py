"""Proofs without a comparison, and which events of training the steps of a proof covered."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from stepscope.fixes.registry import fix_named
from stepscope.measure.trial.record import ProofRecord, Trial
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


def _followed(steps_of: Callable[[ProofRecord], Sequence[int]]) -> Callable[[Trial], bool]:
    """Whether an event occurred after some step that another step followed."""
    return lambda trial: any(0 < step < trial.steps for step in steps_of(trial.proof))


EVENTS: Final[dict[str, Callable[[Trial], bool]]] = {
    "epoch end": _followed(lambda proof: proof.epochs),
    "short last batch": lambda trial: bool(trial.proof.short_batches),
    "train→eval→train": _followed(lambda proof: proof.evaluations),
    "scheduler step": lambda trial: len({*trial.proof.rates} - {None}) > 1,
    "save": _followed(lambda proof: proof.saves),
    "load": _followed(lambda proof: proof.loads),
}
"""By name: whether it happened in a trial and training went on."""


def coverage(trials: Sequence[Trial]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What happened in all of these trials, and what in none or not in all."""
    covered = tuple(name for name, had in EVENTS.items() if trials and all(map(had, trials)))
    return covered, tuple(name for name in EVENTS if name not in covered)
