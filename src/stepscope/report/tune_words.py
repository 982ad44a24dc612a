"""What a tune says in sentences."""

import os
import shlex
from typing import Any

from stepscope.report.text import plural, safe, seconds
from stepscope.report.tune_cells import times

Document = dict[str, Any]
_NAME = 20
_LEFT_OUT = "left_out"
_NOT_MEASURED = "not measured"


def rejected(found: list[Document]) -> list[str]:
    """One line for each fix that was tried and not kept."""
    tried = [one for one in found if one["state"] != _LEFT_OUT]
    return [f"{safe(one['fix']):<{_NAME}} {safe(one['why'])}" for one in tried]


def not_tried(found: list[Document]) -> list[str]:
    """The others, by their reason."""
    reasons: dict[str, list[str]] = {}
    for one in found:
        if one["state"] == _LEFT_OUT:
            reasons.setdefault(one["why"], []).append(one["fix"])
    return [f"not tried, {safe(why)}: {safe(', '.join(names))}" for why, names in reasons.items()]


def claim(document: Document) -> tuple[str, str]:
    """The one sentence that counts, and its style."""
    final = document["final"]
    if final is None:
        return ("Nothing made it faster: the program stays as it is.", "bold")
    interval = f"({final['low']:.2f}–{final['high']:.2f}, 95%)"
    proof = (final.get("proof") or {}).get("words") or "losses were not compared"
    if final["verdict"] == "faster":
        return (f"{times(final['speedup'])} faster {interval}; {safe(proof)}.", "bold green")
    words = {
        "same": "The same speed on fresh trials",
        "slower": "Slower on fresh trials",
        "unclear": "Not confirmed on fresh trials",
    }[final["verdict"]]
    return (f"{words}: {times(final['speedup'])} {interval}; {safe(proof)}.", "bold yellow")


def covered(document: Document) -> list[str]:
    """What the proof went through, when compiling pays, and what semantic fixes ask for."""
    lines: list[str] = []
    proof = (document["final"] or {}).get("proof") or {}
    if proof.get("covered"):
        lines.append(f"The proof covers {', '.join(proof['covered'])}.")
    if proof.get("not_covered"):
        lines.append(f"It did not come to: {', '.join(proof['not_covered'])}.")
    for rung in document["ladder"]:
        if rung.get("pays_after_steps"):
            pays = plural(rung["pays_after_steps"], "step")
            lines.append(
                f"{safe(rung['label'])} takes {seconds(rung['compile_s'])} to compile: "
                f"it pays after {pays}."
            )
        if rung.get("adjust"):
            lines.append(f"{safe(rung['fix'])} changes training: {safe(rung['adjust'])}.")
    return lines


def stopped(document: Document) -> str | None:
    """Why the search ended before its end."""
    reasons = {
        "budget": "the budget was spent",
        "interrupted": "stopped before the end; this is the best so far",
    }
    reason = reasons.get(document.get("stopped") or "")
    if reason is None or not document["untried"]:
        return reason
    return f"{reason} before these were tried: {safe(', '.join(document['untried']))}"


def keep(document: Document) -> list[str]:
    """How to run it so today, and how to keep it."""
    lines = []
    if document["command"]:
        faster = (document["final"] or {}).get("verdict") == "faster"
        label = "Run it so:  " if faster else "To try it:  "
        lines.append(f"{label} {safe(document['command'])}")
    patch = document["patch"]
    if patch is not None and patch.get("path"):
        path = shlex.quote(safe(patch["path"]))
        worth = _worth_keeping(patch, document["final"] or {})
        label = "Keep it so:  git apply" if worth else "As a patch: "
        lines.append(f"{label} {path}    {_patch(patch, worth)}")
    for one in (patch or {}).get("by_hand", []):
        lines.append(f"By hand:     {safe(one['fix'])}: {safe(one['words'])}")
    folder = document["run"]["folder"]
    near = os.path.relpath(folder)
    lines.append(f"Every trial: {safe(folder if near.startswith('..') else near)}")
    return lines


def _worth_keeping(patch: Document, final: Document) -> bool:
    """Whether a patch was measured to be faster, or nobody had the time. Two processes alone often
    leave it unclear: then it is one that has half of the gain that was confirmed."""
    if patch.get("speedup") is None:
        return (patch.get("why") or "").startswith(_NOT_MEASURED)
    confirmed = final["speedup"] - 1 if final.get("verdict") == "faster" else float("inf")
    unclear = patch["verdict"] == "unclear"
    return bool(patch["verdict"] == "faster" or (unclear and patch["speedup"] - 1 > confirmed / 2))


def _patch(patch: Document, worth: bool) -> str:
    edits = plural(len(patch["edits"]), "edit")
    files = sorted({edit["file"] for edit in patch["edits"]})
    shown = ", ".join(map(safe, files[:2])) + (" …" if len(files) > 2 else "")
    if patch.get("speedup") is None:
        return f"({edits} in {shown}, {safe(patch.get('why') or _NOT_MEASURED)})"
    if worth:
        return f"({edits} in {shown}, checked: {times(patch['speedup'])})"
    words = {"same": "the same speed", "slower": "slower", "unclear": "not shown to be faster"}
    interval = f"{times(patch['speedup'])}, {patch['low']:.2f}–{patch['high']:.2f}"
    return f"({edits} in {shown}, by itself {words[patch['verdict']]}: {interval})"
