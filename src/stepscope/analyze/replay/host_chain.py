"""The host chain: alternating threads as one series of stretches, each with its phase."""

import re
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from stepscope.analyze.timeline.attribution import (
    AUTOGRAD_NODE,
    BACKWARD,
    DATA_WAIT,
    FORWARD,
    H2D,
    OPTIMIZER,
    OTHER,
    is_operator,
    nearest,
)
from stepscope.analyze.timeline.dependencies import device_order, find_thread_waits
from stepscope.analyze.timeline.host_threads import (
    ByThread,
    backward_threads,
    cut_stretches,
    stretches_within,
)
from stepscope.analyze.timeline.intervals import Spans
from stepscope.analyze.timeline.names import CopyDirection, copies_towards, names_match, starts_with
from stepscope.record.timeline import NOTHING, Column, HostKind, Timeline, distinct_values


@dataclass(frozen=True, slots=True)
class HostChain:
    """Stretches in order; each begins where the one before it ends."""

    start: Column
    end: Column
    owner: Column  # the innermost host event, NOTHING between events
    thread: Column
    main: int

    def __len__(self) -> int:
        return len(self.start)

    @property
    def duration(self) -> Column:
        return self.end - self.start

    def at(self, times: Column) -> Column:
        """The stretch that each time lies in."""
        found: Column = np.searchsorted(self.start, times, "right") - 1
        return np.clip(found, 0, max(len(self) - 1, 0))

    def steps(self, starts: Column) -> Column:
        """The step of each stretch, by when steps start."""
        found: Column = np.searchsorted(starts, self.start, "right") - 1
        return found

    def cut(self, times: Column) -> Self:
        """The same chain with stretches that begin at these times too."""
        times = distinct_values(times[(times > self.start[0]) & (times < self.end[-1])])
        start = distinct_values(np.append(self.start, times))
        row = self.at(start)
        end = np.append(start[1:], self.end[-1])
        return replace(self, start=start, end=end, owner=self.owner[row], thread=self.thread[row])


def host_chain(timeline: Timeline, start_ns: int, end_ns: int) -> HostChain | None:
    """What drove the program between two times: the main thread and, while it waits, the thread
    that works for it (autograd's). None if no host event was recorded.
    """
    waits = find_thread_waits(timeline, device_order(timeline, start_ns, end_ns))
    if waits.main == NOTHING:
        return None
    turns = _turns(waits.main, waits.handovers, start_ns, end_ns)
    events, parts = ByThread(timeline), []
    spans: dict[int, list[list[int]]] = {}
    for *span, thread in turns:
        spans.setdefault(thread, []).append(span)
    for thread in sorted(spans):
        own = np.array(spans[thread], np.int64)
        whole = cut_stretches(timeline.host, events.rows(thread), int(own[0, 0]), int(own[-1, 1]))
        begin, end, owner = stretches_within(whole, own[:, 0], own[:, 1])
        parts.append((begin, end, owner, np.full(len(begin), thread)))
    starts, ends, owners, threads = (np.concatenate(part) for part in zip(*parts, strict=True))
    order = np.argsort(starts, kind="stable")
    return HostChain(starts[order], ends[order], owners[order], threads[order], waits.main)


def _turns(
    main: int, handovers: dict[int, Spans], start_ns: int, end_ns: int
) -> list[tuple[int, int, int]]:
    """(start, end, thread) that tile the time; of several at work the first to begin has it."""
    spans = [
        (max(begin, start_ns), min(end, end_ns), thread)
        for thread, own in handovers.items()
        for begin, end in zip(own.start.tolist(), own.end.tolist(), strict=True)
    ]
    turns: list[tuple[int, int, int]] = []
    now = start_ns
    for begin, end, thread in sorted(spans):
        begin = max(begin, now)
        if end <= begin:
            continue
        if begin > now:
            turns.append((now, begin, main))
        turns.append((begin, end, thread))
        now = end
    if now < end_ns:
        turns.append((now, end_ns, main))
    return turns


_UNKNOWN_PHASE = 255  # unknown so far


@dataclass(frozen=True, slots=True)
class WindowClocks:
    """What the always-on clocks measured in each step of the window, in ns."""

    forward: Column
    backward: Column

    def for_steps(self, steps: int) -> Self | None:
        """The clocks for this many steps: these, or their mean if the numbers differ; None without
        any."""
        if not len(self.forward):
            return None
        if len(self.forward) == steps:
            return self
        means = (np.full(steps, times.mean()) for times in (self.forward, self.backward))
        return type(self)(*means)


