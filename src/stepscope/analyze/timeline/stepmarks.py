"""The marks steps can be told by: annotations that count, and optimizers."""

import re
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from stepscope.analyze.timeline.namematch import names_that
from stepscope.record.timeline import Column, DeviceKind, HostKind, Timeline

_NUMBER = re.compile(r"\d{1,18}")
_STEP_WORD = re.compile(r"step|iter|batch|tick|frame", re.IGNORECASE)
_OPTIMIZER = re.compile(r"adam|sgd|lamb|lion|adagrad|rmsprop|addcdiv", re.IGNORECASE)
_OVER_TENSORS = re.compile(r"multi_tensor|fused_?(adam|sgd|lamb)", re.IGNORECASE)
_COVERS = 0.5  # the least share of a recording that counted steps fill
_LONGEST_CYCLE = 4  # optimizers of one class taking turns
_OTHERS = 8  # kernels between two steps of an optimizer, at the least


class Marks(NamedTuple):
    """Steps as marked, in order of their starts."""

    names: list[str]
    start: Column
    end: Column


def profiler_steps(timeline: Timeline) -> Marks | None:
    """torch.profiler's own ProfilerStep# annotations."""
    marked = _annotations(timeline, lambda name: name.startswith("ProfilerStep"))
    if not len(marked):
        return None
    threads, counts = np.unique(timeline.host.thread[marked], return_counts=True)
    return _marks(timeline, marked[timeline.host.thread[marked] == threads[counts.argmax()]])


def counted(timeline: Timeline) -> Marks | None:
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


def optimizer_steps(timeline: Timeline) -> Marks | None:
    """A step ends with each Optimizer.step# of the optimizer that takes the most time.

    The first begins with the recording. Optimizers of one class that take turns count together,
    told by the number of launches each makes.
    """
    host = timeline.host
    marked = _annotations(timeline, lambda name: name.startswith("Optimizer.step#"))
    if not len(marked):
        return None
    names = host.name[marked]
    spent = np.bincount(names, weights=host.duration[marked])
    own = marked[names == spent.argmax()]
    end = host.start[own] + host.duration[own]
    outermost = np.concatenate(([True], end[1:] > np.maximum.accumulate(end)[:-1]))
    own, end = own[outermost], end[outermost]
    calls = host.start[np.unique(timeline.device.launch[timeline.device.launch >= 0])]
    launches = np.searchsorted(calls, end) - np.searchsorted(calls, host.start[own])
    cycle = _cycle(launches)
    return _ending(timeline, end[cycle - 1 :: cycle])


def optimizer_kernels(timeline: Timeline) -> Marks | None:
    """A step ends with the launch of the last of each burst of optimizers' kernels."""
    device = timeline.device
    kernels = np.flatnonzero((device.kind == DeviceKind.KERNEL) & (device.launch >= 0))
    called = timeline.host.start[device.launch[kernels]]
    kernels = kernels[np.argsort(called, kind="stable")]
    steps = names_that(
        timeline, device.name[kernels], lambda n: _OVER_TENSORS.search(n) and _OPTIMIZER.search(n)
    )
    at = np.flatnonzero(steps)
    apart = np.diff(at)
    if apart.max(initial=0) < _OTHERS:
        return None
    last = np.append(at[:-1][apart > apart.max() / 2], at[-1])
    calls = device.launch[kernels[last]]
    return _ending(timeline, timeline.host.start[calls] + timeline.host.duration[calls])


def _annotations(timeline: Timeline, test: Callable[[str], object]) -> Column:
    marks = np.flatnonzero(timeline.host.kind == HostKind.ANNOTATION)
    return marks[names_that(timeline, timeline.host.name[marks], test)]


def _marks(timeline: Timeline, events: Column) -> Marks:
    host = timeline.host
    start, first = np.unique(host.start[events], return_index=True)
    events = events[first]
    names = [timeline.names[n] for n in host.name[events].tolist()]
    if len(set(names)) < len(names):
        names = [f"{name} {n + 1}" for n, name in enumerate(names)]
    return Marks(names, start, start + host.duration[events])


def _ending(timeline: Timeline, ends: Column) -> Marks | None:
    """Steps that end at these times, named by their number."""
    ends = np.unique(ends)
    ends = ends[ends > timeline.span[0]]
    if not len(ends):
        return None
    start = np.concatenate(([timeline.span[0]], ends[:-1]))
    return Marks([f"step {n + 1}" for n in range(len(ends))], start, ends)


def _cycle(launches: Column) -> int:
    """After how many calls the numbers of launches repeat; the first round may differ."""
    for length in range(1, _LONGEST_CYCLE + 1):
        settled = launches[length:]
        if len(settled) > length and (settled[length:] == settled[:-length]).all():
            return length
    return 1
