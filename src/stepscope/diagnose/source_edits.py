"""A fix written for the line a finding points at, or as a setting of the trainer called there."""

import ast
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from textwrap import dedent
from typing import Any

from stepscope.fixes.applicability import ProgramPart
from stepscope.fixes.base import SourceEdit
from stepscope.fixes.edit.calls import TRAINER_LIBRARIES, settings_text
from stepscope.fixes.registry import fix_named
from stepscope.record.errors import UsageError
from stepscope.record.finding import Finding, Place

Source = Callable[[str, int], str | None]
_MOST_LINES = 12


def with_edit(finding: Finding, source: Source, optimizers: tuple[Place, ...] = ()) -> Finding:
    """The finding with its line as it would be; as it is where no line is known for its fix.

    `optimizers`: where those are made, for fixes that change that line.
    """
    if finding.fix is None:
        return finding
    try:
        one = fix_named(finding.fix.name)
        value = one.parse(finding.fix.value)
    except UsageError:
        return finding
    if value is None and one.suggested:
        value = one.parse(one.suggested[0])
    made = optimizers if one.works_on is ProgramPart.OPTIMIZER else ()
    for place in (*finding.where, *made):
        line = statement(source, place.file, place.line) if place.file and place.line else None
        edit = one.edit(value, line) if line is not None else None
        if line is not None and edit is not None and edit.line is not None:
            return replace(finding, edit=_edit_of_line(edit, place, line))
    edit = one.edit(value, "")
    if edit.line is None and edit.before:
        after = list(edit.before)
        elsewhere = {"file": None, "line": None, "before": None, "after": after}
        return replace(finding, edit=elsewhere | {"words": edit.words})
    return finding


def statement(source: Source, file: str, line: int) -> str | None:
    """The statement that begins on a line, on one line; None where it was not kept whole."""
    first = source(file, line)
    if first is None:
        return None
    indent = first[: len(first) - len(first.lstrip())]
    lines = [first]
    for number in range(line + 1, line + _MOST_LINES):
        if _parsed("\n".join(lines)) is not None:
            break
        following = source(file, number)
        if following is None or "#" in "".join(lines) + following:
            return first
        lines.append(following)
    joined = _joined(lines)
    return indent + joined if _same_meaning(joined, "\n".join(lines)) else first


def _joined(lines: list[str]) -> str:
    """Lines of one statement as one line, brackets closed up."""
    text = lines[0].strip()
    for line in lines[1:]:
        part = line.strip()
        if part.startswith((")", "]", "}")):
            text = text.removesuffix(",") + part
        else:
            text += part if text.endswith(("(", "[", "{")) else f" {part}"
    return text


def _same_meaning(one: str, other: str) -> bool:
    """Whether two texts mean the same: strings over several lines, say, cannot be joined."""
    first, second = _parsed(one), _parsed(other)
    return first is not None and second is not None and ast.dump(first) == ast.dump(second)


def _parsed(text: str) -> ast.Module | None:
    """Statements parsed; one that opens a block counts. None where they are not whole."""
    text = dedent(text)
    for candidate in (text, f"{text} pass"):
        try:
            return ast.parse(candidate)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
    return None


def _edit_of_line(edit: SourceEdit, place: Place, line: str) -> dict[str, Any]:
    """What to write instead of the line."""
    indent = line[: len(line) - len(line.lstrip())]
    changed = [edit.line] if edit.line is not None and edit.line.strip() else []
    return {
        "file": place.file,
        "line": place.line,
        "before": line,
        "after": [f"{indent}{text}" for text in edit.before] + changed,
        "words": edit.words,
    }


_LOADER = "the DataLoader"
_ARGUMENT = re.compile(r"\b(?=(?:num_workers|prefetch_factor|pin_memory|persistent_workers)=)")
_OF_THE_MODEL = ("amp", "compile")


def with_trainer_settings(
    finding: Finding, through: Mapping[tuple[str, int], str], device: str
) -> Finding:
    """The finding with the trainer's settings as its advice; as it is where there is no trainer, or
    no such setting. `through`: the libraries that lines of the program call."""
    places = ((place.file or "", place.line or 0) for place in finding.where)
    if not any(through.get(place) in TRAINER_LIBRARIES for place in places):
        return finding
    advice, fix = finding.advice, finding.fix
    if _LOADER in advice:
        advice = _ARGUMENT.sub("dataloader_", advice).replace(_LOADER, "TrainingArguments")
        return replace(finding, advice=advice, edit=None)
    if fix is None or fix.name not in _OF_THE_MODEL or device == "cpu":
        return finding  # the trainers take half precision on other devices only
    settings = fix_named(fix.name).trainer_setting(fix.value)
    advice = f"Pass {settings_text(settings)} to TrainingArguments."
    return replace(finding, advice=advice, edit=None) if settings else finding
