"""What a tune says in sentences, and the columns of its ladder."""

import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from stepscope.report.story.tune.not_tried import why_not_tried
from stepscope.report.text import format_bytes, format_duration, format_number, plural, safe

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class LadderColumn:
    """A heading, its width (0: the last one, as long as it needs), and what stands below it."""

    heading: str
    width: int
    cell: Callable[[Document], str | None]
    """None where it is not known."""


def _times(name: str) -> Callable[[Document], str | None]:
    return lambda row: _format_speedup(row[name]) if row.get(name) is not None else None


def _format_speedup(ratio: float) -> str:
    """`4.9×`; `1.04×` where one digit would say nothing."""
    return f"{ratio:.2f}×" if ratio < 9.995 else f"{ratio:.1f}×"


def _so_far(row: Document) -> str | None:
    return _format_speedup(row["cumulative"]["speedup"]) if row.get("cumulative") else None


def _number(name: str) -> Callable[[Document], str | None]:
    return lambda row: format_number(row[name]) if row.get(name) is not None else None


def _share(row: Document) -> str | None:
    return None if row.get("gpu_busy") is None else f"{row['gpu_busy']:.0%}"


def _memory(row: Document) -> str | None:
    return None if row.get("peak_memory_bytes") is None else format_bytes(row["peak_memory_bytes"])


def _energy(row: Document) -> str | None:
    joules = row.get("energy_j_per_sample")
    return None if joules is None else f"{joules:.3g}"


def _proof(row: Document) -> str | None:
    if row["fix"] is None:
        return "baseline"
    return str(row["proof"]["state"]) if row.get("proof") else "not proven"


SPEED_COLUMNS = (
    LadderColumn("step ms", 8, _number("step_ms")),
    LadderColumn("samples/s", 11, _number("samples_per_s")),
    LadderColumn("speedup", 9, _times("speedup")),
    LadderColumn("so far", 8, _so_far),
    LadderColumn("predicted", 11, _times("predicted_speedup")),
    LadderColumn("losses", 0, _proof),
)
RESOURCE_COLUMNS = (
    LadderColumn("GPU busy", 10, _share),
    LadderColumn("peak memory", 13, _memory),
    LadderColumn("J/sample", 10, _energy),
    LadderColumn("cost/1M", 10, _number("cost_per_million")),
)


def known_columns(columns: Sequence[LadderColumn], rows: Sequence[Document]) -> list[LadderColumn]:
    """Those that have anything to show."""
    return [column for column in columns if any(column.cell(row) is not None for row in rows)]


def row_cells(columns: Sequence[LadderColumn], row: Document) -> Iterator[tuple[LadderColumn, str]]:
    """Each column with its text; a dash where a rung could have one and it is not known."""
    for column in columns:
        yield column, column.cell(row) or ("" if row["fix"] is None else "–")


_NAME = 20
_LEFT_OUT = "left_out"
_NOT_MEASURED = "not measured"


def rejected_lines(found: list[Document]) -> list[str]:
    """One line for each fix that was tried and not kept."""
    tried = [one for one in found if one["state"] != _LEFT_OUT]
    return [f"{safe(one['fix']):<{_NAME}} {safe(one['why'])}" for one in tried]


def not_tried_lines(found: list[Document]) -> list[str]:
    """The others, by their reason."""
    reasons: dict[str, list[str]] = {}
    for one in found:
        if one["state"] == _LEFT_OUT:
            reasons.setdefault(why_not_tried(one), []).append(one["fix"])
    return [f"not tried, {safe(why)}: {safe(', '.join(names))}" for why, names in reasons.items()]


def claim(document: Document) -> tuple[str, str]:
    """The one sentence that counts, and its style."""
    final = document["final"]
    if final is None:
        return ("Nothing made it faster: the program stays as it is.", "bold")
    interval = f"({final['low']:.2f}–{final['high']:.2f}, 95%)"
    proof = (final.get("proof") or {}).get("words") or "losses were not compared"
    if final["verdict"] == "faster":
        return (
            f"{_format_speedup(final['speedup'])} faster {interval}; {safe(proof)}.",
            "bold green",
        )
    words = {
        "same": "The same speed on fresh trials",
        "slower": "Slower on fresh trials",
        "unclear": "Not confirmed on fresh trials",
    }[final["verdict"]]
    return (
        f"{words}: {_format_speedup(final['speedup'])} {interval}; {safe(proof)}.",
        "bold yellow",
    )


def coverage_sentences(document: Document) -> list[str]:
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
                f"{safe(rung['label'])} takes {format_duration(rung['compile_s'])} to compile: "
                f"it pays after {pays}."
            )
        if rung.get("adjust"):
            lines.append(f"{safe(rung['fix'])} changes training: {safe(rung['adjust'])}.")
    return lines


def stop_reason(document: Document) -> str | None:
    """Why the search ended before its end."""
    reasons = {
        "budget": "the budget was spent",
        "interrupted": "stopped before the end; this is the best so far",
    }
    reason = reasons.get(document.get("stopped") or "")
    if reason is None or not document["untried"]:
        return reason
    return f"{reason} before these were tried: {safe(', '.join(document['untried']))}"


def next_step_lines(document: Document) -> list[str]:
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
        return f"({edits} in {shown}, checked: {_format_speedup(patch['speedup'])})"
    words = {"same": "the same speed", "slower": "slower", "unclear": "not shown to be faster"}
    interval = f"{_format_speedup(patch['speedup'])}, {patch['low']:.2f}–{patch['high']:.2f}"
    return f"({edits} in {shown}, by itself {words[patch['verdict']]}: {interval})"
