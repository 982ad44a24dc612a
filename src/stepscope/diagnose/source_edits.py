"""Writes a fix for the line a finding points at, or as a setting of the trainer called there."""

import ast
from collections.abc import Callable, Mapping
from textwrap import dedent

from msgspec.structs import replace

from stepscope.fixes.applicability import ProgramPart
from stepscope.fixes.edit.calls import TRAINER_LIBRARIES
from stepscope.fixes.registry import fix_named
from stepscope.record.errors import UsageError
from stepscope.record.finding import Finding, Place, Setting, SettingOwner, SourceEdit

Source = Callable[[str, int], str | None]
_MOST_LINES = 12


def with_edit(
    finding: Finding, source: Source, device: str, optimizers: tuple[Place, ...] = ()
) -> Finding:
    """The finding with its fixed line; unchanged if no line is known for its fix.

    `device`: the kind the program runs on. `optimizers`: where optimizers are made, for fixes that
    edit that line.
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
        edit = one.edit_on(device, value, line) if line is not None else None
        if line is None or edit is None or edit.line is None:
            continue
        indent = line[: len(line) - len(line.lstrip())]
        changed = [edit.line] if edit.line.strip() else []
        after = (*(f"{indent}{text}" for text in edit.before), *changed)
        return replace(finding, edit=SourceEdit(place.file, place.line, line, after, edit.words))
    edit = one.edit_on(device, value, "")
    if edit.line is None and edit.before:
        return replace(finding, edit=SourceEdit(None, None, None, edit.before, edit.words))
    return finding


def statement(source: Source, file: str, line: int) -> str | None:
    """The statement that begins on a line, joined into one line; None if it was not kept whole."""
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
    joined = lines[0].strip()
    for part in (one.strip() for one in lines[1:]):
        if part.startswith((")", "]", "}")):
            joined = joined.removesuffix(",") + part
        else:
            joined += part if joined.endswith(("(", "[", "{")) else f" {part}"
    # Multi-line strings, for example, cannot be joined.
    whole, short = _parsed("\n".join(lines)), _parsed(joined)
    same = whole is not None and short is not None and ast.dump(whole) == ast.dump(short)
    return indent + joined if same else first


def _parsed(text: str) -> ast.Module | None:
    """The parsed statements, also one that opens a block; None if they are incomplete."""
    text = dedent(text)
    for candidate in (text, f"{text} pass"):
        try:
            return ast.parse(candidate)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
    return None


def with_trainer_settings(
    finding: Finding, through: Mapping[tuple[str, int], str], device: str
) -> Finding:
    """The finding with its settings as the trainer's; unchanged without a trainer or such a
    setting. `through`: the libraries that the program's lines call."""
    places = ((place.file or "", place.line or 0) for place in finding.where)
    if not any(through.get(place) in TRAINER_LIBRARIES for place in places):
        return finding
    if finding.settings:
        named = [(f"dataloader_{one.name}", one.value) for one in finding.settings]
        advice = finding.advice
    elif finding.fix is None or device == "cpu":
        return finding  # trainers accept half precision only on other devices
    else:
        fix, advice = fix_named(finding.fix.name), ""
        if fix.works_on is not None:
            return finding
        named = list(fix.trainer_setting(finding.fix.value).items())
    settings = tuple(Setting(SettingOwner.TRAINER, name, value) for name, value in named)
    return replace(finding, settings=settings, advice=advice, edit=None) if settings else finding


def settings_advice(finding: Finding) -> str:
    """A finding's whole advice: the arguments to pass, then the rest."""
    by_owner: dict[SettingOwner, list[str]] = {}
    for one in finding.settings:
        by_owner.setdefault(one.owner, []).append(str(one))
    passed = [f"Pass {' and '.join(some)} to {owner}." for owner, some in by_owner.items()]
    return " ".join([*passed, finding.advice]).strip()
