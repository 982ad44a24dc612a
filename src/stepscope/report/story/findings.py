"""Findings: what is said of each, their cards, where the timeline shows them, and the baseline
questions answered.
"""

from typing import Any

import numpy as np

from stepscope.record.timeline import HostKind, Timeline
from stepscope.record.units import format_bytes, format_number
from stepscope.report.story.blocks import (
    Block,
    Card,
    Column,
    Excerpt,
    Facts,
    Missing,
    Paragraph,
    Section,
    Table,
    Weight,
)
from stepscope.report.story.phrases import display_path, places_text, rerun_command
from stepscope.store.source import SourceLines

Document = dict[str, Any]


def gain_text(one: Document, step_ms: float, the: str = "") -> str:
    """What it would save of a step; without a prediction, the share it concerns. `the`: "the " in
    a sentence."""
    if one["scope"] == "run":
        return f"{one['share']:.0%} of {the}run"
    predicted = one["predicted"]
    if predicted is not None:
        return f"−{format_number(step_ms - predicted['step_ms'])} ms"
    return f"{one['share']:.0%} of {the}step" if one["share"] else ""


def speedup_range(predicted: Document) -> str:
    """`1.77× (1.57–2.00)`."""
    span = f"{predicted['low']:.2f}–{predicted['high']:.2f}"
    return f"{predicted['speedup']:.2f}× ({span})"


def evidence_text(one: Document) -> tuple[str, str]:
    """What was measured, and its value with the unit."""
    what, value, unit = str(one["what"]), one["value"], str(one["unit"])
    if not isinstance(value, str) and unit == "bytes":
        return what, format_bytes(value)
    if isinstance(value, str):
        shown = value
    else:
        shown = f"{value:,.4g}" if abs(value) < 10_000 else f"{value:,.0f}"
    space = "" if not unit or unit.startswith(("%", "×")) else " "
    return what, f"{shown}{space}{unit}"


def fix_argument(fix: Document) -> str:
    """As `--fix` takes it."""
    return f"{fix['name']}" + ("" if fix["value"] is None else f"={fix['value']}")


def suggested_fixes(document: Document) -> list[str]:
    """What the headroom rests on, as `--fix` takes it; all fixes where there is no headroom."""
    by = (document.get("headroom") or {}).get("by") or ()
    found = document.get("findings") or []
    chosen = [one for one in found if one["id"] in by] or found
    return [fix_argument(one["fix"]) for one in chosen if one["fix"] is not None]


def fix_command(names: list[str]) -> str:
    """The command that applies fixes, up to the program."""
    return " ".join(["stepscope run", *(f"--fix {name}" for name in names)])


def distinct_answers(baseline: list[Document]) -> list[Document]:
    """Answers without those that repeat why nothing is known."""
    reasons: set[str] = set()
    shown = []
    for one in baseline:
        if one["value"] is not None or one["status"] not in reasons:
            shown.append(one)
        if one["status"] != "known":
            reasons.add(one["status"])
    return shown


def prediction_text(predicted: Document, step_ms: float) -> str:
    """`63.1 → 17.0 ms: 4 workers hide 46.1 ms of data wait behind compute`."""
    after = f"{format_number(step_ms)} → {format_number(predicted['step_ms'])} ms"
    return f"{after}: {predicted['reason']}" if predicted["reason"] else after


TimelinePlace = tuple[tuple[int, int] | None, str]
"""From and to in the timeline's nanoseconds, None where it is not there; what to search for."""

_NOT_THERE: TimelinePlace = (None, "")


def _timeline_place(
    one: Document, timeline: Timeline | None, window: Document | None
) -> TimelinePlace:
    """The longest run of what the finding names, or else a gap or an event of its kind."""
    if timeline is None:
        return _NOT_THERE
    for where in one["where"]:
        found = _operator(timeline, where["operator"]) or _kernel(timeline, where["kernel"])
        if found is not None:
            return found
    hint = one["timeline"]
    return _hinted(hint, timeline, window) if hint is not None else _NOT_THERE


def _hinted(hint: Document, timeline: Timeline, window: Document | None) -> TimelinePlace:
    """The longest gap of the idle cause; else the longest event whose name begins so."""
    gap = _gap(window, hint["idle_cause"])
    if gap is not None:
        return gap, ""
    host = timeline.host
    for beginning in hint["host_events"] if len(host) else ():
        which = timeline.named(beginning)[host.name]
        if which.any():
            return _longest(timeline, host, which)
    return _NOT_THERE


def _gap(window: Document | None, cause: str | None) -> tuple[int, int] | None:
    """The longest stretch that a device was idle for this reason."""
    gaps = [
        gap
        for device in (window or {}).get("devices", ())
        for gap in device["idle"].get(cause, {}).get("largest", ())
    ]
    if not gaps:
        return None
    longest = max(gaps, key=lambda gap: int(gap["duration_ns"]))
    return longest["start_ns"], longest["start_ns"] + longest["duration_ns"]


