"""What a rule is, and the case it looks at."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from msgspec.structs import replace

from stepscope.analyze.run.document import RunSummary
from stepscope.analyze.run.records import RunRecords
from stepscope.analyze.timeline.document import TraceAnalysis
from stepscope.record.facts import Facts, OptimizerMadeFact, SiteFact
from stepscope.record.finding import Finding, Place, Predicted, TimelineHint
from stepscope.record.timeline import Timeline

_DEFAULT_DOUBT = 0.15  # of a gain: what predictions err by where nothing better is known
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
    show: RunSummary | None = None
    """The run as `show --json` has it; None for a trace alone."""
    trace: TraceAnalysis | None = None
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

    def predict(
        self, *changes: Any, reason: str = "", doubt: float = _DEFAULT_DOUBT
    ) -> Predicted | None:
        """The step with changes, replayed; None without a window, or where it gains nothing.

        `doubt` is how much of the gain may be wrong.
        """
        if self.model is None or self.model.step_ms <= 0:
            return None
        ratio = self.model.replay(*changes).step_ms / self.model.step_ms
        found = self.reach(self.step_ms * ratio, reason, doubt, self.model.error)
        return found and replace(found, changes=changes)

    def reach(
        self, step_ms: float, reason: str = "", doubt: float = _DEFAULT_DOUBT, error: float = 0.0
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
            reason=reason,
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
    timeline: TimelineHint | None = None
    """Where a timeline shows its findings, if they name no operator or kernel."""

    @property
    def group(self) -> str:
        """Its theme: data, transfer, sync, launch, compute, memory, run, machine, healthy."""
        return self.id.partition(".")[0]


def rule(
    name: str,
    cause: str,
    *,
    symptoms: tuple[str, ...] = (),
    family: str | None = None,
    healthy: bool = False,
    timeline: TimelineHint | None = None,
) -> Callable[[Callable[[Case], Iterable[Finding]]], Rule]:
    """Makes a rule of the function that finds it."""
    return lambda find: Rule(name, cause, find, symptoms, family, healthy, timeline)


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


def case_of_run(run: RunSummary, records: RunRecords) -> Case | None:
    """A run and its records; None where it had no steps."""
    from stepscope.analyze.replay.model import model_of_run

    if not run.steps.mean_ms:
        return None
    lines, facts, window = records.sources, records.facts, run.timeline
    model, problem = _model_or_problem(lambda: None if window is None else model_of_run(records))
    return Case(
        step_ms=run.steps.mean_ms,
        device="cuda" if run.gpu or run.run.device == "cuda" else "cpu",
        cores=float((run.config.machine.get("cpu") or {}).get("usable_cores") or 0),
        phases=run.phases_ms,
        show=run,
        trace=window,
        model=model,
        source=lambda file, line: lines.get(file, {}).get(line),
        optimizers=_optimizers(facts),
        through=_libraries_called(facts),
        problems=problem,
    )


def case_of_trace(trace: TraceAnalysis, timeline: Timeline) -> Case | None:
    """A trace alone; None where it is empty."""
    from stepscope.analyze.replay.model import model_of_trace

    if not trace.steps.mean_ms:
        return None
    model, problem = _model_or_problem(lambda: model_of_trace(timeline))
    return Case(
        step_ms=trace.steps.mean_ms,
        device="cuda" if trace.source.has.device else "cpu",
        cores=0.0,
        trace=trace,
        model=model,
        problems=problem,
    )


def _optimizers(facts: Facts) -> tuple[Place, ...]:
    made = {fact.site for fact in facts.all(OptimizerMadeFact)}
    return tuple(Place(s.file, s.line) for s in facts.all(SiteFact) if s.id in made)


def _libraries_called(facts: Facts) -> dict[tuple[str, int], str]:
    return {(s.file, s.line): s.through for s in facts.all(SiteFact) if s.through}


def _model_or_problem(
    build: Callable[[], Replayable | None],
) -> tuple[Replayable | None, tuple[str, ...]]:
    """A model, or why there is none: rules work without one."""
    try:
        return build(), ()
    except Exception as problem:
        return None, (f"no predictions: the window could not be replayed ({problem!r})",)
