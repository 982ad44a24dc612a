"""A run folder as one document: what `show` prints and `show --json` hands out, with its windows'
analysis and what became of its fixes.
"""

from math import prod
from pathlib import Path

import msgspec
import numpy as np

from stepscope.analyze.run import sites, totals
from stepscope.analyze.run.document import (
    SHOW_SCHEMA,
    AutoRun,
    FixAnswer,
    FixReport,
    GpuTotals,
    InPlaceContest,
    ObservedRun,
    OptimizerSteps,
    OutOfMemory,
    Overhead,
    ProgramConfig,
    RunSteps,
    RunSummary,
)
from stepscope.analyze.run.host_code import HostCode, host_code, other_time
from stepscope.analyze.run.ranks import observed_pids, study_ranks
from stepscope.analyze.run.records import RunRecords
from stepscope.analyze.run.steps import (
    Steps,
    charge_waits,
    mean_device_phases,
    mean_host_phases,
    phases_by_device,
)
from stepscope.analyze.timeline.document import StepOutlier
from stepscope.record.errors import BrokenRun
from stepscope.record.facts import (
    AutoFact,
    BatchFact,
    CompileCountersFact,
    CompileFact,
    ConfigFact,
    ContestFact,
    Distributed,
    EndFact,
    Facts,
    FailedAllocationFact,
    FixChecksFact,
    HostSamplesFact,
    OptimizerFact,
    OverheadFact,
    ProblemFact,
    ProcessFact,
    ProgramError,
    RankFact,
    RootFact,
    WindowFact,
)
from stepscope.record.fix import FixKind
from stepscope.record.fix_words import outcome_json
from stepscope.record.problems import Problem, ProblemKind, is_out_of_memory
from stepscope.record.row_log import STEP_PHASES
from stepscope.record.run import RunInfo, RunRecord
from stepscope.stats.series import Bools, drift, find_spikes, warmup_length
from stepscope.store.json_file import read_plain

_DEVICE_DECIDES = 0.9  # busy that much, the device sets the pace
_DAMAGE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
_OF_THE_LOOP = ("data_wait", "h2d", "forward", "backward", "optimizer")  # sites
_DISTURBED = 3  # steps after a recording


def summarize(records: RunRecords) -> RunSummary:
    """Everything a run folder tells, findings apart. Raises BrokenRun."""
    try:
        return _summarize(records)
    except _DAMAGE as problem:
        raise BrokenRun(f"{records.folder}: damaged run folder: {problem!r}") from problem


def _summarize(records: RunRecords) -> RunSummary:
    folder, run, facts = records.folder, records.run, records.facts
    lead, group = records.lead, study_ranks(records)
    samples, steps, window = records.samples, records.steps, records.windows.timeline
    config, first = _config(records), run.warmup
    first = warmup_length(steps.done()[~steps.in_window]) if first is None else first
    first = min(first, len(steps))
    use = (np.arange(len(steps)) >= first) & ~steps.in_window
    if not use.any():
        use = np.ones(len(steps), bool)
    where = sites.read_sites(lead, facts, steps.weight)
    hot, syncs = sites.hot_sites(where), sites.sync_sites(where)
    loaders = sites.loader_sites(facts, where)
    measured = _steps(steps, use, first, facts)
    gpu = totals.gpu_totals(run, facts, samples, steps, use, window)
    phases, seen_by, host_ms, device_ms = _phases(steps, use, gpu)
    loop = {(site.file, site.function) for site in hot if site.what in _OF_THE_LOOP}
    other = other_time(facts.last(HostSamplesFact), loop)
    return RunSummary(
        schema=SHOW_SCHEMA,
        run=_run(run, facts, folder, records.in_use, _script(records)),
        steps=measured,
        account_s=totals.wall_time_by_category(run.run, facts, steps, first, records.rows),
        losses=[float(x) if np.isfinite(x) else None for x in steps.loss],
        gpu=gpu,
        phases_ms=phases,
        phases_seen_by=seen_by,
        phases_host_ms=host_ms,
        phases_device_ms=device_ms,
        overhead=_overhead(steps, facts),
        host=totals.host_totals(samples, steps, use),
        memory=totals.memory_totals(facts, samples, totals.memory_owners(lead)),
        loaders=loaders,
        pipeline=records.pipeline,
        syncs=syncs,
        sites=hot,
        account_places=totals.category_places(hot, facts, steps),
        config=ProgramConfig(
            **(vars(config) if config else {}),
            optimizers=facts.all(OptimizerFact),
            compile=facts.all(CompileFact),
            roots=[fact.name for fact in facts.all(RootFact)],
            environment=run.environment or {},
            machine=run.machine or {},
            device_switch=run.device_switch,
        ),
        compile=facts.last(CompileCountersFact),
        windows=facts.all(WindowFact),
        timeline=window,
        timeline_stacks=records.windows.stacks,
        sinks=sites.largest_sinks(
            measured, phases, hot, syncs, sites.loader_detail(loaders, records.pipeline), other
        ),
        host_code=_host_code(folder, run.run),
        fixes=[msgspec.convert(outcome_json(one), FixReport) for one in records.fixes],
        problems=[problem.text for problem in _problems(records, steps)],
        fix_checks=_fix_checks(facts),
        other_time=other,
        auto=_auto(facts),
        ranks=group.ranks,
        straggler=group.straggler,
        collectives=group.collectives,
        same_data=group.same_data,
    )