def _operator(timeline: Timeline, name: str | None) -> TimelinePlace | None:
    host = timeline.host
    if name is None or not len(host) or name not in timeline.names:
        return None
    which = (host.name == timeline.names.index(name)) & (host.kind != HostKind.OVERHEAD)
    return _longest(timeline, host, which) if which.any() else None


def _kernel(timeline: Timeline, name: str | None) -> TimelinePlace | None:
    device = timeline.device
    if name is None or not len(device) or name not in timeline.names:
        return None
    which = device.name == timeline.names.index(name)
    return _longest(timeline, device, which) if which.any() else None


def _longest(timeline: Timeline, events: Any, which: Any) -> TimelinePlace:
    rows = np.flatnonzero(which)
    row = int(rows[np.argmax(events.duration[rows])])
    start, duration = int(events.start[row]), int(events.duration[row])
    return (start, start + duration), timeline.name_of(int(events.name[row]))


_BEFORE, _AFTER = 3, 4  # lines shown around the one that is meant


def findings_section(
    document: Document, timeline: Timeline | None, sources: SourceLines, missing: Missing | None
) -> Section:
    """Cards, then what is minor and what is fine. `missing`: why nothing could be found."""
    window = document if "source" in document else document["timeline"]
    blocks: list[Block] = [missing] if missing else []
    found = [_card(one, document, timeline, window, sources) for one in document["findings"]]
    blocks += found
    if not found and missing is None:
        text = "No bottleneck found: no known fix saves 2% of a step."
        blocks.append(Paragraph(text, strong=True))
    blocks += _finding_table("minor", "Minor: less than 2% of a step each", document["minor"])
    blocks += _finding_table("healthy", "No problem", document["healthy"])
    return Section("findings", "Why it's slow" if found else "Findings", tuple(blocks))


def _card(
    one: Document,
    document: Document,
    timeline: Timeline | None,
    window: Document | None,
    sources: SourceLines,
) -> Card:
    predicted, edit = one["predicted"], one["edit"]
    at_ns, search = _timeline_place(one, timeline, window)
    numbers = [evidence_text(each) for each in one["evidence"]]
    if predicted is not None:
        told = prediction_text(predicted, document["steps"]["mean_ms"])
        numbers.append(("prediction", told))
    program = document.get("run", {}).get("program")
    return Card(
        id=one["id"],
        title=one["title"],
        kind=one["kind"],
        gain=gain_text(one, document["steps"]["mean_ms"], "the "),
        why=one["why"],
        advice=_advice(one),
        effort=one["effort"],
        confidence=one["confidence"],
        predicted=speedup_range(predicted) if predicted is not None else "",
        evidence=tuple(numbers),
        excerpt=_excerpt(one, sources, program),
        edit=tuple(edit["after"]) if edit is not None else (),
        before=(edit["before"] or "") if edit is not None else "",
        command=_command(one, document),
        at_ns=at_ns,
        search=search,
        where=places_text(one["where"], program),
    )


def _advice(one: Document) -> str:
    """With where the lines go, if no line of the user's shows it."""
    edit = one["edit"]
    if edit is None or (edit["before"] is not None and edit["after"]):
        return str(one["advice"])
    words = str(edit["words"])
    return f"{one['advice']} In the source: {words}."


def _command(one: Document, document: Document) -> str:
    if one["fix"] is None:
        return ""
    command = fix_command([fix_argument(fix) for fix in (one["fix"], *one["also"])])
    if "run" not in document:
        return f"{command} PROGRAM"
    return rerun_command(document, command.removeprefix("stepscope run "))


def _excerpt(one: Document, sources: SourceLines, program: str | None) -> Excerpt | None:
    """The first of its places that was kept, with the unbroken lines around it."""
    for where in one["where"]:
        lines, line = sources.get(where["file"] or "", {}), where["line"]
        if line not in lines:
            continue
        first, last = line, line
        while first - 1 in lines and line - first < _BEFORE:
            first -= 1
        while last + 1 in lines and last - line < _AFTER:
            last += 1
        shown = tuple(lines[number] for number in range(first, last + 1))
        return Excerpt(display_path(where["file"], program), first, shown, line)
    return None


def _finding_table(name: str, title: str, findings: list[Document]) -> list[Block]:
    columns = (Column("what"), Column("why"), Column("fix"))
    rows = tuple((one["title"], one["why"], one["advice"]) for one in findings)
    return [Table(name, columns, rows, title)] if rows else []


def answers_sections(document: dict[str, Any]) -> list[Section]:
    """None where there were no steps to ask about."""
    pairs = tuple(
        (one["question"], one["answer"]) for one in distinct_answers(document["baseline"])
    )
    return [Section("answers", "In short", (Facts(pairs),), Weight.DETAIL)] if pairs else []
