"""A diagnosed cause of slowness, and what its removal should be worth."""

from dataclasses import asdict, dataclass, field, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Predicted:
    """The step after a change: its mean time, the speedup, and the range the speedup lies in."""

    step_ms: float
    speedup: float
    low: float
    high: float
    how: str
    """One sentence a person can follow, with the numbers."""
    changes: tuple[Any, ...] = field(default=(), compare=False, repr=False)
    """What was changed in the replay it comes from; empty for arithmetic. Not part of the JSON."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a cause sits: a line of the user's, an operator, a kernel; None where not known."""

    file: str | None = None
    line: int | None = None
    operator: str | None = None
    kernel: str | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """One measured number (or word) behind a finding."""

    what: str
    value: float | str
    unit: str = ""


@dataclass(frozen=True, slots=True)
class FixRef:
    """A fix as `stepscope run --fix` takes it."""

    name: str
    value: str | None = None

    def __str__(self) -> str:
        return self.name if self.value is None else f"{self.name}={self.value}"


@dataclass(frozen=True, slots=True)
class Finding:
    """One cause."""

    id: str
    """The group and the rule: data.loader_bound."""
    title: str
    why: str
    """Two sentences at most."""
    advice: str
    """The change of the source in words, or what else to do."""
    share: float
    """The part of the step (of the run, for scope "run") that it concerns, 0 to 1."""
    evidence: tuple[Evidence, ...] = ()
    where: tuple[Place, ...] = ()
    predicted: Predicted | None = None
    """None where removing it changes no step time, or where nothing can be told."""
    fix: FixRef | None = None
    """None where nothing can be done at run time."""
    effort: str = "some lines"
    """One line, some lines, or a redesign."""
    kind: str = "exact"
    """What the change does to training: exact, numeric, semantic; none where it is only told."""
    confidence: str = "high"
    """high, medium or low."""
    scope: str = "step"
    """What it costs: time of the step, of the run, or of everything on this machine."""
    edit: dict[str, Any] | None = None
    """The user's own line as it would be: file, line, before (the line), after (lines)."""
    also: tuple[FixRef, ...] = ()
    """Other fixes of the same cause, where symptoms of it were merged."""

    def to_json(self) -> dict[str, Any]:
        """As `show --json` has it."""
        predicted = self.predicted and replace(self.predicted, changes=())
        found = asdict(replace(self, predicted=predicted))
        if found["predicted"] is not None:
            del found["predicted"]["changes"]
        return found