def _mark_forward(
    phase: Column,
    call: Column,
    chain: HostChain,
    step: Column,
    clocks: WindowClocks | None,
    cuts: list[int],
) -> None:
    """The stretch before each backward (before the end of a step without one).

    The clocks tell how long it is, and by how much backward began before its first node.
    """
    if clocks is None:
        _mark_forward_by_calls(phase, call, step)
        return
    first, end = _bounds(step, np.arange(int(step.max(initial=-1)) + 1))
    for number, rows in enumerate(zip(first.tolist(), end.tolist(), strict=True)):
        own = np.arange(*rows)
        if known := float(chain.duration[own[phase[own] == BACKWARD]].sum()):
            _take(phase, own, chain, clocks.backward[number] - known, BACKWARD, cuts)
        _take(phase, own, chain, clocks.forward[number], FORWARD, cuts)


def _mark_forward_by_calls(phase: Column, call: Column, step: Column) -> None:
    """Of the unknown stretches before a backward, those from the first call on."""
    unknown, backward = phase == _UNKNOWN_PHASE, phase == BACKWARD
    follows_backward = np.append(False, backward[:-1])
    run = np.cumsum(follows_backward | (np.diff(step, prepend=-1) != 0))
    begun = _count_from(_own_bounds(run)[0], unknown & (call != NOTHING)) > 0
    first, end = _own_bounds(step)
    so_far, all_of_step = _count_from(first, backward), _count_from(first, backward)[end - 1]
    phase[unknown & begun & ((so_far < all_of_step) | (all_of_step == 0))] = FORWARD


def _bounds(rising: Column, values: Column) -> tuple[Column, Column]:
    """Where each value begins in a rising column, and where it ends."""
    return np.searchsorted(rising, values, "left"), np.searchsorted(rising, values, "right")


def _own_bounds(rising: Column) -> tuple[Column, Column]:
    """Where the value of each row begins in the column, and where it ends."""
    edges = np.append(np.flatnonzero(np.diff(rising, prepend=rising[:1] - 1)), len(rising))
    sizes = np.diff(edges)
    return np.repeat(edges[:-1], sizes), np.repeat(edges[1:], sizes)


def _count_from(first: Column, mask: Column) -> Column:
    """How many rows are in the mask, from the row `first` up to and with each row."""
    counted: Column = np.append(0, np.cumsum(mask))
    return counted[1:] - counted[first]


def _take(
    phase: Column, own: Column, chain: HostChain, budget: float, kind: int, cuts: list[int]
) -> None:
    """Mark this much of the unknown time just before a step's backwards, shared by length."""
    runs = _runs(phase, own)
    total = sum(float(chain.duration[rows].sum()) for rows in runs)
    for rows in runs:
        duration = chain.duration[rows]
        share = budget * float(duration.sum()) / total if total else 0.0
        from_end = np.cumsum(duration[::-1])[::-1]
        phase[rows[from_end - duration / 2 <= share]] = kind
        across = (from_end > share) & (from_end - duration < share)
        left = share - (from_end - duration)[across]
        cuts.extend((chain.end[rows[across]] - left).astype(np.int64).tolist())


def _runs(phase: Column, own: Column) -> list[Column]:
    """The unknown stretches before each backward of a step."""
    phase = phase[own]
    backward = phase == BACKWARD
    begins = np.flatnonzero(backward & ~np.append(False, backward[:-1])).tolist() or [len(phase)]
    ends = np.flatnonzero(backward & ~np.append(backward[1:], False)) + 1
    return [
        own[first + np.flatnonzero(phase[first:end] == _UNKNOWN_PHASE)]
        for first, end in zip([0, *ends.tolist()], begins, strict=False)
    ]


_OPTIMIZES = re.compile(r"Optimizer\.(step|zero_grad)#")


@dataclass(frozen=True, slots=True)
class StretchLabels:
    """One entry a stretch."""

    phase: Column  # uint8, into STEP_PHASES
    operator: Column  # int32, host event: the innermost operator; NOTHING
    call: Column  # int32, host event: the outermost operator or node of autograd; NOTHING


