"""A run folder as one document: what `show` prints and `show --json` hands out, with its windows'
analysis and what became of its fixes.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from stepscope.analyze.run import sites, totals
from stepscope.analyze.run.host_code import host_code
from stepscope.analyze.run.records import RunRecords
from stepscope.analyze.run.steps import (
    Steps,
    charge_waits,
    mean_device_phases,
    mean_host_phases,
    phases_by_device,
)
from stepscope.analyze.run.totals import memory_owners
from stepscope.record.errors import BrokenRun
from stepscope.record.facts import (
    BatchFact,
    CompileCountersFact,
    CompileFact,
    ConfigFact,
    EndFact,
    Facts,
    FailedAllocationFact,
    OptimizerFact,
    ProblemFact,
    ProcessFact,
    ProgramError,
    RootFact,
    WindowFact,
)
from stepscope.record.fix import fix_outcomes
from stepscope.record.fix_words import outcome_json
from stepscope.record.out_of_memory import is_out_of_memory
from stepscope.record.problems import Problem, ProblemKind
from stepscope.record.row_log import STEP_PHASES
from stepscope.record.run import RunInfo, RunRecord
from stepscope.stats.series import drift, find_spikes, warmup_length
from stepscope.store.folder import in_use

Document = dict[str, Any]


def device_use(timeline: Document | None) -> Document | None:
    """How long the device worked for a step, in ms (None without one), and on how many kernels.

    All its work in the window is counted, also what outlasted the last step's mark.
    """
    if timeline is None:
        return None
    steps = timeline["steps"]["count"]
    whole = [device["whole_ns"] for device in timeline["devices"]]
    busy = max((one["wall"] - one["idle"] for one in whole), default=None)
    return {
        "busy_ms": busy / steps / 1e6 if busy is not None else None,
        "kernels": timeline["launch"]["kernels"] / steps,
    }


SHOW_SCHEMA = "stepscope.show/2"
_DEVICE_DECIDES = 0.9  # busy that much, the device sets the pace
_DISTURBED = 3  # steps after a recording


def summarize(records: RunRecords) -> Document:
    """Everything a run folder tells. Raises BrokenRun."""
    try:
        return _summarize(records)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as problem:
        raise BrokenRun(f"{records.folder}: damaged run folder: {problem!r}") from problem


def _summarize(records: RunRecords) -> Document:
    folder, run, facts = records.folder, records.run, records.facts
    rows, samples, steps = records.rows, records.samples, records.steps
    first = _warmup(records)
    use = np.arange(len(steps)) >= first
    use &= ~steps.in_window
    if not use.any():
        use = np.ones(len(steps), bool)
    where = sites.read_sites(folder, facts)
    document: Document = {
        "schema": SHOW_SCHEMA,
        "run": _run(run, facts, folder),
        "steps": _steps(steps, use, first, facts),
        "account_s": totals.wall_time_by_category(run.run, facts, steps, first, rows),
        "losses": [float(x) if np.isfinite(x) else None for x in steps.loss],
    }
    windows = records.windows
    used = device_use(windows["timeline"])
    document["gpu"] = totals.gpu_totals(run, facts, samples, steps, use, used)
    document |= _phases(steps, use, document["gpu"])
    document["host"] = totals.host_totals(samples)
    document["memory"] = totals.memory_totals(facts, samples)
    document["loaders"] = sites.loader_sites(facts, where)
    document["pipeline"] = [asdict(source) for source in records.pipeline]
    document["syncs"] = sites.sync_sites(where)
    document["sites"] = sites.hot_sites(where)
    document["account_places"] = totals.category_places(document["sites"], facts)
    document["config"] = _config(facts, run)
    counters = facts.last(CompileCountersFact)
    document["compile"] = counters.to_json() if counters else None
    document["windows"] = [window.to_json() for window in facts.all(WindowFact)]
    document["timeline"] = windows["timeline"]
    document["timeline_stacks"] = windows["stacks"]
    document["sinks"] = sites.largest_sinks(document)
    document["host_code"] = _host_code(folder, run.run)
    lines = memory_owners(folder)
    document["memory"]["lines"] = None if lines is None else asdict(lines)
    outcomes = fix_outcomes(facts.fixes, run.fixes)
    document["fixes"] = [outcome_json(one) for one in outcomes]
    document["problems"] = [problem.text for problem in _problems(run.run, facts, steps)]
    return document


def _warmup(records: RunRecords) -> int:
    steps, asked = records.steps, records.warmup
    return (
        min(asked, len(steps))
        if asked is not None
        else warmup_length(steps.done()[~steps.in_window])
    )


def _run(record: RunRecord, facts: Facts, folder: Path) -> Document:
    run = record.run
    process, config, end = facts.last(ProcessFact), facts.last(ConfigFact), facts.last(EndFact)
    models = config.models if config else []
    on = {device.split(":")[0] for model in models for device in model.devices}
    stopped = [
        fact.text
        for fact in facts.all(ProblemFact)
        if fact.kind in (ProblemKind.RECORDING_STOPPED, ProblemKind.NOT_OBSERVED)
    ]
    known = {key: value for key, value in run.to_json().items() if key != "processes"}
    if run.problems is not None:
        known["problems"] = [problem.text for problem in run.problems]
    if stopped:
        known["recording_stopped"] = stopped[0]
    error = end.error if end else None
    return known | {
        "folder": str(folder),
        "device": next((kind for kind in ("cuda", "cpu") if kind in on), None),
        "torch": (process.torch if process else None) or run.torch,
        "window": record.options.window if record.options else None,
        "complete": end is not None,
        "under_way": run.exit_code is None and in_use(folder),
        "error": {"type": error.type, "text": error.text} if error else None,
        "out_of_memory": _out_of_memory(run, facts, error),
    }


def _out_of_memory(run: RunInfo, facts: Facts, error: ProgramError | None) -> Document | None:
    request = facts.last(FailedAllocationFact)
    if error is not None and (error.out_of_memory or is_out_of_memory(error.type, error.text)):
        device = "cuda" if request else "cpu"
    elif run.signal == 9 and run.killed_by_kernel:
        device = "cpu"
    else:
        return None
    return {**(request.to_json() if request else {}), "device": device}


def _steps(steps: Steps, use: Any, first: int, facts: Facts) -> Document:
    times = steps.done()[use] / 1e6
    names = {fact.id: fact.name for fact in facts.all(OptimizerFact)}
    samples = float(steps.samples[use].sum())
    known = len(times) > 0
    mean_ms = steps.mean(use) / 1e6 if known else None
    total_s = mean_ms * len(times) / 1e3 if mean_ms else 0.0
    jumps = outlier_steps(steps, use)
    return {
        "count": len(steps),
        "what": steps.what,
        "inferred": steps.inferred,
        "mean_ms": mean_ms,
        "median_ms": float(np.median(times)) if known else None,
        "p95_ms": float(np.percentile(times, 95)) if known else None,
        "std_ms": float(times.std()) if known else None,
        "samples_per_s": samples / total_s if samples and total_s else None,
        "samples_per_step": samples / len(times) if samples else None,
        "batch_bytes": max((fact.bytes for fact in facts.all(BatchFact)), default=None),
        "warmup_steps": first,
        "window_steps": int(steps.in_window.sum()),
        "measured_steps": int(use.sum()) if known else 0,
        "by_optimizer": _by_optimizer(steps, names),
        "spikes": jumps[:5],
        "spike_count": len(jumps),
        "drift": drift(times),
    }


def outlier_steps(steps: Steps, use: Any) -> list[Document]:
    """Steps that took far longer than their neighbours, the longest first; one that follows a
    recording is that one's doing."""
    at = np.flatnonzero(use)
    return [
        {"step": step + 1, "ms": jump.value}
        for jump in find_spikes(steps.done()[use] / 1e6)
        if not steps.in_window[max(0, (step := int(at[jump.index])) - _DISTURBED) : step].any()
    ]


