"""How a trial ended and what makes its times less reliable, as facts: no sentence is kept.

Without msgspec: fixes import this inside the user's program.
"""

from dataclasses import dataclass
from enum import StrEnum


class TrialStatus(StrEnum):
    """How a trial ended."""

    OK = "ok"
    NOT_APPLICABLE = "not_applicable"
    """A fix of the request found nothing to change; the others may have."""
    BROKE = "broke"
    """A fix stopped the program."""
    OUT_OF_MEMORY = "out_of_memory"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    TOO_SHORT = "too_short"
    """The program ended before its speed showed."""

    @property
    def label(self) -> str:
        """As people read it."""
        return self.value.replace("_", " ")


class TrialReason(StrEnum):
    """Why a trial is not ok."""

    HUNG = "hung"
    """It was stopped at its time limit."""
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
    """Its steps do not show how many samples they take."""
    PATCH_REFUSED = "patch_refused"
    UNREADABLE = "unreadable"
    """Its run folder cannot be read."""
    RECORDED = "recorded"
    """Read from an older journal, which kept a sentence: `detail` is that."""


class StopReason(StrEnum):
    """Why a search ended before it was done."""

    BUDGET = "budget"
    INTERRUPTED = "interrupted"


class NoteKind(StrEnum):
    """What makes the times of a trial less reliable."""

    THROTTLED = "throttled"
    SHARED_GPU = "shared_gpu"
    UNSTABLE = "unstable"
    RECORDED = "recorded"
    """Read from an older journal, which kept a sentence."""


@dataclass(frozen=True, slots=True)
class TrialNote:
    """One thing that makes a trial less reliable."""

    kind: NoteKind
    detail: str = ""
    """What throttled the clocks, or how the series is unstable."""
    share: float = 0.0
    """How much its step times vary, as a share; 0 where that is not the matter."""
