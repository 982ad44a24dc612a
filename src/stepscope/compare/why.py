"""Why a step takes longer or shorter, in sentences: the phase, what in it, and where."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from stepscope.compare.blame import Blame, blames

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


def sentences(
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
    found = blames(kernels) if kernels is not None else []
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


def _sentence(row: Mapping[str, Any], found: Sequence[Blame], settings: Rows) -> str:
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


def _worked(phase: str, delta: float, found: Sequence[Blame]) -> list[str]:
    """What goes the same way and explains enough of it: other work before work that only took
    longer, as times of single operators vary much."""
    enough = _EXPLAINS * abs(delta)
    within = [
        one
        for one in found
        if one.phase == phase and one.delta_ms * delta > 0 and abs(one.delta_ms) >= enough
    ]
    return [one.text for one in sorted(within, key=lambda one: not one.other)[:1]]


def _recorded(found: Sequence[Blame], kernels: Mapping[str, Any] | None) -> list[tuple[float, str]]:
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