def _by_optimizer(steps: Steps, names: dict[int, str]) -> list[Document]:
    return [
        {"name": names.get(who, "in backward"), "count": count}
        for who, count in sorted(steps.by_optimizer.items())
    ]


def _phases(steps: Steps, use: Any, gpu: Document | None) -> Document:
    if not len(steps):
        return {
            "phases_ms": dict.fromkeys(STEP_PHASES, 0.0),
            "phases_seen_by": "host",
            "phases_host_ms": None,
            "phases_device_ms": None,
        }
    host, device = mean_host_phases(steps, use), mean_device_phases(steps, use)
    busy = gpu["busy_fraction"] if gpu else None
    if device is not None and busy is not None and busy >= _DEVICE_DECIDES:
        phases, seen_by = phases_by_device(device, steps.mean(use) / 1e6), "device"
    else:
        phases, seen_by = charge_waits(host, device), "host"
    return {
        "phases_ms": phases,
        "phases_seen_by": seen_by,
        "phases_host_ms": host,
        "phases_device_ms": device,
    }


def _config(facts: Facts, run: RunRecord) -> Document:
    latest = facts.last(ConfigFact)
    return {
        **(latest.to_json() if latest else {}),
        "optimizers": [fact.to_json() for fact in facts.all(OptimizerFact)],
        "compile": [fact.to_json() for fact in facts.all(CompileFact)],
        "roots": [fact.name for fact in facts.all(RootFact)],
        "environment": run.environment or {},
        "machine": run.machine or {},
    }


def _host_code(folder: Path, run: RunInfo) -> Document | None:
    try:
        text = (folder / "python.txt").read_text(errors="replace")
    except OSError:
        return None
    return asdict(host_code(text, pid=run.pid))


def _problems(run: RunInfo, facts: Facts, steps: Steps) -> list[Problem]:
    """What went wrong or was not seen."""
    seen = facts.all(ProblemFact)
    problems: list[Problem] = [*seen, *(run.problems or ())]
    if children := sites.unobserved_children(run.processes or {}, facts):
        shown = ", ".join(sorted(set(children.values()))[:2])
        kind = ProblemKind.CHILDREN_NOT_OBSERVED
        problems.append(Problem(kind=kind, detail=shown, count=len(children)))
    if not len(steps) and not seen:
        imported = bool(facts.all(ProcessFact))
        problems.append(Problem(kind=ProblemKind.NO_STEPS if imported else ProblemKind.NO_TORCH))
    return problems
