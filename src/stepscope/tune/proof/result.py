"""What a proof may say about a variant, and which events of training its steps covered."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any, Final, Self

from stepscope.fixes.applicability import TrainingChange
from stepscope.fixes.registry import fix_named
from stepscope.measure.trial import Trial

IDENTICAL, MATCHES, UNCLEAR = "identical", "matches", "unclear"
DIFFERS, CHANGES, NOT_PROVEN = "differs", "changes training", "not proven"
STATES = (IDENTICAL, MATCHES, UNCLEAR, DIFFERS, CHANGES, NOT_PROVEN)


@dataclass(frozen=True, slots=True)
class Proof:
    """One variant against the baseline."""

    state: str
    """One of STATES: "changes training" of semantic fixes, which are not held to the baseline;
    "not proven" where there was nothing to compare."""
    words: str
    """In one line, as every output gives it."""
    steps: int = 0
    """Compared, in each seed."""
    seeds: int = 0
    numbers: dict[str, Any] = field(default_factory=dict)
    """What it rests on. Shares: first_loss, first_norm (differences of the first step, each with
    the `…_limit` it is held to), pace (with low and high). divergence is in multiples of the
    control's; tail (with low, high and margin) in units of the loss. Outputs of an inference
    program: output_error (with output_limit) and top1 agreement. None: not known."""
    covered: tuple[str, ...] = ()
    """What happened during these steps, in both: see `proof_covers.EVENTS`."""
    not_covered: tuple[str, ...] = ()
    trials: tuple[int, ...] = ()
    """The numbers of the trials it rests on."""

    @property
    def rejects(self) -> bool:
        """Whether the variant must not be kept, however fast."""
        return self.state == DIFFERS

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        several = ("covered", "not_covered", "trials")
        return cls(**{**data, **{name: tuple(data[name]) for name in several}})


def over_steps(steps: int, seeds: int | None = None) -> str:
    """As in "matches over 120 steps, 3 seeds"; None: seeds are left out."""
    made = f"over {steps:,} step{'s' * (steps != 1)}"
    return made if seeds is None else f"{made}, {seeds} seed{'s' * (seeds != 1)}"


def not_proven(why: str) -> Proof:
    return Proof(NOT_PROVEN, f"not proven: {why}")


_ADJUST = {
    TrainingChange.BATCH_SIZE: "another batch size: the learning rate, its schedule and the number"
    " of steps may need to follow",
    TrainingChange.FEWER_UPDATES: "fewer updates of larger batches: the learning rate and its"
    " schedule may need to follow",
    TrainingChange.SAMPLES_LEFT_OUT: "the last samples of each epoch's order are left out",
}


def changes_training(fixes: Iterable[str]) -> Proof:
    """Of semantic fixes: what to adjust."""
    changes = [fix_named(fix.partition("=")[0]).training_change for fix in fixes]
    what = "; ".join(_ADJUST[change] for change in changes if change is not None)
    return Proof(CHANGES, f"changes training: {what}" if what else "changes training")


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
