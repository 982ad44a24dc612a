"""The result of a tune: what `tune --json` prints and its folder keeps."""

from enum import StrEnum
from typing import Any, Final, Literal, TypedDict

from msgspec import Struct, field

from stepscope.measure.prediction import Prediction
from stepscope.record.fix import TrainingChange
from stepscope.record.proof import Proof
from stepscope.record.trial import NoteKind, Rejection, StopReason
from stepscope.stats.verdict import Comparison, Verdict
from stepscope.tune.request import TuneSettings

SCHEMA: Final = "stepscope.tune/2"


class SpeedupFields(TypedDict, total=False):
    """Empty if nothing was compared."""

    speedup: float
    low: float
    high: float
    verdict: Verdict


class Speedup(Struct, frozen=True, kw_only=True):
    """A measured speedup with its 95% interval. None: not measured."""

    speedup: float | None = None
    low: float | None = None
    high: float | None = None
    verdict: Verdict | None = None

    @staticmethod
    def fields(found: Comparison | None) -> SpeedupFields:
        """The fields of a comparison, as keyword arguments."""
        if found is None:
            return {}
        ratio, low, high = found.ratio, found.low, found.high
        return {"speedup": ratio, "low": low, "high": high, "verdict": found.verdict}


class Measured(Struct, frozen=True, kw_only=True):
    """Speed and resources of a set of trials. None: not known."""

    step_ms: float | None = None
    low_ms: float | None = None
    high_ms: float | None = None
    spread: float | None = None
    processes: int = 0
    samples_per_s: float | None = None
    peak_memory_bytes: float | None = None
    gpu_busy: float | None = None
    energy_j_per_step: float | None = None
    energy_j_per_sample: float | None = None
    cost_per_million: float | None = None


class MeasuredBaseline(Measured, frozen=True, kw_only=True):
    """The program without fixes."""

    losses: tuple[float | None, ...] = ()


class TunedRung(MeasuredBaseline, frozen=True, kw_only=True):
    """A fix that was kept, on top of those below it."""

    fix: str
    params: dict[str, str] = field(default_factory=dict)
    label: str
    along: tuple[str, ...] = ()  # fixes tried together with it, as one
    kind: str
    fixes: tuple[str, ...] = ()  # the set up to and including it
    speedup: float  # against the set below it, with 95% interval
    low: float
    high: float
    verdict: Verdict
    cumulative: Speedup  # against the baseline
    predicted_speedup: float | None = None
    predicted: Prediction | None = None
    proof: Proof | None = None
    replaces: str | None = None
    compile_s: float | None = None
    pays_after_steps: int | None = None
    trials: tuple[int, ...] = ()
    changes: tuple[TrainingChange, ...] = ()  # what a semantic fix changes in training


class RejectedFix(Speedup, frozen=True, kw_only=True):
    """A fix that was not kept."""

    fix: str
    state: str  # a RejectState, or the deciding trial's status
    because: Rejection
    proof: Proof | None = None


class TunedContest(Struct, frozen=True, kw_only=True):
    """A candidate against the fixes kept so far."""

    candidate: tuple[str, ...]  # as `--fix` takes them
    ratio: float  # the speedup, with its 95% interval
    low: float
    high: float
    steps: int
    seconds: float
    in_place: bool  # blocks of steps of one process; else trials, each in its own


class MeasuredSides(Struct, frozen=True, kw_only=True):
    """What fresh trials measured."""

    baseline: Measured
    ladder: Measured


class ConfirmFailure(StrEnum):
    """Why fresh trials did not confirm a ladder."""

    BASELINE = "baseline_failed"
    LADDER = "ladder_failed"
    INTERRUPTED = "interrupted"
    NO_BUDGET = "no_budget"
    """It ended before enough fresh trials were made."""
    NOT_FASTER = "not_faster"


class Confirmed(Speedup, frozen=True, kw_only=True):
    """The whole ladder against the baseline, on fresh trials."""

    fixes: tuple[str, ...]
    confirmed: bool
    failure: ConfirmFailure | None = None
    detail: str | None = None
    processes: tuple[int, ...] = ()
    compile_s: float | None = None
    pays_after_steps: int | None = None
    trials: tuple[int, ...] = ()
    proof: Proof | None = None
    measured: MeasuredSides | None = None


class PatchEdit(Struct, frozen=True):
    """One edit in the diff."""

    fix: str
    file: str  # relative to the working directory
    line: int  # before the edit
    words: str = ""


class ByHand(Struct, frozen=True):
    """A fix the user must edit in, and how."""

    fix: str
    words: str


class PatchStatus(StrEnum):
    """Whether a patch's speed was measured."""

    MEASURED = "measured"
    NO_EDIT = "no_edit"  # no edit could be located
    NOT_MEASURED = "not_measured"
    NO_BUDGET = "no_budget"
    FAILED = "failed"
    REDACTED = "redacted"  # the source was redacted


class TunedPatch(Speedup, frozen=True, kw_only=True):
    """The fixes as a diff, and its speedup over the baseline."""

    path: str | None = None
    text: str | None = None  # for `git apply` and `patch -p1`; None if no edit could be located
    edits: tuple[PatchEdit, ...] = ()
    by_hand: tuple[ByHand, ...] = ()
    status: PatchStatus = PatchStatus.MEASURED
    detail: str | None = None  # how a trial with it failed


class NoteSummary(Struct, frozen=True, kw_only=True):
    """One kind of note about the ladder's trials, from the worst of them."""

    kind: NoteKind
    detail: str = ""
    trials: int = 0
    of: int = 0


class TunedProgram(Struct, frozen=True, kw_only=True):
    """What was tuned, where and with what."""

    id: str
    folder: str
    program: str
    argv: tuple[str, ...]
    device: str | None
    device_name: str
    torch: str | None
    python: str | None
    git: Any = None
    stepscope: str | None = None
    finished: str | None = None


class ScoutFinding(Struct, frozen=True, kw_only=True):
    """A finding of the scout run."""

    id: str
    title: str
    fix: dict[str, Any] | None = None
    kind: str | None = None
    predicted_speedup: float | None = None


class Scout(Struct, frozen=True, kw_only=True):
    """The first run: the number of its trial, and its findings."""

    trial: int = 1
    findings: tuple[ScoutFinding, ...] = ()


class SearchCost(Struct, frozen=True, kw_only=True):
    """The cost of the search, without proof, confirmation and patch."""

    trials: int = 0
    seconds: float = 0.0


class Tune(Struct, frozen=True, kw_only=True):
    """The result of a tune."""

    schema: Literal["stepscope.tune/2"] = SCHEMA
    run: TunedProgram
    machine: dict[str, Any] | None = None
    request: TuneSettings
    scout: Scout = field(default_factory=Scout)
    baseline: MeasuredBaseline
    ladder: tuple[TunedRung, ...] = ()
    rejected: tuple[RejectedFix, ...] = ()
    contests: tuple[TunedContest, ...] = ()  # in the order they were held
    untried: tuple[str, ...] = ()
    final: Confirmed | None = None
    command: str | None = None
    patch: TunedPatch | None = None
    search: SearchCost = field(default_factory=SearchCost)
    trials: int = 0
    seconds: float = 0.0
    stopped: StopReason | None = None
    notes: tuple[NoteSummary, ...] = ()
