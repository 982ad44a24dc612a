"""A run folder as one document: what `show` prints and `show --json` hands out."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from stepscope.analyze import machine, pipeline, places, sinks, whole
from stepscope.analyze.applied import applied_fixes
from stepscope.analyze.hostcode import host_code
from stepscope.analyze.memory import owners
from stepscope.analyze.phases import by_device, charged, device_means, host_means
from stepscope.analyze.steps import Steps, assemble
from stepscope.analyze.window import device_use, read_windows
from stepscope.record.errors import BrokenRun
from stepscope.record.rows import STEP_PHASES
from stepscope.stats.series import drift, spikes, warmup
from stepscope.store.facts import read_facts
from stepscope.store.folder import in_use, read_run
from stepscope.store.table import read_table

SCHEMA = "stepscope.show/1"
_DEVICE_DECIDES = 0.9  # busy that much, the device sets the pace
_DISTURBED = 3  # steps after a recording
Document = dict[str, Any]


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
    steps = assemble(rows, start)
    first = _warmup(facts, steps, run)
    use = np.arange(len(steps)) >= first
    use &= ~steps.in_window
    if not use.any():
        use = np.ones(len(steps), bool)
    where = places.read_sites(folder, facts)
    document: Document = {
        "schema": SCHEMA,
        "run": _run(run, facts, folder),
        "steps": _steps(steps, use, first, facts),
        "account_s": whole.account(run["run"], facts, steps, first, rows),
        "losses": [float(x) if np.isfinite(x) else None for x in steps.loss],
    }
    windows = read_windows(folder)
    used = device_use(windows["timeline"])
    document["gpu"] = machine.gpu(run, facts, samples, steps, use, used)
    document |= _phases(steps, use, document["gpu"])
    document["host"] = machine.host(samples)
    document["memory"] = machine.memory(facts, samples)
    document["loaders"] = places.loaders(facts, where)
    document["pipeline"] = [asdict(source) for source in pipeline.read_pipeline(folder)]
    document["syncs"] = places.syncs(where)
    document["sites"] = places.hottest(where)
    document["account_places"] = whole.places(document["sites"], facts)
    document["config"] = _config(facts, run)
    counters = facts["compile_counters"]
    document["compile"] = (counters[-1] or None) if counters else None
    document["windows"] = facts["window"]
    document["timeline"] = windows["timeline"]
    document["timeline_stacks"] = windows["stacks"]
    document["sinks"] = sinks.sinks(document)
    document["host_code"] = _host_code(folder, run)
    lines = owners(folder)
    document["memory"]["lines"] = None if lines is None else asdict(lines)
    document["fixes"] = applied_fixes(facts["fix"], run.get("options", {}).get("fixes", ()))
    document["problems"] = _problems(run, facts, steps)
    return document


def _first_start(facts: dict[str, list[dict[str, Any]]]) -> float:
    return float(facts["process"][0]["booted_ns"]) if facts["process"] else 0.0


def _warmup(facts: Any, steps: Steps, run: Any) -> int:
    asked = run.get("options", {}).get("warmup")
    return (
        min(int(asked), len(steps)) if asked is not None else warmup(steps.done()[~steps.in_window])
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
    from stepscope.probe.out_of_memory import is_out_of_memory

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
    jumps = outstanding(steps, use)
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


def outstanding(steps: Steps, use: Any) -> list[Document]:
    """Steps that took far longer than their neighbours, the longest first; one that follows a
    recording is that one's doing."""
    import numpy as np

    at = np.flatnonzero(use)
    return [
        {"step": step + 1, "ms": jump.value}
        for jump in spikes(steps.done()[use] / 1e6)
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
    host, device = host_means(steps, use), device_means(steps, use)
    busy = gpu["busy_fraction"] if gpu else None
    if device is not None and busy is not None and busy >= _DEVICE_DECIDES:
        phases, seen_by = by_device(device, steps.mean(use) / 1e6), "device"
    else:
        phases, seen_by = charged(host, device), "host"
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
    children = places.own_children(run["run"].get("processes", {}), facts)
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
