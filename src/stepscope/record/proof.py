"""A proof about a variant of a program: its state, reason and numbers."""

from enum import StrEnum
from typing import Any

from msgspec import Struct, field

from stepscope.record.fix import TrainingChange
from stepscope.record.kinds import EndPart


class ProofState(StrEnum):
    """Whether training does the same."""

    IDENTICAL = "identical"
    MATCHES = "matches"
    UNCLEAR = "unclear"
    DIFFERS = "differs"
    CHANGES = "changes training"
    """For semantic fixes, which need not match the baseline."""
    NOT_PROVEN = "not proven"
    """There was nothing to compare."""


class ProofReason(StrEnum):
    """Why a proof is not plainly identical or a match."""

    NO_SEED = "no_seed"
    """No seed was run both with and without the fixes."""
    NO_LOSSES = "no_losses"
    FEW_LOSSES = "few_losses"
    """Only `count` of `of` steps have a loss."""
    TOO_FEW_STEPS = "too_few_steps"
    NO_OUTPUTS = "no_outputs"
    BASELINE_FAILED = "baseline_failed"
    VARIANT_FAILED = "variant_failed"
    NOT_APPLICABLE = "not_applicable"
    OTHER_RATE = "other_rate"
    """A different learning rate at `step`."""
    OTHER_LOSS = "other_loss"
    OTHER_LENGTH = "other_length"
    """`count` steps, `of` in the baseline."""
    NAN = "nan"
    FIRST_LOSS = "first_loss"
    DIVERGED = "diverged"
    """By `step`, losses are `value` times as far apart as the control's."""
    DRIFTS = "drifts"
    """Likewise, but too little to reject and too much to match."""
    NORM = "norm"
    NORM_SHIFT = "norm_shift"
    PACE = "pace"
    """The loss falls at a pace different by `value`."""
    TAIL = "tail"
    """Losses end `value` apart."""
    ONE_SEED = "one_seed"
    NO_TREND = "no_trend"
    UNCERTAIN_TREND = "uncertain_trend"
    """The loss trend is known to ±`value`."""
    WIDE_TAIL = "wide_tail"
    OTHER_DRAWS = "other_draws"
    """Steps differ as with other random draws; their means do not."""
    OTHER_ENDING = "other_ending"
    """`detail` of a `part` differs after the last step, `count` of them in all, by `value` of its
    size if known. For printed lines, `other` is the baseline's."""
    NO_BUDGET = "no_budget"
    """No time was left to prove it."""
    OUTPUT_SHAPE = "output_shape"
    OUTPUT_ERROR = "output_error"
    TOP1 = "top1"


class Because(Struct, frozen=True, omit_defaults=True):
    """A reason with its fields; the others are None."""

    reason: ProofReason
    step: int | None = None
    """Steps count from 1."""
    value: float | None = None
    count: int | None = None
    of: int | None = None
    detail: str | None = None
    """The program's words, as from a failed trial."""
    part: EndPart | None = None
    other: str | None = None


class Settlement(Struct, frozen=True):
    """What would settle an unclear proof, by the spread between seeds measured so far."""

    seeds: int | None = None
    """In total; None: more than `most_seeds`, so undecidable."""
    steps: int = 0
    """Per seed."""
    trials: int = 0
    """Further trials; 0: unknown."""
    seconds: float | None = None
    """Time for these trials; None: unknown."""
    most_seeds: int = 40


class Proof(Struct, frozen=True):
    """One variant against the baseline."""

    state: ProofState
    because: Because | None = None
    """None if it is identical, matches, or changes training."""
    steps: int = 0
    """Compared, in each seed."""
    seeds: int = 0
    numbers: dict[str, Any] = field(default_factory=dict)
    """Its numbers. Shares: first_loss, first_norm (differences of the first step, each with the
    `…_limit` it is held to), pace (with low and high). divergence is in multiples of the control's;
    tail (with low, high and margin) in units of the loss. Outputs of an inference program:
    output_error (with output_limit) and top1 agreement. None: unknown."""
    covered: tuple[str, ...] = ()
    """What happened during these steps, in both: see `tune.proof.judge.EVENTS`."""
    not_covered: tuple[str, ...] = ()
    """Of these events and of the baseline's final state (see `ends`)."""
    ends: tuple[EndPart, ...] = ()
    """What was compared after the last step, besides losses."""
    trials: tuple[int, ...] = ()
    """The numbers of the trials it rests on."""
    of_outputs: bool = False
    """Outputs of an inference program were compared, not losses."""
    baseline_repeats: bool = True
    """False if it is unknown whether the baseline itself repeats bit for bit."""
    by_means: bool = False
    """Random draws differ, so means over steps and seeds were compared."""
    draws_per_batch: bool = False
    """Each batch's random draws were made to depend on the batch alone."""
    budget_exhausted: bool = False
    """The budget left no time to settle it."""
    settle: Settlement | None = None
    """If it is unclear: what would settle it. None: no further trial would."""
    whole_ladder: bool = False
    """For a rung: the proof of the whole ladder covers it."""
    changes: tuple[TrainingChange, ...] = ()
    """What semantic fixes change."""
