"""A rule, and the case it examines."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from msgspec.structs import replace

from stepscope.analyze.run.document import GpuTotals, HotSite, Loader, ProgramConfig, RunSummary
from stepscope.analyze.run.records import RunRecords
from stepscope.analyze.run.totals import free_cores
from stepscope.analyze.timeline.document import TraceAnalysis
from stepscope.record.facts import OptimizerMadeFact, SiteFact, Switches
from stepscope.record.finding import Finding, FixRef, Place, Predicted, RefusedFix, TimelineHint
from stepscope.record.fix import FixState
from stepscope.record.kinds import IdleCause
from stepscope.record.timeline import Timeline

_DEFAULT_DOUBT = 0.15  # of a gain: the default error of predictions
_RUN_TO_RUN = 0.02  # two runs of the same program differ by that
_TIMELINES = {
    "data": TimelineHint(IdleCause.LOADER, ("enumerate(DataLoader)",)),
    "sync": TimelineHint(
        IdleCause.SYNCHRONISATION, ("aten::item", "cudaStreamSynchronize", "cudaDeviceSynchronize")
    ),
}


class Replayable(Protocol):
    """A window that can be replayed with changes: the model of `analyze.replay`."""

    @property
    def step_ms(self) -> float:
        """The step time of the unchanged replay."""

    @property
    def error(self) -> float:
        """How far that may be from the bare step, as a share."""

    def replay(self, *changes: Any) -> Any:
        """The replay with changes; has `step_ms`."""

    def host_share(self, chosen: Any) -> float:
        """The share of the host's self time in chosen stretches, 0 to 1."""


@dataclass(frozen=True, slots=True)
class Case:
    """A run, or a trace alone. Times are of the bare step where there is a run."""

    step_ms: float
    device: str
    """cuda or cpu."""
    cores: float
    """Usable CPU cores; 0 if unknown, as for a trace alone."""
    phases: Mapping[str, float] = field(default_factory=dict)
    """Mean ms of a step by phase; they add up to `step_ms`. Empty for a trace alone."""
    show: RunSummary | None = None
    """The run as in `show --json`; None for a trace alone."""
    trace: TraceAnalysis | None = None
    """The window as in `analyze --json`; None if none was recorded."""
    model: Replayable | None = None
    source: Callable[[str, int], str | None] = lambda file, line: None
    """The user's source line at run time; None if it was not kept."""
    optimizers: tuple[Place, ...] = ()
    """Where the program makes its optimizers."""
    through: Mapping[tuple[str, int], str] = field(default_factory=dict)
    """The libraries other than torch through which the program's lines act."""
    problems: tuple[str, ...] = ()
    """What could not be prepared for the rules, one line each."""

    @property
    def free_cores(self) -> float:
        """The usable cores that other processes leave free; 0 if unknown."""
        return free_cores(self.cores, self.show.host if self.show else None)

    @property
    def crowded(self) -> bool:
        """Whether other processes leave the program less than one core of its own."""
        host = self.show.host if self.show else None
        others = (host.other_cpu_percent or 0.0) / 100 if host else 0.0
        return self.cores - others < 1.0 and others > 0

    @property
    def loaders(self) -> Sequence[Loader]:
        """The program's loaders; like all below, empty or None for a trace alone."""
        return self.show.loaders if self.show else ()

    @property
    def config(self) -> ProgramConfig:
        """The program's settings."""
        return self.show.config if self.show else ProgramConfig(environment={}, machine={})

    @property
    def switches(self) -> Switches:
        """torch's global switches."""
        return self.config.switches or Switches(threads=0)

    @property
    def sites(self) -> Sequence[HotSite]:
        """The user's lines by phase, costliest first."""
        return self.show.sites if self.show else ()

    @property
    def gpu(self) -> GpuTotals | None:
        """What the GPU did during the run; None without a GPU."""
        return self.show.gpu if self.show else None

    @property
    def run_steps(self) -> int:
        """All steps of the run."""
        return self.show.steps.count if self.show else 0

    @property
    def recorded_steps(self) -> int:
        """Steps in the window; 0 without one."""
        return self.trace.steps.count if self.trace else 0

    @property
    def recorded_ms(self) -> float:
        """The mean step in the window, slowed by recording; 0 without one."""
        return self.trace.steps.mean_ms if self.trace else 0.0

    def applied(self, fix: FixRef) -> bool:
        """Whether the run was made with it, and it took effect; no value: with any."""
        made = [one for one in (self.show.fixes if self.show else ()) if one.name == fix.name]
        same = (one for one in made if fix.value is None or str(one.value) == fix.value)
        return any(one.state is FixState.APPLIED for one in same)

    @property
    def applied_fixes(self) -> tuple[str, ...]:
        """Names of the fixes the run was made with."""
        made = self.show.fixes if self.show else ()
        return tuple(one.name for one in made if one.state is FixState.APPLIED)

    def objection(self, fix: FixRef) -> RefusedFix | None:
        """Why a fix does not apply to the program, as it said itself; None where it may. What one
        that is applied says is of its own effect."""
        said = {one.name: one for one in (self.show.fix_checks if self.show else ())}.get(fix.name)
        if said is None or said.refused is None or self.applied(FixRef(fix.name)):
            return None
        return RefusedFix(fix, said.refused, said.text or "")

    def objections(self, *fixes: FixRef) -> tuple[RefusedFix, ...]:
        """Those of several."""
        return tuple(found for one in fixes if (found := self.objection(one)) is not None)

    def may_apply(self, fix: FixRef) -> bool:
        """Whether it can be promised: nothing speaks against it, and it is not applied already."""
        return not self.applied(fix) and self.objection(fix) is None

    def per_step(self, ns: float | None) -> float:
        """Nanoseconds of the whole window as ms per step."""
        return (ns or 0.0) / self.recorded_steps / 1e6 if self.recorded_steps else 0.0

    def step_share(self, ms: float) -> float:
        """As a share of the step, at most 1."""
        return min(1.0, max(0.0, ms / self.step_ms)) if self.step_ms > 0 else 0.0

    def recorded_share(self, ms: float) -> float:
        """As a share of the recorded step, at most 1; 0 without a window."""
        return min(1.0, ms / self.recorded_ms) if self.recorded_ms else 0.0

    def predict(
        self, *changes: Any, reason: str = "", doubt: float = _DEFAULT_DOUBT
    ) -> Predicted | None:
        """The step with changes, replayed; None without a window or a gain.

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
        """A prediction of `step_ms`; None if that is no gain. `error` of the model is a share."""
        if step_ms <= 0 or step_ms >= self.step_ms:
            return None
        speedup = self.step_ms / step_ms
        low, high = speedup_range(speedup, doubt, error)
        return Predicted(step_ms, speedup, max(1.0, low), high, reason)


@dataclass(frozen=True, slots=True)
class Rule:
    """Everything about one cause: how it is found, and which other findings belong to it."""

    id: str
    """Group and name, as in `data.loader_bound`; its findings carry it."""
    cause: str
    """What is wrong, in one sentence."""
    find: Callable[[Case], Iterable[Finding]]
    """The findings in a case. Its docstring says when there are any."""
    symptoms: tuple[str, ...] = ()
    """Ids of rules whose findings follow from this cause or disappear with its fix: they are merged
    into this rule's finding if both are found."""
    family: str | None = None
    """Rules of one family share one cause: their findings are merged into the costliest."""
    healthy: bool = False
    """Whether its findings report what is fine instead of what is slow."""
    timeline: TimelineHint | None = None
    """Where a timeline shows its findings if they name no operator or kernel."""

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
    """Make a rule from its find function; without a timeline hint it gets its group's."""
    hint = timeline or _TIMELINES.get(name.partition(".")[0])
    return lambda find: Rule(name, cause, find, symptoms, family, healthy, hint)


