"""Findings: their cards, where the timeline shows them, and the baseline questions answered."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.analyze.timeline.names import starts_with
from stepscope.fixes.registry import exclude_each_other
from stepscope.record.finding import ChangeKind
from stepscope.record.fix import FixState, NotApplied
from stepscope.record.fix_words import sentence
from stepscope.record.timeline import DeviceEvents, HostEvents, HostKind, Timeline
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
from stepscope.report.story.phrases import (
    NO_BOTTLENECK,
    display_path,
    fix_argument,
    fix_options,
    places_text,
    rerun_command,
    shown_program,
)
from stepscope.store.source import SourceLines

Document = dict[str, Any]


def gain_text(one: Document, step_ms: float, the: str = "") -> str:
    """What it would save per step; without a prediction, its share. `the`: "the " for use in a
    sentence."""
    if one["scope"] == "run":
        return f"{one['share']:.0%} of {the}run"
    if one["predicted"] is not None:
        return f"−{format_number(step_ms - one['predicted']['step_ms'])} ms"
    return f"{one['share']:.0%} of {the}step" if one["share"] else ""


def _evidence_text(value: float | str, unit: str) -> str:
    if isinstance(value, str):
        shown = value
    elif unit == "bytes":
        return format_bytes(value)
    else:
        shown = f"{value:,.4g}" if abs(value) < 10_000 else f"{value:,.0f}"
    return f"{shown}{unit}" if unit.startswith(("%", "×")) else f"{shown} {unit}".rstrip()


def suggested_fixes(document: Document) -> list[str]:
    """The fixes behind the headroom, as `--fix` takes them; without one, the fixes of findings that
    are compatible with each other and with the run's own."""
    by = (document.get("headroom") or {}).get("by") or ()
    found = [one for one in document.get("findings") or [] if one["fix"] is not None]
    told = [one for one in found if one["id"] in by]
    harmless = [one for one in found if one["kind"] != ChangeKind.SEMANTIC]
    chosen: dict[str, str] = {}
    for one in told or harmless:
        name = one["fix"]["name"]
        others = (*chosen, *_applied_fixes(document))
        if name not in chosen and not any(exclude_each_other(name, other) for other in others):
            chosen[name] = fix_argument(one["fix"])
    return [*chosen.values()]


def fixes_to_run(document: Document, fixes: Iterable[str]) -> list[str]:
    """These fixes and the run's own that are compatible with them, as `--fix` takes them."""
    new = {fix.partition("=")[0]: fix for fix in fixes}
    kept = {
        name: fix
        for name, fix in _applied_fixes(document).items()
        if not any(exclude_each_other(name, other) for other in new)
    }
    return [*(kept | new).values()]


def _applied_fixes(document: Document) -> dict[str, str]:
    """The run's own fixes that took effect, by name."""
    made = document.get("fixes") or ()
    return {one["name"]: fix_argument(one) for one in made if one["state"] == FixState.APPLIED}


def distinct_answers(baseline: list[Document]) -> list[Document]:
    """Answers without repetitions of why something is unknown."""
    reasons: set[str] = set()
    shown = []
    for one in baseline:
        if one["value"] is not None or one["status"] not in reasons:
            shown.append(one)
        if one["status"] != "known":
            reasons.add(one["status"])
    return shown


TimelinePlace = tuple[tuple[int, int] | None, str]
"""Start and end in the timeline's nanoseconds, None if absent; and what to search for."""


def _timeline_place(
    one: Document, timeline: Timeline | None, window: Document | None
) -> TimelinePlace:
    """The longest run of what the finding names; else the longest idle time with its cause; else
    the longest event whose name starts with its hint."""
    if timeline is None:
        return None, ""
    host, names = timeline.host, timeline.names
    for where in one["where"]:
        for events, name in ((host, where["operator"]), (timeline.device, where["kernel"])):
            if len(events) and name in names:
                which = events.name == names.index(name)
                if events is host:
                    which &= host.kind != HostKind.OVERHEAD
                if which.any():
                    return _longest(timeline, events, which)
    hint = one["timeline"]
    if hint is None:
        return None, ""
    gaps = [
        gap
        for device in (window or {}).get("devices", ())
        for gap in device["idle"].get(hint["idle_cause"], {}).get("largest", ())
    ]
    if gaps:
        longest = max(gaps, key=lambda gap: int(gap["duration_ns"]))
        return (longest["start_ns"], longest["start_ns"] + longest["duration_ns"]), ""
    for beginning in hint["host_events"]:
        which = starts_with(timeline, beginning)
        if which.any():
            return _longest(timeline, host, which)
    return None, ""