def label_stretches(
    timeline: Timeline,
    chain: HostChain,
    step: Column,
    clocks: WindowClocks | None,
    cuts: list[int] | None = None,
) -> StretchLabels:
    """`step` is that of each stretch; `clocks` are the always-on ones, of each step in ns.

    None: forward begins with the first operator before a backward. `cuts` collects the times at
    which, by the clocks, a phase begins inside a stretch.
    """
    host, owner = timeline.host, chain.owner
    operators, nodes = is_operator(timeline), starts_with(timeline, AUTOGRAD_NODE)
    marked = operators | nodes
    outermost = marked & (nearest(host.parent, marked)[host.parent] == NOTHING)
    call = nearest(host.parent, outermost)[owner]
    phase = _known(timeline, chain, call, nodes)
    _end_optimizers(phase, call, step)
    _fill_backward(phase, call)
    _open_closures(timeline, chain, phase)
    _mark_forward(phase, call, chain, step, clocks, [] if cuts is None else cuts)
    phase[phase == _UNKNOWN_PHASE] = OTHER
    operator = nearest(host.parent, operators)[owner]
    return StretchLabels(phase, operator, _with_gaps(call, phase, step))


def _known(timeline: Timeline, chain: HostChain, call: Column, nodes: Column) -> Column:
    """What marks and operators tell by themselves."""
    host, owner = timeline.host, chain.owner
    phase = np.full(len(chain), _UNKNOWN_PHASE, np.uint8)
    loads = starts_with(timeline, "enumerate(DataLoader)")
    optimizes = names_match(timeline, host.name, _OPTIMIZES.match)
    copies = copies_towards(timeline, CopyDirection.HTOD) & (timeline.device.launch >= 0)
    uploads = call[np.isin(owner, timeline.device.launch[copies])]
    phase[(call != NOTHING) & np.isin(call, uploads)] = H2D
    phase[nearest(host.parent, optimizes)[owner] != NOTHING] = OPTIMIZER
    phase[nearest(host.parent, loads)[owner] != NOTHING] = DATA_WAIT
    helper = backward_threads(timeline)[chain.thread] & (chain.thread != chain.main)
    phase[(nearest(host.parent, nodes)[owner] != NOTHING) | helper] = BACKWARD
    return phase


def _end_optimizers(phase: Column, call: Column, step: Column) -> None:
    """A step ends inside its optimizer's mark: what is left of it begins the next step."""
    first, end = _own_bounds(step)
    rest = _count_from(first, (phase != OPTIMIZER) | (call != NOTHING))
    phase[(step > 0) & (rest == 0) & (rest[end - 1] > 0)] = OTHER


def _fill_backward(phase: Column, call: Column) -> None:
    """Gaps between two nodes of autograd are backward; what follows it up to the optimizer's step
    and computes (clipping gradients) is the optimizer's."""
    gap = (phase == _UNKNOWN_PHASE) & (call == NOTHING)
    last, following = _phases_around(phase, ~gap)
    phase[gap & (last == BACKWARD) & (following == BACKWARD)] = BACKWARD
    unknown = phase == _UNKNOWN_PHASE
    last, following = _phases_around(phase, ~unknown)
    clips = unknown & (call != NOTHING)
    phase[clips & (last == BACKWARD) & (following == OPTIMIZER)] = OPTIMIZER


def _phases_around(phase: Column, known: Column) -> tuple[Column, Column]:
    """Of each stretch, the phases of the last known one up to it and of the next; at either end
    of the chain both are of the same."""
    rows = np.flatnonzero(known)
    if not len(rows):
        return phase, phase
    before = np.cumsum(known) - 1
    after = np.minimum(before + 1, len(rows) - 1)
    return phase[rows[np.maximum(before, 0)]], phase[rows[after]]


def _open_closures(timeline: Timeline, chain: HostChain, phase: Column) -> None:
    """Where an optimizer calls a closure, forward lies inside its step, before the backward."""
    host = timeline.host
    steps = starts_with(timeline, "Optimizer.step#") & (host.kind == HostKind.ANNOTATION)
    begin, end = chain.at(host.start[steps]).tolist(), chain.at(host.end[steps]).tolist()
    for first, last in zip(begin, end, strict=True):
        inside = first + np.flatnonzero(phase[first : last + 1] == BACKWARD)
        if len(inside):
            part = phase[first : inside[-1] + 1]
            part[part == OPTIMIZER] = _UNKNOWN_PHASE


def _with_gaps(call: Column, phase: Column, step: Column) -> Column:
    """A gap belongs to the call after it in the same phase and step: Python on its way there."""
    calls = call != NOTHING
    called = np.flatnonzero(calls)
    if not len(called):
        return call
    found = np.cumsum(calls) - calls  # calls before each stretch
    following = called[np.minimum(found, len(called) - 1)]
    near = (found < len(called)) & (phase[following] == phase) & (step[following] == step)
    return np.where((call == NOTHING) & near, call[following], call)
