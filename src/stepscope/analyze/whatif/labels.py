"""Which phase each stretch of the host chain belongs to, as the always-on clocks divide a step."""

import re
from dataclasses import dataclass

import numpy as np

from stepscope.analyze.timeline.attribution import (
    BACKWARD,
    DATA_WAIT,
    H2D,
    OPTIMIZER,
    OTHER,
    is_operator,
    nearest,
)
from stepscope.analyze.timeline.copynames import read_copy_name
from stepscope.analyze.timeline.namematch import names_that
from stepscope.analyze.timeline.threads import backward_threads
from stepscope.analyze.whatif.chain import Chain
from stepscope.analyze.whatif.forward import UNKNOWN, Clocks, mark_forward
from stepscope.record.timeline import NOTHING, Column, DeviceKind, HostKind, Timeline

_NODE = "autograd::engine::evaluate_function"
_OPTIMIZES = re.compile(r"Optimizer\.(step|zero_grad)#")


@dataclass(frozen=True, slots=True)
class Labels:
    """One entry a stretch."""

    phase: Column  # uint8, into STEP_PHASES
    operator: Column  # int32, host event: the innermost operator; NOTHING
    call: Column  # int32, host event: the outermost operator or node of autograd; NOTHING


def label(
    timeline: Timeline,
    chain: Chain,
    step: Column,
    clocks: Clocks | None,
    cuts: list[int] | None = None,
) -> Labels:
    """`step` is that of each stretch; `clocks` are the always-on ones, of each step in ns.

    None: forward begins with the first operator before a backward. `cuts` collects the times at
    which, by the clocks, a phase begins inside a stretch.
    """
    host, owner = timeline.host, chain.owner
    operators = is_operator(timeline)
    nodes = names_that(timeline, host.name, lambda n: n.startswith(_NODE))
    innermost = nearest(host.parent, operators)
    marked = operators | nodes
    around = nearest(host.parent, marked)
    outermost = marked & (around[host.parent] == NOTHING)
    call = nearest(host.parent, outermost)[owner]
    phase = _known(timeline, chain, call, nodes)
    _end_optimizers(phase, call, step)
    _fill_backward(phase, call)
    _open_closures(timeline, chain, phase)
    mark_forward(phase, call, chain, step, clocks, [] if cuts is None else cuts)
    phase[phase == UNKNOWN] = OTHER
    return Labels(phase, innermost[owner], _with_gaps(call, phase, step))


def _known(timeline: Timeline, chain: Chain, call: Column, nodes: Column) -> Column:
    """What marks and operators tell by themselves."""
    host, owner = timeline.host, chain.owner
    phase = np.full(len(chain), UNKNOWN, np.uint8)
    loads = names_that(timeline, host.name, lambda n: n.startswith("enumerate(DataLoader)"))
    optimizes = names_that(timeline, host.name, _OPTIMIZES.match)
    uploads = call[np.isin(owner, _upload_calls(timeline))]
    phase[(call != NOTHING) & np.isin(call, uploads)] = H2D
    phase[nearest(host.parent, optimizes)[owner] != NOTHING] = OPTIMIZER
    phase[nearest(host.parent, loads)[owner] != NOTHING] = DATA_WAIT
    servant = backward_threads(timeline)[chain.thread] & (chain.thread != chain.main)
    phase[(nearest(host.parent, nodes)[owner] != NOTHING) | servant] = BACKWARD
    return phase


def _upload_calls(timeline: Timeline) -> Column:
    device = timeline.device
    copies = np.flatnonzero((device.kind == DeviceKind.COPY) & (device.launch >= 0))
    named = names_that(timeline, device.name[copies], lambda n: read_copy_name(n)[0] == "HtoD")
    return device.launch[copies[named]]


def _end_optimizers(phase: Column, call: Column, step: Column) -> None:
    """A step ends inside its optimizer's mark: what is left of it begins the next step."""
    for number in range(1, int(step.max(initial=-1)) + 1):
        own = np.flatnonzero(step == number)
        rest = (phase[own] != OPTIMIZER) | (call[own] != NOTHING)
        tail = own[: int(np.argmax(rest))] if rest.any() else own[:0]
        phase[tail] = OTHER


def _fill_backward(phase: Column, call: Column) -> None:
    """Gaps between two nodes of autograd are backward; what follows it up to the optimizer's step
    and computes (clipping gradients) is the optimizer's."""
    spoken = np.flatnonzero((phase != UNKNOWN) | (call != NOTHING))
    if not len(spoken):
        return
    before = np.searchsorted(spoken, np.arange(len(phase)), "right") - 1
    last = phase[spoken[np.maximum(before, 0)]]
    following = phase[spoken[np.minimum(before + 1, len(spoken) - 1)]]
    gap = (phase == UNKNOWN) & (call == NOTHING)
    phase[gap & (last == BACKWARD) & (following == BACKWARD)] = BACKWARD
    known = np.flatnonzero(phase != UNKNOWN)
    if not len(known):
        return
    before = np.searchsorted(known, np.arange(len(phase)), "right") - 1
    last = phase[known[np.maximum(before, 0)]]
    following = phase[known[np.minimum(before + 1, len(known) - 1)]]
    clips = (phase == UNKNOWN) & (call != NOTHING) & (before >= 0)
    phase[clips & (last == BACKWARD) & (following == OPTIMIZER)] = OPTIMIZER


def _open_closures(timeline: Timeline, chain: Chain, phase: Column) -> None:
    """Where an optimizer calls a closure, forward lies inside its step, before the backward."""
    host = timeline.host
    steps = names_that(timeline, host.name, lambda n: n.startswith("Optimizer.step#"))
    for event in np.flatnonzero(steps & (host.kind == HostKind.ANNOTATION)).tolist():
        first, last = chain.at(
            np.array([host.start[event], host.start[event] + host.duration[event]])
        )
        inside = first + np.flatnonzero(phase[first : last + 1] == BACKWARD)
        if len(inside):
            part = phase[first : inside[-1] + 1]
            part[part == OPTIMIZER] = UNKNOWN


def _with_gaps(call: Column, phase: Column, step: Column) -> Column:
    """A gap belongs to the call after it in the same phase and step: Python on its way there."""
    called = np.flatnonzero(call != NOTHING)
    if not len(called):
        return call
    found = np.searchsorted(called, np.arange(len(call)), "left")
    following = called[np.minimum(found, len(called) - 1)]
    near = (found < len(called)) & (phase[following] == phase) & (step[following] == step)
    return np.where((call == NOTHING) & near, call[following], call)
