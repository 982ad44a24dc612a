"""Findings as cards, in the order of `show`: the largest gain first, quick wins among equals."""

from typing import Any

from stepscope.record.timeline import Timeline
from stepscope.report.finding_words import evidence, fix_name, fixing, gain, times
from stepscope.report.story.blocks import Block, Card, Column, Excerpt, Missing, Say, Section, Table
from stepscope.report.story.places import run_again, shown_file
from stepscope.report.story.seek import place_of
from stepscope.store.source import Lines

Document = dict[str, Any]
_BEFORE, _AFTER = 3, 4  # lines shown around the one that is meant


def findings_section(
    document: Document, timeline: Timeline | None, sources: Lines, missing: Missing | None
) -> Section:
    """Cards, then what is minor and what is fine. `missing`: why nothing could be found."""
    window = document if "source" in document else document["timeline"]
    blocks: list[Block] = [missing] if missing else []
    found = [_card(one, document, timeline, window, sources) for one in document["findings"]]
    blocks += found
    if not found and missing is None:
        text = "No bottleneck found: no change is known to save 2% of a step."
        blocks.append(Say(text, strong=True))
    blocks += _told("minor", "Minor: less than 2% of a step each", document["minor"])
    blocks += _told("healthy", "What is fine", document["healthy"])
    return Section("findings", "Why it is slow" if found else "Findings", tuple(blocks))


def _card(
    one: Document,
    document: Document,
    timeline: Timeline | None,
    window: Document | None,
    sources: Lines,
) -> Card:
    predicted, edit = one["predicted"], one["edit"]
    at_ns, search = place_of(one, timeline, window)
    numbers = [evidence(each) for each in one["evidence"]]
    if predicted is not None:
        numbers.append(("prediction", predicted["how"]))
    program = document.get("run", {}).get("program")
    return Card(
        id=one["id"],
        title=one["title"],
        kind=one["kind"],
        gain=_gain(one, document["steps"]["mean_ms"]),
        why=one["why"],
        advice=_advice(one),
        effort=one["effort"],
        confidence=one["confidence"],
        predicted=times(predicted) if predicted is not None else "",
        evidence=tuple(numbers),
        excerpt=_excerpt(one, sources, program),
        edit=tuple(edit["after"]) if edit is not None else (),
        before=(edit["before"] or "") if edit is not None else "",
        command=_command(one, document),
        at_ns=at_ns,
        search=search,
    )


def _gain(one: Document, step_ms: float) -> str:
    words = gain(one, step_ms)
    return words.replace(" of run", " of the run").replace(" of step", " of the step")


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
    command = fixing([fix_name(fix) for fix in (one["fix"], *one["also"])])
    if "run" not in document:
        return f"{command} PROGRAM"
    return run_again(document, command.removeprefix("stepscope run "))


def _excerpt(one: Document, sources: Lines, program: str | None) -> Excerpt | None:
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
        return Excerpt(shown_file(where["file"], program), first, shown, line)
    return None


def _told(name: str, title: str, findings: list[Document]) -> list[Block]:
    columns = (Column("what"), Column("why"), Column("what to do"))
    rows = tuple((one["title"], one["why"], one["advice"]) for one in findings)
    return [Table(name, columns, rows, title)] if rows else []
