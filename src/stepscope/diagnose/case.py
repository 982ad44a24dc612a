"""What a rule is, and the case it looks at."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from stepscope.analyze.run.records import RunRecords
from stepscope.record.finding import Finding, Place, Predicted
from stepscope.record.timeline import Timeline

AnalysisDocument = Mapping[str, Any]
_DEFAULT_DOUBT = (
    0.15  # of a gain: what predictions are known to err by where nothing better is known
)
_RUN_TO_RUN = 0.02  # two runs of the same program differ by that


class Replayable(Protocol):
    """A window that can be replayed with changes: `analyze.whatif`'s model."""

    @property
    def step_ms(self) -> float:
        """The unchanged replay."""

    @property
    def error(self) -> float:
        """How far that may lie from the bare step, as a share."""

    def replay(self, *changes: Any) -> Any:
        """The replay with changes; has `step_ms`."""


def _no_source(file: str, line: int) -> str | None:
    return None


@dataclass(frozen=True, slots=True)
class Case:
    """A run, or a trace alone. Times are of the bare step where there is a run."""

    step_ms: float
    device: str
    """cuda or cpu."""
    cores: float
    """Usable processor cores; 0 where not known, as for a trace alone."""
    phases: Mapping[str, float] = field(default_factory=dict)
    """Mean ms of a step by phase; they add up to `step_ms`. Empty for a trace alone."""
    show: AnalysisDocument | None = None
    """The run as `show --json` has it; None for a trace alone."""
    trace: AnalysisDocument | None = None
    """The window as `analyze --json` has it; None where none was recorded."""
    model: Replayable | None = None
    source: Callable[[str, int], str | None] = _no_source
    """The user's source line as it was at run time; None where it was not kept."""
    optimizers: tuple[Place, ...] = ()
    """Where the program makes its optimizers."""
    through: Mapping[tuple[str, int], str] = field(default_factory=dict)
    """The libraries that lines of the program call to do what they do, torch apart."""
    problems: tuple[str, ...] = ()
    """What could not be made ready for the rules, a line each."""

    def predict(self, *changes: Any, words: str, doubt: float = _DEFAULT_DOUBT) -> Predicted | None:
        """The step with changes, replayed; None without a window, or where it gains nothing.

        `words` say what becomes of what; `doubt` is how much of the gain may be wrong.
        """
        if self.model is None or self.model.step_ms <= 0:
            return None
        ratio = self.model.replay(*changes).step_ms / self.model.step_ms
        found = self.reach(self.step_ms * ratio, words, doubt, self.model.error)
        return found and replace(found, changes=changes)

    def reach(
        self, step_ms: float, words: str, doubt: float = _DEFAULT_DOUBT, error: float = 0.0
    ) -> Predicted | None:
        """A step of so many ms; None where that is no gain. `error` of the model, a share."""
        if step_ms <= 0 or step_ms >= self.step_ms:
            return None
        low, high = speedup_range(self.step_ms / step_ms, doubt, error)
        return Predicted(
            step_ms=step_ms,
            speedup=self.step_ms / step_ms,
            low=max(1.0, low),
            high=high,
            how=f"{in_ms(self.step_ms)} → {in_ms(step_ms)} ms: {words}",
        )


@dataclass(frozen=True, slots=True)
class Rule:
    """Everything known about one cause: how it is found, and which other findings belong to it."""

    id: str
    """Group and name, as in `data.loader_bound`; its findings carry it."""
    cause: str
    """What is wrong, in one sentence."""
    find: Callable[[Case], Iterable[Finding]]
    """The findings in a case. Its docstring says when there are any."""
    symptoms: tuple[str, ...] = ()
    """Rules, by id, whose findings follow from this cause or go away with its fix: they are merged
    into this rule's finding where both were found."""
    family: str | None = None
    """Rules of one family share one cause: their findings are merged into the costliest."""
    healthy: bool = False
    """Whether its findings say what is fine instead of what is slow."""


def speedup_range(
    speedup: float, doubt: float = _DEFAULT_DOUBT, error: float = 0.0
) -> tuple[float, float]:
    """The range a speedup lies in, as likely so many times lower as higher.

    `doubt` of the gain may be wrong. `error` is how well the model's parts are known against one
    another, a share: it counts for the part that changes, what stays is in both steps alike.
    """
    changed = 1 - min(speedup, 1 / speedup)
    reach = math.exp(doubt * abs(math.log(speedup)) + error * changed + _RUN_TO_RUN)
    return speedup / reach, speedup * reach


def in_ms(value: float) -> str:
    """Three significant digits at most: `63.1`, `1,240`, `0.82`."""
    return (
        f"{value:,.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"
    )


def in_times(speedup: float) -> str:
    """`6.4`, and `1.04` where one digit would say nothing."""
    return f"{speedup:.1f}" if speedup >= 1.095 else f"{speedup:.2f}"


def case_of_run(document: AnalysisDocument, records: RunRecords) -> Case | None:
    """A run as `summarize` tells of it, and its records; None where it had no steps."""
    from stepscope.analyze.replay.model import model_of_run

    step_ms = document["steps"]["mean_ms"]
    if not step_ms:
        return None
    lines, facts = records.sources, records.facts
    cpu = (document["config"].get("machine") or {}).get("cpu") or {}
    cores = float(cpu.get("usable_cores") or 0)
    window = document["timeline"]
    model, problem = _model_or_problem(lambda: None if window is None else model_of_run(records))
    return Case(
        step_ms=step_ms,
        device="cuda" if document["gpu"] or document["run"]["device"] == "cuda" else "cpu",
        cores=cores,
        phases=document["phases_ms"],
        show=document,
        trace=window,
        model=model,
        source=lambda file, line: lines.get(file, {}).get(line),
        optimizers=_optimizers(facts),
        through=_libraries_called(facts),
        problems=problem,
    )


def case_of_trace(document: AnalysisDocument, timeline: Timeline) -> Case | None:
    """A trace as `analyse` tells of it; None where it is empty."""
    from stepscope.analyze.replay.model import model_of_trace

    steps = document["steps"]
    if not steps["mean_ms"]:
        return None
    model, problem = _model_or_problem(lambda: model_of_trace(timeline))
    return Case(
        step_ms=steps["mean_ms"],
        device="cuda" if document["source"]["has"]["device"] else "cpu",
        cores=0.0,
        trace=document,
        model=model,
        problems=problem,
    )


def _optimizers(facts: AnalysisDocument) -> tuple[Place, ...]:
    made = {fact["site"] for fact in facts["optimizer_made"]}
    return tuple(Place(s["file"], s["line"]) for s in facts["site"] if s["id"] in made)


def _libraries_called(facts: AnalysisDocument) -> dict[tuple[str, int], str]:
    return {(s["file"], s["line"]): s["through"] for s in facts["site"] if s.get("through")}


def _model_or_problem(
    build: Callable[[], Replayable | None],
) -> tuple[Replayable | None, tuple[str, ...]]:
    """A model, or why there is none: without one, rules still tell what they see."""
    try:
        return build(), ()
    except Exception as problem:
        return None, (f"nothing can be predicted from the window: {problem!r}",)
