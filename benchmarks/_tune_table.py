"""The tables of tune_ladder.py."""

from typing import Any


def table(document: dict[str, Any]) -> str:
    """As Markdown: the cases in one table, then each case's ladder."""
    lines = [
        "| case | as it is, ms | tuned, ms | speedup (95%) | proof | goal | trials | device time |",
        "|---|--:|--:|--:|---|---|--:|--:|",
    ]
    lines += [_summary(name, case) for name, case in document["cases"].items()]
    for name, case in document["cases"].items():
        if "tune" in case:
            lines += ["", f"`{name}`: `{case['program']}`", "", *_ladder(case["tune"])]
    return "\n".join(lines) + "\n"


def _summary(name: str, case: dict[str, Any]) -> str:
    if "failed" in case:
        return f"| {name} | | | {case['failed']} | | {case['goal']['words']} | | |"
    tune = case["tune"]
    final = tune["final"]
    base = tune["baseline"]["step_ms"]
    if final is None or final["speedup"] is None:
        worth, ms, proof = "nothing kept", "", ""
    else:
        worth = f"{final['speedup']:.2f}× ({final['low']:.2f}–{final['high']:.2f})"
        worth += "" if final["confirmed"] else ", not confirmed"
        base = final["measured"]["baseline"].get("step_ms") or base
        ladder_ms = final["measured"]["ladder"].get("step_ms")
        ms = f"{ladder_ms:.2f}" if ladder_ms else ""
        proof = (final["proof"] or {}).get("words", "not proven")
    cells = [
        name, f"{base:.2f}", ms, worth, proof, f"{case['goal']['words']} ({_reached(case)})",
        str(tune["trials"]), f"{case['wall_s']:.0f} s",
    ]  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def _reached(case: dict[str, Any]) -> str:
    goal, final = case["goal"], case["tune"]["final"]
    if goal["ms"] is None and goal["speedup"] is None:
        return "–"
    if final is None or final["speedup"] is None:
        return "missed"
    if goal["ms"] is not None:
        return "met" if final["measured"]["ladder"]["step_ms"] <= goal["ms"] else "missed"
    return "met" if final["speedup"] >= goal["speedup"] else "missed"


def _step(rung: dict[str, Any]) -> str:
    """What was found in place beside others may have no trials of its own."""
    return "–" if rung["step_ms"] is None else f"{rung['step_ms']:.2f}"


def _ladder(tune: dict[str, Any]) -> list[str]:
    lines = [
        "| rung | step ms | speedup | so far | predicted | losses |",
        "|---|--:|--:|--:|--:|---|",
    ]
    lines.append(f"| as it is | {tune['baseline']['step_ms']:.2f} | | | | |")
    for rung in tune["ladder"]:
        predicted = rung["predicted_speedup"]
        lines.append(
            f"| + {rung['label']} | {_step(rung)} | {rung['speedup']:.2f}× | "
            f"{rung['cumulative']['speedup']:.2f}× | "
            f"{'–' if predicted is None else f'{predicted:.2f}×'} | "
            f"{(rung['proof'] or {}).get('state', '–')} |"
        )
    for one in tune["rejected"]:
        if one["state"] != "left_out":
            lines.append(f"| × {one['fix']} | | | | | {one['why'].replace('|', '/')} |")
    return lines
