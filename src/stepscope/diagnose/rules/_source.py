"""What a kept source line says."""

import re
from collections.abc import Iterator

from stepscope.diagnose.case import Case
from stepscope.record.finding import Place

_MOVED = re.compile(r"(?P<what>[A-Za-z_][\w.]*)\.(to|cuda)\(")
_AROUND = 60  # lines before and after


def lines_around(case: Case, place: Place, before: int, after: int) -> Iterator[tuple[int, str]]:
    """The kept lines near a place."""
    if place.file is None or place.line is None:
        return
    for number in range(max(1, place.line - before), place.line + after + 1):
        line = case.source(place.file, number)
        if line is not None:
            yield number, line


def same_each_time(case: Case, place: Place) -> str | None:
    """What a line moves to the device though nothing in its loop changes it; None if unsure.

    `weights.to(device)` in a loop that never assigns `weights`, or `self.mask.to(…)` in a method.
    """
    around = dict(lines_around(case, place, _AROUND, _AROUND))
    line = around.get(place.line or 0)
    found = _MOVED.search(line) if line is not None else None
    if line is None or found is None:
        return None
    what = found["what"]
    inside = _loop(around, place.line or 0)
    if inside is None:
        return what if what.startswith("self.") and not _assigned(around, what) else None
    return None if _assigned(inside, what) else what


def _loop(around: dict[int, str], at: int) -> dict[int, str] | None:
    """The lines of the innermost loop around a line, its head too; None where no head is kept."""
    depth = _depth(around[at])
    for number in range(at - 1, min(around) - 1, -1):
        line = around.get(number, "")
        if not line.strip() or _depth(line) >= depth:
            continue
        depth = _depth(line)
        word = line.split(None, 1)[0]
        if word in ("def", "async", "class"):
            return None
        if word in ("for", "while"):
            return dict(_block(around, number))
    return None


def _block(around: dict[int, str], head: int) -> Iterator[tuple[int, str]]:
    """A line and those indented below it."""
    for number, line in sorted(around.items()):
        if number > head and line.strip() and _depth(line) <= _depth(around[head]):
            return
        if number >= head:
            yield number, line


def _assigned(lines: dict[int, str], what: str) -> bool:
    """Whether any of these lines may give the name, or what it belongs to, a new value."""
    for name in {what, what.split(".")[0]} - {"self"}:
        word = rf"(?<![\w.]){re.escape(name)}(?!\w)"
        changed = re.compile(
            rf"^[^=(]*{word}(?![.(])[^=(]*(?<![=!<>])=(?!=)"  # assigned, alone or among others
            rf"|\bfor\b[^:]*{word}[^:]*\bin\b|{word}\s*:=|\bas {word}"
            rf"|{word}\.\w+_\(|{word}\[.*\]\s*[-+*/@]?=(?!=)"  # changed in place
        )
        if any(changed.search(line) for line in lines.values()):
            return True
    return False


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())