def _config(records: RunRecords) -> ConfigFact | None:
    """The program's settings, with how many ranks share the machine."""
    config, ranks = records.facts.last(ConfigFact), len(records.ranks)
    if config is None or not ranks:
        return config
    told = (one.distributed for one in reversed(records.facts.all(ConfigFact)))
    group = next(filter(None, told), Distributed(world_size=ranks, backend=""))  # may be gone
    shared = Distributed(**{**vars(group), "local_ranks": ranks})
    return ConfigFact(**{**vars(config), "distributed": shared})


def _script(records: RunRecords) -> str | None:
    """What its ranks run."""
    rank = records.facts.last(RankFact) if records.ranks else None
    return rank.program if rank else None


def _run(
    record: RunRecord, facts: Facts, folder: Path, in_use: bool, script: str | None
) -> ObservedRun:
    run = record.run
    process, config, end = facts.last(ProcessFact), facts.last(ConfigFact), facts.last(EndFact)
    models = config.models if config else []
    on = {device.split(":")[0] for model in models for device in model.devices}
    known = {key: value for key, value in vars(run).items() if key != "processes"}
    if run.problems is not None:
        known["problems"] = [problem.text for problem in run.problems]
    for fact in facts.all(ProblemFact):
        if fact.kind in (ProblemKind.RECORDING_STOPPED, ProblemKind.NOT_OBSERVED):
            known.setdefault("recording_stopped", fact.text)
    error = end.error if end else None
    known |= {"script": script} if script else {}
    known |= {
        "id": run.id or folder.name,
        "program": run.program or "",
        "argv": run.argv or [],
        "folder": str(folder),
        "device": next((kind for kind in ("cuda", "cpu") if kind in on), None),
        "torch": (process.torch if process else None) or run.torch,
        "window": record.options.window if record.options else None,
        "complete": end is not None,
        "under_way": run.exit_code is None and in_use,
        "error": ProgramError(type=error.type, text=error.text) if error else None,
        "out_of_memory": _out_of_memory(run, facts, error),
    }
    return ObservedRun(**known)


def _out_of_memory(run: RunInfo, facts: Facts, error: ProgramError | None) -> OutOfMemory | None:
    request = facts.last(FailedAllocationFact)
    if error is not None and (error.out_of_memory or is_out_of_memory(error.type, error.text)):
        device = "cuda" if request else "cpu"
    elif run.signal == 9 and run.killed_by_kernel:
        device = "cpu"
    else:
        return None
    return OutOfMemory(**{**(vars(request) if request else {}), "device": device})


def _steps(steps: Steps, use: Bools, first: int, facts: Facts) -> RunSteps:
    times = steps.done()[use] / 1e6
    names = {fact.id: fact.name for fact in facts.all(OptimizerFact)}
    samples = float(steps.samples[use].sum())
    known = len(times) > 0
    mean_ms = steps.mean(use) / 1e6 if known else None
    total_s = mean_ms * len(times) / 1e3 if mean_ms else 0.0
    spikes = outlier_steps(steps, use)
    return RunSteps(
        count=len(steps),
        what=steps.what,
        inferred=steps.inferred,
        evaluations=steps.evaluations,
        mean_ms=mean_ms,
        median_ms=float(np.median(times)) if known else None,
        p95_ms=float(np.percentile(times, 95)) if known else None,
        std_ms=float(times.std()) if known else None,
        samples_per_s=samples / total_s if samples and total_s else None,
        samples_per_step=samples / len(times) if samples else None,
        batch_bytes=max((fact.bytes for fact in facts.all(BatchFact)), default=None),
        warmup_steps=first,
        window_steps=int(steps.in_window.sum()),
        measured_steps=int(use.sum()) if known else 0,
        clocked_steps=int((use & steps.clocked).sum()) if known else 0,
        by_optimizer=[
            OptimizerSteps(names.get(who, "in backward"), count)
            for who, count in sorted(steps.by_optimizer.items())
        ],
        spikes=spikes[:5],
        spike_count=len(spikes),
        drift=drift(times),
    )


