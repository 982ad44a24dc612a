"""Findings on a terminal: what is slow, what each is worth, and the line to change."""

import shlex
from itertools import pairwise
from textwrap import wrap
from typing import Any

from rich.text import Text

from stepscope.record.privacy import MASK
from stepscope.report.story.findings import (
    distinct_answers,
    evidence_text,
    fix_argument,
    fix_command,
    gain_text,
    prediction_text,
    speedup_range,
    suggested_fixes,
)
from stepscope.report.text import format_number, safe, short_location

Document = dict[str, Any]
_TOP = 5
_RIGHT = 21  # the gain and the kind
_PROVEN = "    try these, measure and prove them"
_LEAST_LINES = 2  # for a sentence; more where few findings leave room
_STYLES = {"exact": "green", "numeric": "yellow", "semantic": "magenta"}


def finding_lines(document: Document, width: int, everything: bool, more: str) -> list[Text]:
    """Why it is slow: the five largest, or all of them. `more` is the command for the rest."""
    found: list[Document] = document.get("findings") or []
    if not found:
        return []
    shown = found if everything else found[:_TOP]
    lines = [Text(), _heading(document), Text()]
    room = min(max(len(one["title"]) for one in shown) + 2, width - 4 - _RIGHT)
    most = None if everything else max(_LEAST_LINES, _TOP - len(shown) + 1)
    for number, one in enumerate(shown, start=1):
        lines += [Text()] if everything and number > 1 else []
        lines += _finding(number, one, document, width, room, most)
    left = len(found) - len(shown)
    if not everything:
        rest = f"{left} more, and what is fine" if left else "all that is known of them"
        lines.append(Text(f"    … {rest}: {more}", "dim"))
    return lines


def rest_lines(document: Document, width: int) -> list[Text]:
    """What `--all` adds: minor findings, what is fine, the answers of the baseline."""
    lines: list[Text] = []
    if document.get("minor"):
        lines += [Text(), Text("Minor: less than 2% of a step each", "bold")]
        lines += _told(document["minor"], width)
    if document.get("healthy"):
        lines += [Text(), Text("What is fine", "bold")]
        lines += _told(document["healthy"], width)
    if document.get("baseline"):
        lines += [Text(), Text("In short", "bold")]
        lines += _answers(document["baseline"], width)
    return lines


def _answers(baseline: list[Document], width: int) -> list[Text]:
    lines: list[Text] = []
    for one in distinct_answers(baseline):
        lines.append(Text(f"    {safe(one['question'])}", "dim"))
        lines += _wrapped(safe(one["answer"]), width, "      ")
    return lines


def try_lines(document: Document, width: int) -> list[Text]:
    """The commands that prove what goes together, and that apply it: over two lines where one is
    too short."""
    fixes = [safe(name) for name in suggested_fixes(document)]
    if not fixes:
        return []
    run = document["run"]
    program = " ".join([safe(run["program"]), *(shlex.quote(safe(word)) for word in run["argv"])])
    room = width - 11
    if run.get("here"):
        program = "PROGRAM"
    elif MASK in program or len(program) > room:
        program = "…"
    while len(fixes) > 1 and len(fix_command(fixes)) > room - 2:
        fixes = fixes[:-1]
    command = fix_command(fixes)
    if len(f"{command} {program}") <= width - 7:
        applied = [Text(f"{command} {program}")]
    else:
        applied = [Text(f"{command} \\"), Text(f"    {program}")]
    if run.get("here"):
        return applied
    tune = f"stepscope tune {program}"
    proven = tune + _PROVEN if len(tune + _PROVEN) <= width - 7 else tune
    return [Text(proven), *applied]


def _heading(document: Document) -> Text:
    could = document.get("headroom")
    if could is None:
        return Text("Why it is slow", "bold")
    words = f" — this step could take {format_number(could['step_ms'])} ms"
    times = f"{could['speedup']:.{1 if could['speedup'] >= 1.095 else 2}f}"
    return Text(f"Why it is slow{words} ({times}×)", "bold")


def _finding(
    number: int, one: Document, document: Document, width: int, room: int, most: int | None
) -> list[Text]:
    """A finding, each sentence on so many lines; None: in full, with its details."""
    title = safe(one["title"])
    title = title if len(title) <= room else f"{title[: room - 1]}…"
    kind = "" if one["kind"] == "none" else safe(one["kind"])
    lines = [
        Text.assemble(
            f"{number:>2}  ",
            (f"{title:<{room}}", "bold"),
            f"{gain_text(one, document['steps']['mean_ms']):>11}  ",
            (kind, _STYLES.get(kind, "")),
        )
    ]
    told = _where(one) + safe(one["why"])
    lines += _wrapped(told, width, "    ", most=most)
    lines += _remedy(one, width, most)
    return lines + _details(one, document, width) if most is None else lines


def _where(one: Document) -> str:
    """The places of the user's that the sentence does not name itself."""
    places = [
        short_location(at["file"], at["line"]) for at in one["where"] if at["file"] and at["line"]
    ]
    new = [at for at in dict.fromkeys(places) if at.rpartition("/")[2] not in one["why"]][:3]
    shown = new[:1]
    for before, at in pairwise(new):
        file, _, line = at.rpartition(":")
        shown.append(f":{line}" if before.rpartition(":")[0] == file else at)
    return f"{', '.join(shown)}: " if shown else ""


def _remedy(one: Document, width: int, most: int | None) -> list[Text]:
    """The user's line as it would be, where it is known and short; else the change in words."""
    edit, words = one["edit"], one["advice"]
    if edit is not None and most is not None:
        words = edit["words"]
        changed = "; ".join(line.strip() for line in edit["after"])
        if edit["before"] is not None and 0 < len(changed) <= width - 6:
            words = changed
    return _wrapped(f"→ {safe(words)}", width, "    ", "cyan", most)


def _details(one: Document, document: Document, width: int) -> list[Text]:
    lines: list[Text] = []
    predicted, edit = one["predicted"], one["edit"]
    if predicted is not None:
        told = prediction_text(predicted, document["steps"]["mean_ms"])
        text = f"predicted {speedup_range(predicted)}: {safe(told)}"
        lines += _wrapped(text, width, "    ", "dim")
    if edit is not None and edit["before"] is not None:
        lines += _wrapped(f"- {safe(edit['before'].strip())}", width, "    ", "red")
    for line in edit["after"] if edit is not None else ():
        lines += _wrapped(f"+ {safe(line.strip())}", width, "    ", "green")
    if one["fix"] is not None:
        command = fix_command([fix_argument(fix) for fix in (one["fix"], *one["also"])])
        lines.append(Text(f"    {safe(command)} …", "dim"))
    numbers = [safe(" ".join(evidence_text(each))) for each in one["evidence"]]
    lines += _wrapped(" · ".join(numbers), width, "    ", "dim") if numbers else []
    sure = f"{one['effort']}, {one['confidence']} confidence"
    return [*lines, Text(f"    {safe(sure)}", "dim")]


def _told(findings: list[Document], width: int) -> list[Text]:
    lines: list[Text] = []
    for one in findings:
        lines += _wrapped(f"{safe(one['title'])}: {safe(one['why'])}", width, "    ")
    return lines


def _wrapped(
    text: str, width: int, indent: str, style: str = "", most: int | None = None
) -> list[Text]:
    """Text folded below itself; at most so many lines, the last then ending in an ellipsis."""
    lines = wrap(text, width - len(indent), max_lines=most, placeholder=" …")
    return [Text(f"{indent}{line}", style) for line in lines]
