"""The whole run accounted for: every second from launch to end belongs to one category."""

from typing import Any

import numpy as np

from stepscope.analyze.steps import Rows, Steps

ORDER = (
    "startup", "imports", "setup", "compile", "warmup", "training", "evaluation",
    "checkpoint", "epoch_start", "window", "shutdown",
)  # fmt: skip


_SITES = {
    "compile": "compile",
    "training": "optimizer",
    "inference": "evaluation",
    "evaluation": "evaluation",
    "checkpoint": "save",
    "epoch_start": "epoch_start",
}


def account(
    run: dict[str, Any], facts: Any, steps: Steps, warmup_steps: int, rows: Rows
) -> dict[str, float]:
    """Seconds by category in the order of a run; they add up to its wall time.

    Of a run that is still under way, up to the last row written.
    """
    process = facts["process"][0] if facts["process"] else None
    last = float(rows["end_ns"].max()) if rows.size else 0.0
    begin, end = float(run.get("started_ns") or 0), float(run.get("ended_ns") or 0)
    begin = begin or (float(process["booted_ns"]) if process else 0.0)
    end = end or last
    if not begin or end <= begin:
        return {}
    found = dict.fromkeys(ORDER, 0.0) | steps.account
    if steps.what not in ("training", "nothing"):
        found[steps.what] = found.pop("training")
    main = steps.what if steps.what != "nothing" else "training"
    before = np.arange(len(steps)) < warmup_steps
    found["warmup"] = float(steps.duration[before & ~steps.in_window].sum())
    found["window"] += float(steps.duration[steps.in_window].sum())
    found[main] = float(steps.duration[~before & ~steps.in_window].sum()) + steps.behind
    if not rows.size:
        found["setup"] = end - begin
    _split_setup(found, facts, process, begin)
    if rows.size:
        found["shutdown"] += max(0.0, end - last)
    return {name: value / 1e9 for name, value in found.items()}


def places(sites: list[dict[str, Any]], facts: Any) -> dict[str, dict[str, Any]]:
    """The source line behind each category, where there is one; for imports, the slowest."""
    found = {}
    for category, what in _SITES.items():
        site = next((s for s in sites if s["what"] == what), None)
        if site is not None:
            found[category] = {"file": site["file"], "line": site["line"]}
    if facts["import"]:
        slowest = max(facts["import"], key=lambda fact: fact["elapsed_ns"])
        found["imports"] = {"module": slowest["name"], "seconds": slowest["elapsed_ns"] / 1e9}
    return found


def _split_setup(
    found: dict[str, float], facts: Any, process: dict[str, Any] | None, begin: float
) -> None:
    """The time before the first row: interpreter, imports, the program's own preparation."""
    if process is None:
        return
    booted = float(process["booted_ns"])
    imports = sum(
        float(fact["elapsed_ns"])
        for fact in facts["import"]
        if fact["begun_ns"] < begin + found["setup"]
    )
    found["startup"] = min(booted - begin, found["setup"])
    found["setup"] -= found["startup"]
    found["imports"] = min(imports, found["setup"])
    found["setup"] -= found["imports"]
