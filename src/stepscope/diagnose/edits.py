"""A finding's fix, written for the user's own line."""

import ast
from collections.abc import Callable
from dataclasses import replace
from textwrap import dedent
from typing import Any

from stepscope.fixes.base import Edit
from stepscope.fixes.catalogue import fix
from stepscope.record.errors import UsageError
from stepscope.record.finding import Finding, Place

Source = Callable[[str, int], str | None]
_MOST_LINES = 12
_OF_OPTIMIZERS = ("fused_optimizer", "foreach")


def with_edit(finding: Finding, source: Source, optimizers: tuple[Place, ...] = ()) -> Finding:
    """The finding with its line as it would be; as it is where no line is known for its fix.

    `optimizers`: where those are made, for fixes that change that line.
    """
    if finding.fix is None:
        return finding
    try:
        one = fix(finding.fix.name)
        value = one.parse(finding.fix.value)
    except UsageError:
        return finding
    if value is None and one.suggested:
        value = one.parse(one.suggested[0])
    made = optimizers if one.name in _OF_OPTIMIZERS else ()
    for place in (*finding.where, *made):
        line = statement(source, place.file, place.line) if place.file and place.line else None
        edit = one.edit(value, line) if line is not None else None
        if line is not None and edit is not None and edit.line is not None:
            return replace(finding, edit=_written(edit, place, line))
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
        if _tree("\n".join(lines)) is not None:
            break
        following = source(file, number)
        if following is None or "#" in "".join(lines) + following:
            return first
        lines.append(following)
    joined = _joined(lines)
    return indent + joined if _same(joined, "\n".join(lines)) else first


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


def _same(one: str, other: str) -> bool:
    """Whether two texts mean the same: strings over several lines, say, cannot be joined."""
    first, second = _tree(one), _tree(other)
    return first is not None and second is not None and ast.dump(first) == ast.dump(second)


def _tree(text: str) -> ast.Module | None:
    """Statements parsed; one that opens a block counts. None where they are not whole."""
    text = dedent(text)
    for candidate in (text, f"{text} pass"):
        try:
            return ast.parse(candidate)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
    return None


def _written(edit: Edit, place: Place, line: str) -> dict[str, Any]:
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
