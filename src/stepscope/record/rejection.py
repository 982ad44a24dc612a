"""Why a fix was not tried or not kept, as facts.

Without msgspec: fixes, which say so of themselves, are imported inside the user's program.
"""

from dataclasses import dataclass
from enum import StrEnum

from stepscope.record.trial import TrialStatus


class RejectReason(StrEnum):
    """Why a fix was not tried, or not kept."""

    # Not tried. In brackets: what `Rejection.detail` holds.
    SKIPPED = "skipped"
    NOT_ALLOWED = "not_allowed"  # the kind of fix that --allow would have to permit
    NEEDS_DEVICE = "needs_device"  # the device
    NO_LOADER = "no_loader"
    NO_OPTIMIZER = "no_optimizer"
    NOT_TRAINING = "not_training"
    ALREADY_ON = "already_on"
    LITTLE_WAIT = "little_wait"  # the share of a step that waits for data
    SMALL_BATCHES = "small_batches"  # bytes
    HAS_WORKERS = "has_workers"
    NO_SYNCHRONIZE = "no_synchronize"
    NO_ITEM = "no_item"
    NO_CONVOLUTIONS = "no_convolutions"
    NO_IMAGE_CONVOLUTIONS = "no_image_convolutions"
    NO_ATTENTION = "no_attention"
    DETERMINISTIC = "deterministic"
    OWN_AUTOCAST = "own_autocast"  # its dtype
    HALF_PRECISION = "half_precision"
    PROGRAM_COMPILES = "program_compiles"
    NOTHING_TO_DO = "nothing_to_do"  # the fix's own words, as of one from another package
    NOTHING_FOUND = "nothing_found"  # no finding suggests it, and without one it is not tried
    SAVES_MEMORY_ONLY = "saves_memory_only"
    NO_OTHER_VALUE = "no_other_value"
    REQUIRES = "requires"  # the fix it has nothing to do without
    PREDICTED_LOSS = "predicted_loss"  # the predicted speedup
    # Tried.
    NO_DATA = "no_data"
    """Trials do not measure the objective."""
    SLOWER_AT_ONCE = "slower_at_once"
    """The first trial showed no gain."""
    WITHIN_NOISE = "within_noise"
    """Too small a gain to tell from run-to-run noise."""
    NOT_CLEAR = "not_clear"
    NOT_BETTER = "not_better"
    TOO_SLOW = "too_slow"  # less memory, but slower by this share
    TRIAL_FAILED = "trial_failed"  # how the trial failed; `fix` is the one that did
    OBSERVED_KIND = "observed_kind"  # where it changes more than --allow permits; see `kind`
    UNSETTLED = "unsettled"
    """The budget ended after `trials` trials that showed a gain."""
    DIFFERS = "differs"
    """Losses or outputs differ."""
    REPLACED = "replaced"
    """`fix` is better in its place."""
    DROPPED = "dropped"
    """As fast without it, beside the other fixes."""
    RECORDED = "recorded"
    """Read from an older document, which kept a sentence: `detail` is that."""


class RejectState(StrEnum):
    """The coarse outcome: `state` in the JSON of a tune. A trial's status stands for itself."""

    LEFT_OUT = "left_out"
    NOT_ALLOWED = "not_allowed"
    NOT_BETTER = "not_better"
    UNSETTLED = "unsettled"
    DIFFERS = "differs"
    REPLACED = "replaced"
    DROPPED = "dropped"


_STATES = {
    RejectReason.OBSERVED_KIND: RejectState.NOT_ALLOWED,
    RejectReason.UNSETTLED: RejectState.UNSETTLED,
    RejectReason.DIFFERS: RejectState.DIFFERS,
    RejectReason.REPLACED: RejectState.REPLACED,
    RejectReason.DROPPED: RejectState.DROPPED,
    **dict.fromkeys(
        (
            RejectReason.NO_DATA, RejectReason.SLOWER_AT_ONCE, RejectReason.WITHIN_NOISE,
            RejectReason.NOT_CLEAR, RejectReason.NOT_BETTER, RejectReason.TOO_SLOW,
        ),
        RejectState.NOT_BETTER,
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a fix was not tried or not kept. Fields that do not belong to the reason are None."""

    reason: RejectReason
    detail: float | str | None = None
    """See the reason; words are those of the fix or of the program."""
    fix: str | None = None
    """Another fix, as `--fix` takes it: in its place, or the one that failed."""
    kind: str | None = None
    """exact, numeric or semantic: what --allow would have to permit."""
    status: TrialStatus | None = None
    """Of the trial that failed."""
    trials: int | None = None

    @property
    def state(self) -> RejectState | TrialStatus:
        """The coarse outcome."""
        if self.reason is RejectReason.TRIAL_FAILED:
            return self.status if self.status not in (None, TrialStatus.OK) else TrialStatus.FAILED
        return _STATES.get(self.reason, RejectState.LEFT_OUT)

    @property
    def tried(self) -> bool:
        """Whether trials were made with it."""
        return self.state is not RejectState.LEFT_OUT