def outlier_steps(steps: Steps, use: Bools) -> list[StepOutlier]:
    """Steps that took far longer than their neighbours, the longest first; one that follows a
    recording is left out, as that disturbed it."""
    at = np.flatnonzero(use)
    return [
        StepOutlier(step + 1, jump.value)
        for jump in find_spikes(steps.done()[use] / 1e6)
        if not steps.in_window[max(0, (step := int(at[jump.index])) - _DISTURBED) : step].any()
    ]


def _overhead(steps: Steps, facts: Facts) -> Overhead | None:
    """What observing took of the steps, by its own account; None where it was not to keep one."""
    found = facts.last(OverheadFact)
    if found is None:
        return None
    count = found.clocked_steps + found.unclocked_steps
    spent_ns = found.clocked_steps * found.clocked_ns + count * found.unclocked_ns
    whole_ns = float(steps.duration.sum())
    return Overhead(
        budget=found.budget,
        share=spent_ns / whole_ns if whole_ns else None,
        clocked_us=found.clocked_ns / 1e3,
        unclocked_us=found.unclocked_ns / 1e3,
        measured=found.measured_pairs,
    )


_PhaseTimes = dict[str, float]


def _phases(
    steps: Steps, use: Bools, gpu: GpuTotals | None
) -> tuple[_PhaseTimes, str, _PhaseTimes | None, _PhaseTimes | None]:
    """Mean ms of a step by phase, whose clock that is, and what host and device each saw."""
    if not len(steps):
        return dict.fromkeys(STEP_PHASES, 0.0), "host", None, None
    host, device = mean_host_phases(steps, use), mean_device_phases(steps, use)
    busy = gpu.busy_fraction if gpu else None
    if device is not None and busy is not None and busy >= _DEVICE_DECIDES:
        return phases_by_device(device, steps.mean(use) / 1e6), "device", host, device
    return charge_waits(host, device), "host", host, device


def _fix_checks(facts: Facts) -> list[FixAnswer]:
    last = facts.last(FixChecksFact)
    return [FixAnswer(one.name, one.refused, one.text) for one in last.checks] if last else []


def _auto(facts: Facts) -> AutoRun | None:
    last, contests = facts.last(AutoFact), facts.all(ContestFact)
    if last is None:
        return None
    before = after = None
    if contests:
        after = contests[-1].after_ms if contests[-1].kept else contests[-1].before_ms
        before = after * prod(one.ratio for one in contests if one.kept)
    return AutoRun(
        allow=FixKind(last.allow),
        kept=last.kept,
        before_ms=before,
        after_ms=after,
        contests=[InPlaceContest(**vars(one)) for one in contests],
        stopped=last.stopped,
        detail=last.detail,
        for_tune=last.for_tune,
    )


def _host_code(folder: Path, run: RunInfo) -> HostCode | None:
    try:
        text = read_plain(folder / "python.txt").decode(errors="replace")
    except FileNotFoundError:
        return None
    return host_code(text, pid=run.pid)


def _problems(records: RunRecords, steps: Steps) -> list[Problem]:
    """What went wrong or was not seen."""
    run, facts = records.run.run, records.facts
    seen = facts.all(ProblemFact)
    problems: list[Problem] = [*seen, *(run.problems or ())]
    if children := sites.unobserved_children(run.processes or {}, facts, observed_pids(records)):
        shown = ", ".join(sorted(set(children.values()))[:2])
        kind = ProblemKind.CHILDREN_NOT_OBSERVED
        problems.append(Problem(kind=kind, detail=shown, count=len(children)))
    end = facts.last(EndFact)
    if not (len(steps) or seen or (end is not None and end.error is not None)):
        kind = ProblemKind.NO_STEPS_YET if run.signal or run.timed_out else ProblemKind.NO_STEPS
        problems.append(Problem(kind=kind if facts.all(ProcessFact) else ProblemKind.NO_TORCH))
    return problems