def _longest(
    timeline: Timeline, events: HostEvents | DeviceEvents, which: npt.NDArray[np.bool_]
) -> TimelinePlace:
    rows = np.flatnonzero(which)
    row = int(rows[np.argmax(events.duration[rows])])
    start, duration = int(events.start[row]), int(events.duration[row])
    return (start, start + duration), timeline.name_of(int(events.name[row]))


_BEFORE, _AFTER = 3, 4  # lines shown around the relevant one


def findings_section(
    document: Document, timeline: Timeline | None, sources: SourceLines, missing: Missing | None
) -> Section:
    """Cards, then minor findings and what is fine. `missing`: why nothing could be found."""
    window = document if "source" in document else document["timeline"]
    blocks: list[Block] = [missing] if missing else []
    found = [_card(one, document, timeline, window, sources) for one in document["findings"]]
    blocks += found
    if not found and missing is None:
        blocks.append(Paragraph(NO_BOTTLENECK, strong=True))
    titles = {
        "minor": "Minor: less than 2% of a step each, or too little to be sure of",
        "healthy": "No problem",
    }
    for name, title in titles.items():
        blocks += Table.known(
            name,
            title,
            document[name],
            (Column("what"), lambda one: one["title"]),
            (Column("why"), lambda one: one["why"]),
            (Column("fix"), lambda one: one["advice"]),
            empty_columns=True,
        )
    return Section("findings", "Why it's slow" if found else "Findings", tuple(blocks))


def _card(
    one: Document,
    document: Document,
    timeline: Timeline | None,
    window: Document | None,
    sources: SourceLines,
) -> Card:
    predicted, edit, advice = one["predicted"], one["edit"], str(one["advice"])
    advice = " ".join([*filter(None, [advice]), *map(_refusal, one.get("refused") or ())])
    at_ns, search = _timeline_place(one, timeline, window)
    step_ms = document["steps"]["mean_ms"]
    numbers = [
        (str(e["what"]), _evidence_text(e["value"], str(e["unit"]))) for e in one["evidence"]
    ]
    speedup = ""
    if predicted is not None:
        after = f"{format_number(step_ms)} → {format_number(predicted['step_ms'])} ms"
        why = f": {predicted['reason']}" if predicted["reason"] else ""
        numbers.append(("prediction", after + why))
        span = f"{predicted['low']:.2f}–{predicted['high']:.2f}"
        speedup = f"{predicted['speedup']:.2f}× ({span})"
    if edit is not None and (edit["before"] is None or not edit["after"]):
        # No user line shows where the new lines go.
        advice += f" In the source: {edit['words']}."
    run = document.get("run", {})
    program = shown_program(run) if run.get("program") else None
    return Card(
        id=one["id"],
        title=one["title"],
        kind=one["kind"],
        gain=gain_text(one, step_ms, "the "),
        why=one["why"],
        advice=advice,
        effort=one["effort"],
        confidence=one["confidence"],
        predicted=speedup,
        evidence=tuple(numbers),
        excerpt=_excerpt(one, sources, program),
        edit=tuple(edit["after"]) if edit is not None else (),
        before=(edit["before"] or "") if edit is not None else "",
        command=_command(one, document),
        at_ns=at_ns,
        search=search,
        where=places_text(one["where"], program),
    )


def _refusal(refused: Document) -> str:
    """Why a fix is not promised."""
    record = NotApplied.from_json(refused["record"], refused["text"])
    return f"{fix_argument(refused['fix'])} does not apply ({sentence(record)})."


def _command(one: Document, document: Document) -> str:
    if one["fix"] is None:
        return ""
    new = [fix_argument(fix) for fix in (one["fix"], *one["also"])]
    options = fix_options(fixes_to_run(document, new))
    if "run" in document:
        return rerun_command(document, options)
    return f"stepscope run {options} PROGRAM"


def _excerpt(one: Document, sources: SourceLines, program: str | None) -> Excerpt | None:
    """The first of its places whose source was kept, with the contiguous lines around it."""
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


def answers_sections(document: Document) -> list[Section]:
    """The key questions; none without steps."""
    answers = distinct_answers(document["baseline"])
    pairs = tuple((one["question"], one["answer"]) for one in answers)
    return [Section("answers", "In short", (Facts(pairs),), Weight.DETAIL)] if pairs else []
