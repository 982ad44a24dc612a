"""Why a step takes longer or shorter: the phase, and the work and settings that explain it."""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from stepscope.record.facts import Switches
from stepscope.results.comparison import (
    CallSite,
    Cause,
    KernelComparison,
    KernelRow,
    PhaseChange,
    SettingDifference,
    SettingPart,
    WorkChange,
)

_FRAME: Final = re.compile(r"(?P<file>.+)\((?P<line>\d+)\): (?P<function>.+)")  # Kineto's
_SMALLEST: Final = 0.01  # of the step, a share: smaller changes of a phase are left out
_EXPLAINS: Final = 0.2  # of a phase's change: smaller explanations are not named
_MOST_CAUSES: Final = 3
_MOST_SETTINGS: Final = 2
_ARITHMETIC: Final = {"autocast", "compile", *Switches.__annotations__} - {"deterministic"}
"""Switches that change how fast a model computes."""


def find_causes(
    phases: Sequence[PhaseChange],
    kernels: KernelComparison | None,
    settings: Sequence[SettingDifference],
    idle: Sequence[PhaseChange] = (),
    claimed: bool = True,
) -> tuple[Cause, ...]:
    """The largest changes, at most three, each with its reason if one is found.

    Without phases, as in traces, by recorded work and idle time alone. If no change of speed is
    `claimed`, only those with a reason: the rest may be noise.
    """
    work = work_changes(kernels) if kernels is not None else []
    if phases:
        found = list(_phase_causes(phases, work, settings))
    else:
        step_ms = kernels.base_ms if kernels is not None else 0.0
        idle_ms = sum(one.base_ms for one in idle)
        found = [
            Cause(one.phase, one.delta_ms, work=one)
            for one in work
            if abs(one.delta_ms) >= _SMALLEST * step_ms
        ]
        found += [
            Cause("idle", one.delta_ms, idle_cause=one.name)
            for one in idle
            if abs(one.delta_ms) > _SMALLEST * idle_ms
        ]
    found = [one for one in found if claimed or one.explained]
    return tuple(sorted(found, key=lambda one: -abs(one.delta_ms))[:_MOST_CAUSES])


def work_changes(kernels: KernelComparison) -> list[WorkChange]:
    """Rows summed by operator and phase, largest change first."""
    groups: dict[tuple[str, str], list[KernelRow]] = {}
    for row in kernels.rows:
        groups.setdefault((row.phase, row.operator or row.name), []).append(row)
    found = []
    for (phase, operator), rows in groups.items():
        lines: defaultdict[str, float] = defaultdict(float)
        for row in rows:
            if row.line:
                lines[row.line] += abs(row.delta_ms)
        change = WorkChange(
            phase=phase,
            operator=operator,
            unit=kernels.unit,
            delta_ms=sum(row.delta_ms for row in rows),
            new=sum(row.new for row in rows),
            gone=sum(row.gone for row in rows),
            count=sum(row.other_count for row in rows),
            place=_place(max(lines, key=lines.__getitem__)) if lines else None,
        )
        found.append(change)
    return sorted(found, key=lambda one: -abs(one.delta_ms))


def _place(frame: str) -> CallSite | None:
    found = _FRAME.match(frame)
    if found is None:
        return None
    file = found["file"].replace("\\", "/").rpartition("/")[2]
    return CallSite(found["function"], file, int(found["line"]))


def _phase_causes(
    phases: Sequence[PhaseChange], work: Sequence[WorkChange], settings: Sequence[SettingDifference]
) -> Iterator[Cause]:
    whole = sum(phase.base_ms for phase in phases) or 1.0
    for phase in phases:
        if abs(phase.delta_ms) >= _SMALLEST * whole:
            told = [one for one in settings if _may_explain(one, phase.name)][:_MOST_SETTINGS]
            yield Cause(phase.name, phase.delta_ms, tuple(told), _explaining_work(phase, work))


def _may_explain(one: SettingDifference, phase: str) -> bool:
    if phase == "other":
        return False
    if one.part is SettingPart.FIXES:
        return True
    if phase == "data_wait":
        return one.part is SettingPart.LOADER
    if phase == "h2d":
        return one.part is SettingPart.LOADER and one.key == "pin_memory"
    if phase == "optimizer":
        return one.part is SettingPart.OPTIMIZER
    return one.part is SettingPart.SWITCH and one.key in _ARITHMETIC


def _explaining_work(phase: PhaseChange, work: Sequence[WorkChange]) -> WorkChange | None:
    """The work that explains enough of a phase. New or removed work comes before work that only
    took longer, since times of single operators vary a lot."""
    enough = _EXPLAINS * abs(phase.delta_ms)
    within = [
        one
        for one in work
        if one.phase == phase.name
        and one.delta_ms * phase.delta_ms > 0
        and abs(one.delta_ms) >= enough
    ]
    return min(within, key=lambda one: not (one.new or one.gone), default=None)
