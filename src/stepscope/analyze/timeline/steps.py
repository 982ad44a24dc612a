"""Step boundaries, from whatever marks a recording has, and each device's time per step."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from stepscope.analyze.timeline.intervals import (
    DeviceWork,
    clip,
    covered,
    device_work,
    difference,
    total,
)
from stepscope.analyze.timeline.names import names_match
from stepscope.record.timeline import (
    Column,
    DeviceKind,
    HostKind,
    Timeline,
    distinct_values,
    once_per_timeline,
)

_NUMBER = re.compile(r"\d{1,18}")
_STEP_WORD = re.compile(r"step|iter|batch|tick|frame", re.IGNORECASE)
_OPTIMIZER = re.compile(r"adam|sgd|lamb|lion|adagrad|rmsprop|addcdiv", re.IGNORECASE)
_OVER_TENSORS = re.compile(r"multi_tensor|fused_?(adam|sgd|lamb)", re.IGNORECASE)
_COVERS = 0.5  # the least share of a recording that counted steps fill
_LONGEST_CYCLE = 4  # optimizers of one class taking turns
_OTHERS = 8  # kernels between two steps of an optimizer, at the least


class _StepMarks(NamedTuple):
    """Steps as marked, in order of their starts."""

    names: list[str]
    start: Column
    end: Column


def _profiler_steps(timeline: Timeline) -> _StepMarks | None:
    """torch.profiler's own ProfilerStep# annotations."""
    marked = _annotations(timeline, lambda name: name.startswith("ProfilerStep"))
    if not len(marked):
        return None
    threads, counts = np.unique(timeline.host.thread[marked], return_counts=True)
    return _marks(timeline, marked[timeline.host.thread[marked] == threads[counts.argmax()]])


def _counted_annotations(timeline: Timeline) -> _StepMarks | None:
    """Ranges of one thread that look like a counter of steps and span most of the recording.

    The name speaks of a step, a number in it (where it has one) counts up, and none overlap.
    """
    host, groups = timeline.host, dict[tuple[str, int], list[int]]()
    marked = _annotations(timeline, lambda n: _STEP_WORD.search(n) and "Optimizer." not in n)
    for event in marked.tolist():
        series, _ = _split(timeline.names[host.name[event]])
        groups.setdefault((series, int(host.thread[event])), []).append(event)
    best, most = None, _COVERS * (timeline.span[1] - timeline.span[0])
    for members in groups.values():
        events = np.array(members)
        numbers = [_split(timeline.names[n])[1] for n in host.name[events].tolist()]
        rises = numbers[0] is None or bool((np.diff(np.array(numbers)) > 0).all())
        start, end = host.start[events], host.start[events] + host.duration[events]
        apart, filled = bool((start[1:] >= end[:-1]).all()), int((end - start).sum())
        if len(events) > 1 and rises and apart and filled > most:
            best, most = events, filled
    return None if best is None else _marks(timeline, best)


def _split(name: str) -> tuple[str, int | None]:
    """A name without its last number, and that number; None where it has none."""
    numbers = list(_NUMBER.finditer(name))
    if not numbers:
        return name, None
    begin, end = numbers[-1].span()
    return f"{name[:begin]}#{name[end:]}", int(name[begin:end])


def _optimizer_steps(timeline: Timeline) -> _StepMarks | None:
    """A step ends with each Optimizer.step# of the optimizer that takes the most time.

    The first begins with the recording. Optimizers of one class that take turns count together,
    recognised by the number of launches each makes.
    """
    host = timeline.host
    marked = _annotations(timeline, lambda name: name.startswith("Optimizer.step#"))
    if not len(marked):
        return None
    _, which = np.unique(host.name[marked], return_inverse=True)
    own = marked[which == np.bincount(which, host.duration[marked]).argmax()]
    end = host.end[own]
    outermost = np.concatenate(([True], end[1:] > np.maximum.accumulate(end)[:-1]))
    own, end = own[outermost], end[outermost]
    calls = host.start[distinct_values(timeline.device.launch[timeline.device.launch >= 0])]
    launches = np.searchsorted(calls, end) - np.searchsorted(calls, host.start[own])
    cycle = 1
    for length in range(1, _LONGEST_CYCLE + 1):
        settled = launches[length:]  # the first round may differ
        if len(settled) > length and (settled[length:] == settled[:-length]).all():
            cycle = length
            break
    return _marks_ending_at(timeline, end[cycle - 1 :: cycle])


def _optimizer_kernels(timeline: Timeline) -> _StepMarks | None:
    """A step ends with the launch of the last of each burst of optimizers' kernels."""
    device = timeline.device
    kernels = np.flatnonzero((device.kind == DeviceKind.KERNEL) & (device.launch >= 0))
    called = timeline.host.start[device.launch[kernels]]
    kernels = kernels[np.argsort(called, kind="stable")]
    steps = names_match(
        timeline, device.name[kernels], lambda n: _OVER_TENSORS.search(n) and _OPTIMIZER.search(n)
    )
    at = np.flatnonzero(steps)
    apart = np.diff(at)
    if apart.max(initial=0) < _OTHERS:
        return None
    last = np.append(at[:-1][apart > apart.max() / 2], at[-1])
    return _marks_ending_at(timeline, timeline.host.end[device.launch[kernels[last]]])


def _annotations(timeline: Timeline, test: Callable[[str], object]) -> Column:
    marks = np.flatnonzero(timeline.host.kind == HostKind.ANNOTATION)
    return marks[names_match(timeline, timeline.host.name[marks], test)]


