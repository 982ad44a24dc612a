"""A diagnosed cause of slowness, and what its removal should be worth."""

from enum import StrEnum
from typing import Any

from msgspec import UNSET, Struct, UnsetType


class Effort(StrEnum):
    """How much work it is to remove a cause."""

    NONE = "none"
    ONE_ARGUMENT = "one argument"
    ONE_LINE = "one line"
    ENVIRONMENT = "an environment variable"
    FEW_LINES = "a few lines"
    MANY_LINES = "many lines"
    OUTSIDE = "outside the program"

    @property
    def rank(self) -> int:
        """0 to 2: of two equal gains, the one with less effort comes first."""
        if self in (Effort.ONE_ARGUMENT, Effort.ONE_LINE, Effort.ENVIRONMENT):
            return 0
        return 2 if self is Effort.MANY_LINES else 1


class ChangeKind(StrEnum):
    """How removing a cause changes training, the least first; NONE if it changes nothing."""

    NONE = "none"
    EXACT = "exact"
    NUMERIC = "numeric"
    SEMANTIC = "semantic"


class Confidence(StrEnum):
    """How sure a finding is, the surest first."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class Scope(StrEnum):
    """What a cause costs: time of each step, of the run, or of everything on the machine."""

    STEP = "step"
    RUN = "run"
    MACHINE = "machine"


class Level(StrEnum):
    """How much a finding matters. FINE: it needs no attention."""

    BOTTLENECK = "bottleneck"
    MINOR = "minor"
    FINE = "fine"


class Predicted(Struct, frozen=True):
    """The step after a change: its mean time, the speedup, and the speedup's range."""

    step_ms: float
    speedup: float
    low: float
    high: float
    reason: str
    """Why the step gets shorter, for people to read."""
    changes: tuple[Any, ...] | UnsetType = UNSET
    """What the replay changed; unset for arithmetic, and in documents."""


class Place(Struct, frozen=True):
    """Where a cause is: a user's line, an operator, a kernel; None if unknown."""

    file: str | None = None
    line: int | None = None
    operator: str | None = None
    kernel: str | None = None


class Evidence(Struct, frozen=True):
    """One measured number (or word) behind a finding."""

    what: str
    value: float | str
    unit: str = ""


class FixRef(Struct, frozen=True):
    """A fix as `stepscope run --fix` takes it."""

    name: str
    value: str | None = None

    def __str__(self) -> str:
        return self.name if self.value is None else f"{self.name}={self.value}"


class RefusedFix(Struct, frozen=True):
    """A fix that would remove a cause, and why it does not apply to this program."""

    fix: FixRef
    record: dict[str, Any]
    """The `NotApplied` of `record.fix`."""
    text: str
    """Its sentence."""


class SettingOwner(StrEnum):
    """What takes a setting as an argument."""

    LOADER = "DataLoader"
    TRAINER = "TrainingArguments"


class Setting(Struct, frozen=True):
    """An argument to pass, as it is written: `num_workers`, `8`."""

    owner: SettingOwner
    name: str
    value: str

    def __str__(self) -> str:
        return f"{self.name}={self.value}"


class SourceEdit(Struct, frozen=True):
    """The user's line with the fix. Without a file: lines to put elsewhere."""

    file: str | None
    line: int | None
    before: str | None
    """The line now."""
    after: tuple[str, ...]
    words: str


class TimelineHint(Struct, frozen=True):
    """How to find a finding in a timeline: idle time by cause, or host events by name prefix."""

    idle_cause: str | None = None
    host_events: tuple[str, ...] = ()


class Finding(Struct, frozen=True, kw_only=True):
    """One cause. Sentences are for people only; decisions use the other fields."""

    id: str
    """The group and the rule: data.loader_bound."""
    title: str
    why: str
    """Two sentences at most."""
    advice: str
    """What to do besides passing `settings`; in a diagnosis, all of it."""
    share: float
    """The part of the step (of the run, for that scope) it concerns, 0 to 1."""
    evidence: tuple[Evidence, ...] = ()
    where: tuple[Place, ...] = ()
    predicted: Predicted | None = None
    """None if removing it changes no step time, or the change cannot be predicted."""
    fix: FixRef | None = None
    """None where nothing can be done at run time."""
    refused: tuple[RefusedFix, ...] = ()
    """Fixes that would remove it but for something in the program."""
    settings: tuple[Setting, ...] = ()
    """Arguments whose new values remove it."""
    effort: Effort = Effort.FEW_LINES
    kind: ChangeKind = ChangeKind.EXACT
    confidence: Confidence = Confidence.HIGH
    scope: Scope = Scope.STEP
    level: Level = Level.BOTTLENECK
    edit: SourceEdit | None = None
    timeline: TimelineHint | None = None
    also: tuple[FixRef, ...] = ()
    """Other fixes for the same cause, from symptoms that were merged into it."""

    @property
    def group(self) -> str:
        """The theme of its rule: data, transfer, sync, launch, compute, memory, run, machine."""
        return self.id.partition(".")[0]


class Headroom(Struct, frozen=True, kw_only=True):
    """The step with all fixes that go together."""

    step_ms: float
    now_ms: float
    speedup: float
    by: tuple[str, ...]
    """Ids of the findings it rests on, largest gain first."""
    replayed: bool
    """Whether all were replayed together; otherwise the gains of the groups were added up."""
    text: str


class AnswerStatus(StrEnum):
    """Whether a question could be answered, and why not."""

    KNOWN = "known"
    NO_GPU = "no_gpu"
    NOT_RECORDED = "not_recorded"


class Answer(Struct, frozen=True):
    """A question, its answer in words, and the number in the answer, if any."""

    question: str
    answer: str
    value: float | None = None
    unit: str = ""
    status: AnswerStatus = AnswerStatus.KNOWN


class Diagnosis(Struct, frozen=True):
    """What was found, largest gain first; a run's and a trace's document have the same fields."""

    findings: list[Finding] = []
    minor: list[Finding] = []
    """Findings that cost too little to be bottlenecks."""
    healthy: list[Finding] = []
    """What is fine."""
    headroom: Headroom | None = None
    baseline: list[Answer] = []
    problems: list[str] = []
