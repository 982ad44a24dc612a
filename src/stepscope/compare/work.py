"""What a typical recorded step did, in order: kernels of the device, or operators of the host."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from stepscope.analyze.timeline.attribution import attribute
from stepscope.analyze.timeline.steps import find_steps
from stepscope.compare.hostwork import Events, host_events
from stepscope.record.rows import STEP_PHASES
from stepscope.record.timeline import NOTHING, Column, Timeline

KERNELS: Final = "kernels"
OPERATORS: Final = "operators"


@dataclass(frozen=True, slots=True)
class Work:
    """One kernel, copy or memset; without a device one operator, its own time only."""

    name: str
    ms: float
    operator: str | None
    phase: str
    line: str | None
    """`file(line): function` of the user's own code; None where stacks were not recorded."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """A typical step. `unit` is KERNELS or OPERATORS."""

    unit: str
    works: tuple[Work, ...]


def recorded(timeline: Timeline, stacks: Timeline | None) -> Recorded:
    """The step as it occurred most often, times the median over its occurrences.

    Lines come from the recording itself or, by operator and name, from one with stacks.
    """
    unit = KERNELS if len(timeline.device) else OPERATORS
    events = _events(timeline, unit)
    lines = _lines(_events(stacks, unit), stacks) if stacks is not None else {}
    chosen = _typical(timeline, events)
    names = timeline.names
    times = np.median([events.duration[step] for step in chosen], axis=0) / 1e6
    works = []
    for place, ms in zip(chosen[0].tolist(), times.tolist(), strict=True):
        name, operator = names[events.name[place]], _name(names, events.operator[place])
        phase = STEP_PHASES[events.phase[place]]
        line = _name(names, events.line[place]) or lines.get((name, operator, phase))
        works.append(Work(name, ms, operator, phase, line))
    return Recorded(unit, tuple(works))


def _events(timeline: Timeline, unit: str) -> Events:
    if unit == OPERATORS:
        return host_events(timeline)
    device, host = timeline.device, timeline.host
    found = attribute(timeline)
    begun = device.start
    if len(host):
        begun = np.where(device.launch >= 0, host.start[device.launch], device.start)
    operator = np.append(host.name, np.int32(NOTHING))[found.operator]
    return Events(begun, device.duration, device.name, operator, found.phase, found.line)


def _typical(timeline: Timeline, events: Events) -> Sequence[Column]:
    """The events of each step that has the most usual sequence of names, in order."""
    steps = find_steps(timeline).steps
    inside = [
        np.flatnonzero((events.begun >= step.start_ns) & (events.begun < step.end_ns))
        for step in steps
    ]
    spelt = [events.name[step].tobytes() for step in inside]
    usual, _ = Counter(spelt).most_common(1)[0]
    return [step for step, names in zip(inside, spelt, strict=True) if names == usual]


def _lines(events: Events, stacks: Timeline) -> dict[tuple[str, str | None, str], str]:
    """The line each kind of work comes from most often."""
    counts: dict[tuple[str, str | None, str], Counter[str]] = {}
    names = stacks.names
    for place in np.flatnonzero(events.line != NOTHING).tolist():
        phase = STEP_PHASES[events.phase[place]]
        key = names[events.name[place]], _name(names, events.operator[place]), phase
        counts.setdefault(key, Counter())[names[events.line[place]]] += 1
    return {key: count.most_common(1)[0][0] for key, count in counts.items()}


def _name(names: Sequence[str], number: int) -> str | None:
    return None if number == NOTHING else names[number]
