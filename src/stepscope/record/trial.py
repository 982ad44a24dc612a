"""How a trial ended, what makes its times less reliable, and why a fix was not tried or kept:
facts, no sentences.

Without msgspec: fixes, which reject themselves, are imported inside the user's program.
"""

from dataclasses import dataclass, field
from enum import StrEnum


class TrialStatus(StrEnum):
    """How a trial ended."""

    OK = "ok"
    NOT_APPLICABLE = "not_applicable"
    """A requested fix found nothing to change; others may have."""
    BROKE = "broke"
    """A fix stopped the program."""
    OUT_OF_MEMORY = "out_of_memory"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    FAR_SLOWER = "far_slower"
    """Ended early: its interval already ruled out a gain."""
    TOO_SHORT = "too_short"
    """The program ended before its speed showed."""

    @property
    def label(self) -> str:
        """For people."""
        return self.value.replace("_", " ")


class TrialReason(StrEnum):
    """Why a trial is not ok."""

    HUNG = "hung"
    """It was stopped at its time limit."""
    OUT_OF_BUDGET = "out_of_budget"
    """It was stopped where the budget ends."""
    FAR_SLOWER = "far_slower"
    ALLOCATION_FAILED = "allocation_failed"
    HOST_MEMORY_FULL = "host_memory_full"
    """The kernel killed it."""
    FIX_BROKE = "fix_broke"
    EPOCH_TOO_SMALL = "epoch_too_small"
    """The batch size asked for has more samples than an epoch."""
    FIX_NOT_APPLIED = "fix_not_applied"
    PROGRAM_FAILED = "program_failed"
    KILLED = "killed"
    """A signal ended it."""
    NO_STEPS = "no_steps"
    OBSERVING_STOPPED = "observing_stopped"
    TOO_FEW_STEADY = "too_few_steady"
    NO_SAMPLE_COUNT = "no_sample_count"
    """Its steps do not show their number of samples."""
    PATCH_REFUSED = "patch_refused"
    NOT_FINITE = "not_finite"
    """A loss was not finite with a fix switched on, and all were without."""
    UNREADABLE = "unreadable"
    """Its run folder cannot be read."""


class StopReason(StrEnum):
    """Why a search ended early."""

    BUDGET = "budget"
    INTERRUPTED = "interrupted"


class NoteKind(StrEnum):
    """What makes the times of a trial less reliable."""

    THROTTLED = "throttled"
    SHARED_GPU = "shared_gpu"
    UNSTABLE = "unstable"


@dataclass(frozen=True, slots=True)
class TrialNote:
    """One thing that makes a trial less reliable."""

    kind: NoteKind
    detail: str = ""
    """What throttled the clocks, or how the series is unstable."""
    share: float = 0.0
    """How much step times vary, as a share; 0 for other kinds."""


class RejectReason(StrEnum):
    """Why the search did not try or keep a fix. Fixes have their own reasons why they cannot help a
    program: see `fixes.applicability.unsuitable`."""

    # Not tried. In brackets: what `Rejection.detail` holds.
    SKIPPED = "skipped"
    NOT_ALLOWED = "not_allowed"  # the kind of fix that --allow would have to permit
    NEEDS_DEVICE = "needs_device"  # the device
    NO_LOADER = "no_loader"
    NO_OPTIMIZER = "no_optimizer"
    NOTHING_FOUND = "nothing_found"  # no finding suggests it, and without one it is not tried
    SAVES_MEMORY_ONLY = "saves_memory_only"
    NO_OTHER_VALUE = "no_other_value"
    REQUIRES = "requires"  # the fix it needs
    PREDICTED_LOSS = "predicted_loss"  # the predicted speedup
    # Tried.
    NO_DATA = "no_data"
    """Trials cannot measure the objective."""
    SLOWER_AT_ONCE = "slower_at_once"
    """The first trial showed no gain."""
    FAR_SLOWER = "far_slower"
    """The first trial was ended early, after `detail` as a share of its steps."""
    WITHIN_NOISE = "within_noise"
    """A gain within run-to-run noise."""
    NOT_CLEAR = "not_clear"
    NOT_BETTER = "not_better"
    TOO_SLOW = "too_slow"  # less memory, but slower by this share
    TRIAL_FAILED = "trial_failed"  # how the trial failed; `fix` is the one that failed
    OBSERVED_KIND = "observed_kind"  # if it changes more than --allow permits; see `kind`
    UNSETTLED = "unsettled"
    """The budget ran out after `trials` trials that showed a gain."""
    DIFFERS = "differs"
    """Losses or outputs differ."""
    REPLACED = "replaced"
    """`fix` is better and replaced it."""
    DROPPED = "dropped"
    """The other fixes are as fast without it."""


class RejectState(StrEnum):
    """The coarse outcome: `state` in the JSON of a tune. A failed trial's status is used as is."""

    LEFT_OUT = "left_out"
    NOT_ALLOWED = "not_allowed"
    NOT_BETTER = "not_better"
    UNSETTLED = "unsettled"
    DIFFERS = "differs"
    REPLACED = "replaced"
    DROPPED = "dropped"


_STATES: dict[str, RejectState] = {
    RejectReason.NO_DATA: RejectState.NOT_BETTER,
    RejectReason.SLOWER_AT_ONCE: RejectState.NOT_BETTER,
    RejectReason.FAR_SLOWER: RejectState.NOT_BETTER,
    RejectReason.WITHIN_NOISE: RejectState.NOT_BETTER,
    RejectReason.NOT_CLEAR: RejectState.NOT_BETTER,
    RejectReason.NOT_BETTER: RejectState.NOT_BETTER,
    RejectReason.TOO_SLOW: RejectState.NOT_BETTER,
    RejectReason.OBSERVED_KIND: RejectState.NOT_ALLOWED,
    RejectReason.UNSETTLED: RejectState.UNSETTLED,
    RejectReason.DIFFERS: RejectState.DIFFERS,
    RejectReason.REPLACED: RejectState.REPLACED,
    RejectReason.DROPPED: RejectState.DROPPED,
}


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a fix was not tried or not kept. Fields that do not belong to the reason are None."""

    reason: str
    """A RejectReason, or the id of a fix's own reason."""
    detail: float | str | None = None
    """Depends on the reason; text comes from the fix or the program."""
    fix: str | None = None
    """Another fix, as `--fix` takes it: the one that replaced it, or that failed."""
    kind: str | None = None
    """exact, numeric or semantic: what --allow would have to permit."""
    status: TrialStatus | None = None
    """The failed trial's status."""
    trials: int | None = None
    text: str | None = field(default=None, compare=False)
    """The sentence for a fix's own reason."""

    @property
    def state(self) -> RejectState | TrialStatus:
        """The coarse outcome."""
        if self.reason == RejectReason.TRIAL_FAILED:
            return self.status if self.status not in (None, TrialStatus.OK) else TrialStatus.FAILED
        return _STATES.get(self.reason, RejectState.LEFT_OUT)

    @property
    def tried(self) -> bool:
        """Whether it was tried."""
        return self.state is not RejectState.LEFT_OUT
