"""A run folder as one document: what `show` prints and `show --json` hands out, with its windows'
analysis and what became of its fixes.

The analysis of the windows is kept beside the traces as `window.json`, since reading one takes a
while.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from stepscope.analyze.run import data_pipeline, sites, totals
from stepscope.analyze.run.host_code import host_code
from stepscope.analyze.run.steps import (
    Steps,
    assemble_steps,
    charge_waits,
    mean_device_phases,
    mean_host_phases,
    phases_by_device,
)
from stepscope.analyze.run.totals import memory_owners
from stepscope.analyze.timeline.document import ANALYZE_SCHEMA, analyze_timeline
from stepscope.hardware.ceiling_cache import known_ceilings
from stepscope.record.errors import BrokenRun, StepscopeError
from stepscope.record.fix import fix_outcomes
from stepscope.record.fix_words import outcome_json
from stepscope.record.row_log import STEP_PHASES
from stepscope.stats.series import drift, find_spikes, warmup_length
from stepscope.store.folder import in_use, read_run
from stepscope.store.json_lines import read_facts
from stepscope.store.table import read_table
from stepscope.trace.kineto.read import read_kineto

WINDOW_CACHE = "window.json"
Document = dict[str, Any]


def read_windows(folder: Path) -> Document:
    """`timeline`: the light window's analysis; `stacks`: modules and lines from the other one.

    Each is None where it was not recorded or cannot be read.
    """
    cache = folder / WINDOW_CACHE
    try:
        known = json.loads(cache.read_text())
        if isinstance(known, dict) and known.get("schema") == ANALYZE_SCHEMA:
            return known
    except (OSError, ValueError):
        pass
    found = {
        "schema": ANALYZE_SCHEMA,
        "timeline": _analysed(folder / "window.pt.trace.json.gz"),
        "stacks": _stack_lines(_analysed(folder / "stacks.pt.trace.json.gz")),
    }
    if found["timeline"] is not None:
        try:
            cache.write_text(json.dumps(found))
        except OSError:
            pass
    return found


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


def _analysed(trace: Path) -> Document | None:
    if not trace.is_file():
        return None
    try:
        return analyze_timeline(read_kineto(trace, processes=1), known_ceilings())
    except StepscopeError:
        return None


def _stack_lines(document: Document | None) -> Document | None:
    """What only a recording with stacks tells; its times are slowed by recording them."""
    if document is None:
        return None
    idle = document["devices"][0]["idle"] if document["devices"] else {}
    return {
        "steps": document["steps"]["count"],
        "by": {key: document["by"][key] for key in ("module", "line")},
        "host": {"lines": (document["host"] or {}).get("lines") or []},
        "idle_places": {cause: one["places"] for cause, one in idle.items() if one["places"]},
    }


SHOW_SCHEMA = "stepscope.show/1"
_DEVICE_DECIDES = 0.9  # busy that much, the device sets the pace
_DISTURBED = 3  # steps after a recording


def summarize(folder: Path) -> Document:
    """Everything a run folder tells. Raises BrokenRun."""
    try:
        return _summarize(folder)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as problem:
        raise BrokenRun(f"{folder} is damaged and cannot be shown: {problem!r}") from problem


def _summarize(folder: Path) -> Document:
    import numpy as np

    run = read_run(folder)
    facts = read_facts(folder / "facts.jsonl")
    rows = read_table(folder / "rows.npy")
    samples = read_table(folder / "samples.npy")
    start = float(run["run"].get("started_ns") or 0) or _first_start(facts)
    steps = assemble_steps(rows, start)
    first = _warmup(facts, steps, run)
    use = np.arange(len(steps)) >= first
    use &= ~steps.in_window
    if not use.any():
        use = np.ones(len(steps), bool)
    where = sites.read_sites(folder, facts)
    document: Document = {
        "schema": SHOW_SCHEMA,
        "run": _run(run, facts, folder),
        "steps": _steps(steps, use, first, facts),
        "account_s": totals.wall_time_by_category(run["run"], facts, steps, first, rows),
        "losses": [float(x) if np.isfinite(x) else None for x in steps.loss],
    }
    windows = read_windows(folder)
    used = device_use(windows["timeline"])
    document["gpu"] = totals.gpu_totals(run, facts, samples, steps, use, used)
    document |= _phases(steps, use, document["gpu"])
    document["host"] = totals.host_totals(samples)
    document["memory"] = totals.memory_totals(facts, samples)
    document["loaders"] = sites.loader_sites(facts, where)
    document["pipeline"] = [asdict(source) for source in data_pipeline.read_pipeline(folder)]
    document["syncs"] = sites.sync_sites(where)
    document["sites"] = sites.hot_sites(where)
    document["account_places"] = totals.category_places(document["sites"], facts)
    document["config"] = _config(facts, run)
    counters = facts["compile_counters"]
    document["compile"] = (counters[-1] or None) if counters else None
    document["windows"] = facts["window"]
    document["timeline"] = windows["timeline"]
    document["timeline_stacks"] = windows["stacks"]
    document["sinks"] = sites.largest_sinks(document)
    document["host_code"] = _host_code(folder, run)
    lines = memory_owners(folder)
    document["memory"]["lines"] = None if lines is None else asdict(lines)
    asked = run.get("options", {}).get("fixes", ())
    document["fixes"] = [outcome_json(one) for one in fix_outcomes(facts["fix"], asked)]
    document["problems"] = _problems(run, facts, steps)
    return document


def _first_start(facts: dict[str, list[dict[str, Any]]]) -> float:
    return float(facts["process"][0]["booted_ns"]) if facts["process"] else 0.0


def _warmup(facts: Any, steps: Steps, run: Any) -> int:
    asked = run.get("options", {}).get("warmup")
    return (
        min(int(asked), len(steps))
        if asked is not None
        else warmup_length(steps.done()[~steps.in_window])
    )


def _run(run: dict[str, Any], facts: Any, folder: Path) -> Document:
    known = {key: value for key, value in run["run"].items() if key != "processes"}
    process = facts["process"][-1] if facts["process"] else {}
    models = facts["config"][-1]["models"] if facts["config"] else []
    on = {device.split(":")[0] for model in models for device in model["devices"]}
    error = facts["end"][-1].get("error") if facts["end"] else None
    return known | {
        "folder": str(folder),
        "device": next((kind for kind in ("cuda", "cpu") if kind in on), None),
        "torch": process.get("torch") or known.get("torch"),
        "window": run.get("options", {}).get("window"),
        "complete": bool(facts["end"]),
        "under_way": known["exit_code"] is None and in_use(folder),
        "error": error,
        "out_of_memory": _out_of_memory(known, facts, error),
    }


def _out_of_memory(run: dict[str, Any], facts: Any, error: Any) -> Document | None:
    from stepscope.probe.memory_history import is_out_of_memory

    if error is not None and is_out_of_memory(error["type"], error["text"]):
        device = "cuda" if facts["oom"] else "cpu"
    elif run.get("signal") == 9 and run.get("killed_by_kernel"):
        device = "cpu"
    else:
        return None
    request = facts["oom"][-1] if facts["oom"] else {}
    return {**request, "device": device}


def _steps(steps: Steps, use: Any, first: int, facts: Any) -> Document:
    import numpy as np

    times = steps.done()[use] / 1e6
    names = {fact["id"]: fact["name"] for fact in facts["optimizer"]}
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
        "batch_bytes": max((fact["bytes"] for fact in facts["batch"]), default=None),
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
    import numpy as np

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


def _config(facts: Any, run: Any) -> Document:
    latest = facts["config"][-1] if facts["config"] else {}
    return {
        **latest,
        "optimizers": facts["optimizer"],
        "compile": facts["compile"],
        "roots": [fact["name"] for fact in facts["root"]],
        "environment": run.get("environment", {}),
        "machine": run.get("machine", {}),
    }


def _host_code(folder: Path, run: Any) -> Document | None:
    try:
        text = (folder / "python.txt").read_text(errors="replace")
    except OSError:
        return None
    return asdict(host_code(text, pid=run["run"].get("pid")))


def _problems(run: Any, facts: Any, steps: Steps) -> list[str]:
    """What went wrong or was not seen, a line each."""
    problems = [fact["text"] for fact in facts["problem"]]
    problems += run["run"].get("problems", [])
    children = sites.unobserved_children(run["run"].get("processes", {}), facts)
    if children:
        shown = ", ".join(sorted(set(children.values()))[:2])
        problems.append(
            f"{len(children)} process{'es' if len(children) > 1 else ''} that the program started "
            f"itself {'were' if len(children) > 1 else 'was'} not observed: {shown}"
        )
    if not len(steps) and not facts["problem"]:
        problems.append(
            "no steps seen: nothing here called an optimizer, a model with parameters or a"
            " DataLoader; a loop that hides them can call stepscope.step()"
            if facts["process"]
            else "no steps seen: the program did not import torch"
        )
    return problems
