"""Changes of kernels told by operator and line: who launched what is new, gone or slower."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from stepscope.compare.work import KERNELS

_FRAME: Final = re.compile(r"(?P<file>.+)\((?P<line>\d+)\): (?P<function>.+)")


@dataclass(frozen=True, slots=True)
class Blame:
    """The work of one operator in one phase; `text` says what became of it.

    `other` where it is other work than before, not the same that took another time.
    """

    phase: str
    delta_ms: float
    text: str
    other: bool


@dataclass(slots=True)
class _Group:
    phase: str
    operator: str
    lines: dict[str, float] = field(default_factory=dict)
    delta_ms: float = 0.0
    new: int = 0
    gone: int = 0
    count: int = 0


def blames(kernels: Mapping[str, Any]) -> list[Blame]:
    """From the table of `kernels.compared`, largest change first."""
    groups: dict[tuple[str, str], _Group] = {}
    for row in kernels["rows"]:
        operator = row["operator"] or row["name"]
        group = groups.setdefault((row["phase"], operator), _Group(row["phase"], operator))
        group.delta_ms += row["delta_ms"]
        group.new += row["new"]
        group.gone += row["gone"]
        group.count += row["other_count"]
        if row["line"]:
            weight = abs(row["delta_ms"]) + group.lines.get(row["line"], 0.0)
            group.lines[row["line"]] = weight
    ordered = sorted(groups.values(), key=lambda group: -abs(group.delta_ms))
    noun = "kernel" if kernels["unit"] == KERNELS else "call"
    return [
        Blame(one.phase, one.delta_ms, _text(one, noun), bool(one.new or one.gone))
        for one in ordered
    ]


def _text(group: _Group, noun: str) -> str:
    where = _place(max(group.lines, key=group.lines.__getitem__)) if group.lines else None
    place = f" in {where}" if where else ""
    if group.new and not group.gone:
        made = "from" if noun == "kernel" else "of"
        return f"{_counted(group.new, f'new {noun}')} {made} {group.operator}{place}"
    if group.gone and not group.new:
        return f"{_counted(group.gone, noun)} of {group.operator}{place} gone"
    if group.new:
        new = _counted(group.new, noun)
        return f"{group.operator} makes {new} in place of {group.gone:,} others{place}"
    way = "slower" if group.delta_ms > 0 else "faster"
    return f"{_counted(group.count, noun)} of {group.operator}{place} {way}"


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _place(frame: str) -> str | None:
    """`forward (model.py:88)`: recordings know a function and where it begins, not its lines."""
    found = _FRAME.match(frame)
    if found is None:
        return None
    file = found["file"].replace("\\", "/").rpartition("/")[2]
    return f"{found['function']} ({file}:{found['line']})"
