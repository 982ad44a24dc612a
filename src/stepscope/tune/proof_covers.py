"""What of a program's life a proof's steps took in."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Final

from stepscope.tune.trial import Trial


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


def covers(trials: Sequence[Trial]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What happened in all of these trials, and what in none or not in all."""
    covered = tuple(name for name, had in EVENTS.items() if trials and all(map(had, trials)))
    return covered, tuple(name for name in EVENTS if name not in covered)