def _marks(timeline: Timeline, events: Column) -> _StepMarks:
    host = timeline.host
    start, first = np.unique(host.start[events], return_index=True)
    events = events[first]
    names = [timeline.names[n] for n in host.name[events].tolist()]
    if len(set(names)) < len(names):
        names = [f"{name} {n + 1}" for n, name in enumerate(names)]
    return _StepMarks(names, start, start + host.duration[events])


def _marks_ending_at(timeline: Timeline, ends: Column) -> _StepMarks | None:
    """Steps that end at these times, named by their number."""
    ends = distinct_values(ends)
    ends = ends[ends > timeline.span[0]]
    if not len(ends):
        return None
    start = np.concatenate(([timeline.span[0]], ends[:-1]))
    return _StepMarks([f"step {n + 1}" for n in range(len(ends))], start, ends)


class StepMark(StrEnum):
    """What told where steps begin and end."""

    PROFILER = "ProfilerStep"  # torch.profiler's own marks
    ANNOTATION = "annotation"  # ranges of the program that count up
    OPTIMIZER = "optimizer"  # each step ends with one of its optimizer
    WHOLE = "whole"  # nothing: the recording is one step


class RecordedStep(Struct, frozen=True):
    """One step, [start_ns, end_ns) on the host's clock."""

    name: str
    start_ns: int
    end_ns: int


def step_at(steps: list[RecordedStep], time: int) -> str | None:
    """The name of the step at a time; None outside the steps."""
    return next((step.name for step in steps if step.start_ns <= time < step.end_ns), None)


@dataclass(frozen=True, slots=True)
class RecordedSteps:
    """The steps of a recording in order; each begins where the one before ends.

    Boundaries are host times: device work that runs past a step's end counts in the next step for
    the time it runs there, as in a steady program each window then holds one step's work. Where
    steps end with an optimizer, the last one goes on until the device has done what it launched.
    """

    steps: list[RecordedStep]
    how: StepMark
    between_ns: int  # lay between the marks of two steps; counted in the earlier one
    outside_ns: int  # devices' work before the first step or after the last, in no step


@once_per_timeline
def find_steps(timeline: Timeline) -> RecordedSteps:
    """The steps, by the best marks there are; without any the whole recording is one."""
    for how, find in (
        (StepMark.PROFILER, _profiler_steps),
        (StepMark.ANNOTATION, _counted_annotations),
        (StepMark.OPTIMIZER, _optimizer_steps),
        (StepMark.OPTIMIZER, _optimizer_kernels),
    ):
        marks = find(timeline)
        if marks is not None:
            return _tiled(timeline, marks, how)
    start, end = timeline.span
    return RecordedSteps([RecordedStep("whole", start, max(end, start + 1))], StepMark.WHOLE, 0, 0)


def _tiled(timeline: Timeline, marks: _StepMarks, how: StepMark) -> RecordedSteps:
    device, end = timeline.device, int(marks.end[-1])
    if how is StepMark.OPTIMIZER:  # the last step ends when the device has done what it launched
        launched = np.flatnonzero(device.launch >= 0)
        launched = launched[timeline.host.start[device.launch[launched]] < end]
        end = int(device.end[launched].max(initial=end))
    ends = np.append(marks.start[1:], max(end, marks.start[-1] + 1))
    between = int(np.maximum(marks.start[1:] - marks.end[:-1], 0).sum())
    steps = [*map(RecordedStep, marks.names, marks.start.tolist(), ends.tolist())]
    first, last = steps[0].start_ns, steps[-1].end_ns
    busy = [work.busy for work in device_work(timeline)]
    outside = sum(total(one) - total(clip(one, first, last)) for one in busy)
    return RecordedSteps(steps, how, between, outside)


class Breakdown(Struct, frozen=True):
    """Nanoseconds of one device within a window of time; what overlaps is counted once.

    compute + exposed_communication + exposed_copy + idle = wall. Copies are those in every
    direction, within the device too, and memsets.
    """

    compute: int  # any kernel that computes was running
    copy: int  # any copy or memset was
    communication: int  # any communication kernel was
    exposed_communication: int  # communication, and nothing computed
    exposed_copy: int  # copies, and nothing computed or communicated
    idle: int  # nothing ran
    wall: int


@dataclass(frozen=True, slots=True)
class DeviceBreakdown:
    """One device: each step, all steps together, and the recording from its first to last event."""

    device: int
    steps: list[Breakdown]
    total: Breakdown
    whole: Breakdown


def break_down(timeline: Timeline, steps: RecordedSteps) -> list[DeviceBreakdown]:
    """A breakdown per device that did anything; work that crosses a step's end counts in both."""
    starts = [s.start_ns for s in steps.steps]
    ends = [s.end_ns for s in steps.steps]
    whole = timeline.span
    found = []
    for one in device_work(timeline):
        rows = break_down_windows(one, [*starts, starts[0], whole[0]], [*ends, ends[-1], whole[1]])
        found.append(DeviceBreakdown(one.device, rows[:-2], rows[-2], rows[-1]))
    return found


def break_down_windows(work: DeviceWork, starts: list[int], ends: list[int]) -> list[Breakdown]:
    """The breakdown of a device in each window [start, end)."""
    exposed = difference(work.communication, work.compute)
    moves = difference(difference(work.copy, work.compute), work.communication)
    begin, finish = np.asarray(starts, np.int64), np.asarray(ends, np.int64)
    kinds = (work.compute, work.copy, work.communication, exposed, moves, work.busy)
    columns = [(covered(kind, finish) - covered(kind, begin)).tolist() for kind in kinds]
    walls = (finish - begin).tolist()
    return [
        Breakdown(compute, copy, talk, bare_talk, bare_copy, wall - busy, wall)
        for compute, copy, talk, bare_talk, bare_copy, busy, wall in zip(
            *columns, walls, strict=True
        )
    ]