def speedup_range(
    speedup: float, doubt: float = _DEFAULT_DOUBT, error: float = 0.0
) -> tuple[float, float]:
    """The range of a speedup, symmetric as a ratio.

    `doubt` of the gain may be wrong. `error`, a share, is the uncertainty between the model's
    parts: it applies to the part that changes.
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
    """`6.4`, or `1.04` where one digit would show nothing."""
    return f"{speedup:.1f}" if speedup >= 1.095 else f"{speedup:.2f}"


def case_of_run(run: RunSummary, records: RunRecords) -> Case | None:
    """The case of a run and its records; None if it had no steps."""
    from stepscope.analyze.replay.model import model_of_run

    if not run.steps.mean_ms:
        return None
    cores = run.config.usable_cores
    free = free_cores(cores, run.host)
    model, problem = _model_or_problem(
        lambda: model_of_run(records, cores=free) if run.timeline else None
    )
    lines, places = records.sources, records.facts.all(SiteFact)
    made = {fact.site for fact in records.facts.all(OptimizerMadeFact)}
    return Case(
        step_ms=run.steps.mean_ms,
        device="cuda" if run.gpu or run.run.device == "cuda" else "cpu",
        cores=cores,
        phases=run.phases_ms,
        show=run,
        trace=run.timeline,
        model=model,
        source=lambda file, line: lines.get(file, {}).get(line),
        optimizers=tuple(Place(one.file, one.line) for one in places if one.id in made),
        through={(one.file, one.line): one.through for one in places if one.through},
        problems=problem,
    )


def case_of_trace(trace: TraceAnalysis, timeline: Timeline) -> Case | None:
    """The case of a trace alone; None if it is empty."""
    from stepscope.analyze.replay.model import model_of_trace

    if not trace.steps.mean_ms:
        return None
    model, problem = _model_or_problem(lambda: model_of_trace(timeline))
    device = "cuda" if trace.source.has.device else "cpu"
    return Case(trace.steps.mean_ms, device, 0.0, trace=trace, model=model, problems=problem)


def _model_or_problem(
    build: Callable[[], Replayable | None],
) -> tuple[Replayable | None, tuple[str, ...]]:
    """A model, or the problem that prevents it: rules work without one."""
    try:
        return build(), ()
    except Exception as problem:
        return None, (f"no predictions: the window could not be replayed ({problem!r})",)
