"""A run folder as one document: what `show` prints and `show --json` hands out, with its windows'
analysis and what became of its fixes.
"""

from collections.abc import Iterable, Mapping
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
from stepscope.record.row_log import STEP_PHASES
from stepscope.stats.series import drift, find_spikes, warmup_length
from stepscope.store.folder import in_use


def applied_fixes(
    facts: Iterable[Mapping[str, Any]], asked: Iterable[str] = ()
) -> list[dict[str, Any]]:
    """One entry per fix, in the order they were put in place; `asked` is what the run was given.

    `state` is "broke", "applied" or "not applicable"; `where` says on what it took hold, `reasons`
    why not elsewhere; `kind` is the least exact one that was said.
    """
    order = ["exact", "numeric", "semantic"]
    found: dict[str, dict[str, Any]] = {}
    for fact in facts:
        name = fact["name"]
        if fact["state"] == "asked":
            found[name] = {
                "name": name,
                "value": fact["value"],
                "state": "not applicable",
                "kind": None,
                "where": [],
                "reasons": [],
                "missing": fact["text"],
            }
            continue
        entry = found[name]
        if fact["state"] == "applied":
            entry["where"].append(fact["text"])
            entry["kind"] = max(entry["kind"] or "exact", fact["kind"], key=order.index)
        else:
            entry["reasons"].append(fact["text"])
        if fact["state"] == "broke" or (fact["state"] == "applied" and entry["state"] != "broke"):
            entry["state"] = fact["state"]
    for entry in found.values():
        missing = entry.pop("missing")
        if entry["state"] == "not applicable" and not entry["reasons"]:
            entry["reasons"] = [missing]
    return [
        *found.values(),
        *(_never_applied(text) for text in asked if text.split("=")[0] not in found),
    ]


def _never_applied(text: str) -> dict[str, Any]:
    """A fix that was asked for in a program that never imported torch."""
    name, _, value = text.partition("=")
    return {
        "name": name,
        "value": value or None,
        "state": "not applicable",
        "kind": None,
        "where": [],
        "reasons": ["the program did not import torch"],
    }


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


SHOW_SCHEMA = "stepscope.show/1"
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
        "account_s": totals.wall_time_by_category(run["run"], facts, steps, first, rows),
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
    counters = facts["compile_counters"]
    document["compile"] = (counters[-1] or None) if counters else None
    document["windows"] = facts["window"]
    document["timeline"] = windows["timeline"]
    document["timeline_stacks"] = windows["stacks"]
    document["sinks"] = sites.largest_sinks(document)
    document["host_code"] = _host_code(folder, run)
    lines = memory_owners(folder)
    document["memory"]["lines"] = None if lines is None else asdict(lines)
    document["fixes"] = applied_fixes(facts["fix"], run.get("options", {}).get("fixes", ()))
    document["problems"] = _problems(run, facts, steps)
    return document


def _warmup(records: RunRecords) -> int:
    steps, asked = records.steps, records.warmup
    return (
        min(asked, len(steps))
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
