"""Why a step takes longer or shorter: the phase, the operators in it that changed, and the settings
that may explain it.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from stepscope.compare.kernels import KERNELS

_FRAME: Final = re.compile(r"(?P<file>.+)\((?P<line>\d+)\): (?P<function>.+)")


@dataclass(frozen=True, slots=True)
class _OperatorChange:
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


def operator_changes(kernels: Mapping[str, Any]) -> list[_OperatorChange]:
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
        _OperatorChange(one.phase, one.delta_ms, _text(one, noun), bool(one.new or one.gone))
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


_LEAST: Final = 0.01  # of the step, as a share: smaller changes of a phase are not told of
_EXPLAINS: Final = 0.2  # of a phase's change: what explains less is not named
_SENTENCES: Final = 3
_NAMES: Final = {"data_wait": "data wait", "h2d": "copy"}
_SETTINGS: Final = {
    "data_wait": ("loader", "fixes"),
    "h2d": ("loader pin_memory", "fixes"),
    "optimizer": ("optimizer", "fixes"),
    "forward": ("autocast", "compile", "tf32", "cudnn", "threads", "fixes", "anomaly"),
    "backward": ("autocast", "compile", "tf32", "cudnn", "threads", "fixes", "anomaly"),
}
"""By phase: how settings begin that may explain a change of it."""
Rows = Sequence[Mapping[str, Any]]


def why_sentences(
    phases: Rows,
    kernels: Mapping[str, Any] | None,
    settings: Rows,
    idle: Rows = (),
    claimed: bool = True,
) -> list[str]:
    """The largest changes, at most three, each with its reason where one is seen.

    Without phases, as of traces, by the recorded work and the idle device alone. Where no change
    of speed is `claimed`, only what has a reason: the rest may be noise.
    """
    found = operator_changes(kernels) if kernels is not None else []
    if not phases:
        told = _recorded(found, kernels) + _idle(idle)
    else:
        whole = sum(row["base_ms"] for row in phases) or 1.0
        told = [
            (row["delta_ms"], _sentence(row, found, settings))
            for row in phases
            if abs(row["delta_ms"]) >= _LEAST * whole
        ]
    told = [one for one in told if claimed or ": " in one[1]]
    told.sort(key=lambda one: -abs(one[0]))
    return [text for _, text in told[:_SENTENCES]]


def _sentence(row: Mapping[str, Any], found: Sequence[_OperatorChange], settings: Rows) -> str:
    phase, delta = row["name"], row["delta_ms"]
    head = f"{_NAMES.get(phase, phase)} {signed(delta)} ms"
    reasons = [*_told(phase, settings), *_worked(phase, delta, found)]
    return f"{head}: {'; '.join(reasons)}" if reasons else head


def _told(phase: str, settings: Rows) -> list[str]:
    starts = _SETTINGS.get(phase, ())
    return [
        f"{one['what']} {_value(one['base'])} → {_value(one['other'])}"
        for one in settings
        if one["what"].startswith(starts)
    ][:2]


def _worked(phase: str, delta: float, found: Sequence[_OperatorChange]) -> list[str]:
    """What goes the same way and explains enough of it: other work before work that only took
    longer, as times of single operators vary much."""
    enough = _EXPLAINS * abs(delta)
    within = [
        one
        for one in found
        if one.phase == phase and one.delta_ms * delta > 0 and abs(one.delta_ms) >= enough
    ]
    return [one.text for one in sorted(within, key=lambda one: not one.other)[:1]]


def _recorded(
    found: Sequence[_OperatorChange], kernels: Mapping[str, Any] | None
) -> list[tuple[float, str]]:
    whole = kernels["base_ms"] if kernels is not None else 0.0
    return [
        (one.delta_ms, f"{_NAMES.get(one.phase, one.phase)} {signed(one.delta_ms)} ms: {one.text}")
        for one in found
        if abs(one.delta_ms) >= _LEAST * whole
    ]


def _idle(rows: Rows) -> list[tuple[float, str]]:
    whole = sum(row["base_ms"] for row in rows)
    return [
        (row["delta_ms"], f"idle {signed(row['delta_ms'])} ms: {row['name'].replace('_', ' ')}")
        for row in rows
        if abs(row["delta_ms"]) > _LEAST * whole
    ]


def _value(value: Any) -> str:
    return "none" if value is None else str(value)


def signed(value: float) -> str:
    """`+3.9`, `−0.42`: three significant digits at most."""
    digits = 0 if abs(value) >= 99.95 else 1 if abs(value) >= 0.995 else 2
    return f"{'−' if value < 0 else '+'}{abs(value):,.{digits}f}"
