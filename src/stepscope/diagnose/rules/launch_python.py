"""Launch rules about Python: loops over tensors, and Python between the operators of forward."""

import re
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import numpy as np

from stepscope.analyze.replay.changes import merge_kernels, remove_host
from stepscope.analyze.replay.known import exact_names_pattern, is_pointwise
from stepscope.analyze.replay.tasks import select_host, select_kernels
from stepscope.diagnose.case import Case, rule
from stepscope.diagnose.rules import facts
from stepscope.record.finding import ChangeKind, Confidence, Evidence, Finding, Place, Predicted
from stepscope.record.row_log import STEP_PHASES

_LOOP_PHASES: Final = ("h2d", "forward", "backward", "other")
"""Phases: a loader and an optimizer that go through things one by one have rules of their own."""
_UNCOMPILED: Final = ("h2d", "other")  # the phases whose loops are the program's, once it compiles


class _Called(NamedTuple):
    """An operator's calls in these phases."""

    name: str
    calls: float
    self_ns: float


def _own_operators(case: Case) -> list[_Called]:
    """The host's operators with most self time, counting only these phases.

    Without a window that shows phases, all their calls count.
    """
    shares: dict[str, float] = {}
    tasks = getattr(case.model, "tasks", None)
    if tasks is not None:
        chain, size = tasks.host, len(tasks.names)
        known = chain.operator >= 0
        phases = _UNCOMPILED if facts.is_compiled(case) else _LOOP_PHASES
        ours = known & np.isin(chain.phase, [STEP_PHASES.index(phase) for phase in phases])
        whole = np.bincount(chain.operator[known], minlength=size)
        inside = np.bincount(chain.operator[ours], minlength=size)
        shares = {
            tasks.names[n]: float(inside[n] / whole[n]) for n in np.flatnonzero(whole).tolist()
        }
    found = [(one, shares.get(one.name, 1.0)) for one in facts.operators(case)]
    return [_Called(o.name, share * o.count, share * o.self_ns) for o, share in found if share > 0]


_INDEXING = re.compile(r"^aten::(select|slice|narrow|unbind|index)$")
_LEAST_INDEXING = 50
_INDEXING_SHARE = 0.04  # of all operators called
_LEAST_ANY = 1000
_TINY_NS = 60_000
_SMALL_NS = 20_000
_OF_THE_LOOP = 0.25  # of the loop's iterations: operators called about that often belong to it
_LEAST_LOOP = 0.05
_LOOP_REMOVED = 0.9


@rule(
    "launch.python_loops",
    "Python loops over a tensor: many tiny operators instead of a few large ones.",
)
def python_loops(case: Case) -> Iterable[Finding]:
    """Tensors are indexed, or one small operator is called, hundreds of times per step."""
    rounds = _rounds(case)
    if not rounds:
        return
    steps = max(1, case.recorded_steps)
    tiny = [
        one
        for one in _own_operators(case)
        if one.calls / steps >= _OF_THE_LOOP * rounds and one.self_ns < _TINY_NS * one.calls
    ]
    calls = sum(o.calls for o in tiny) / steps
    inside = case.per_step(sum(o.self_ns for o in tiny))
    share_of_calls = min(1.0, calls / max(facts.operator_calls(case), 1.0))
    spent = inside + facts.python_ms(case) * share_of_calls
    # Loops in the optimizer have their own rule.
    outside = 1 - case.step_share(case.phases.get("optimizer", 0.0))
    share = min(outside, spent / case.recorded_ms) if case.recorded_ms else 0.0
    if share < _LEAST_LOOP:
        return
    names = [o.name for o in tiny]
    reason = f"{calls:,.0f} tiny operators become a few on whole tensors"
    predicted = facts.predict_gain(case, _loop_changes(names, share_of_calls), reason, 0.4)
    yield Finding(
        id=python_loops.id,
        title="A Python loop processes a tensor element by element",
        why=f"{calls:,.0f} tiny operators per step in a loop of about {rounds:,.0f} iterations: "
        "each costs the host microseconds, however little it computes.",
        advice="Vectorise the loop: index once, stack or batch what it iterates over, and reduce "
        "along a dimension.",
        share=share,
        evidence=(
            Evidence("tiny operators per step", calls),
            Evidence("share of the step", 100 * share, "%"),
            Evidence("mean operator", 1e3 * inside / max(calls, 1.0), "µs"),
        ),
        where=_loop_lines(case) or (Place(operator=names[0]),),
        predicted=predicted,
        kind=ChangeKind.NUMERIC,
        confidence=Confidence.MEDIUM,
    )


def _rounds(case: Case) -> float:
    """Iterations of the loop per step; 0 if nothing looks like a loop."""
    count, called = max(1, case.recorded_steps), facts.operator_calls(case)
    rounds = [0.0]
    for one in _own_operators(case):
        times, each = one.calls / count, one.self_ns / max(one.calls, 1e-9)
        indexing = _INDEXING.match(one.name) and times >= _LEAST_INDEXING
        # The program's arithmetic: no in-place operators, which optimizers use, and no copies.
        own = is_pointwise(one.name) and not one.name.endswith("_")
        many = times >= _LEAST_ANY and own and each < _SMALL_NS
        if many or (indexing and times >= _INDEXING_SHARE * called):
            rounds.append(times)
    return max(rounds)


def _loop_changes(names: list[str], share: float) -> list[Any]:
    pattern = exact_names_pattern(names)
    found: list[Any] = []
    for phase in _LOOP_PHASES:
        between = select_host(*facts.PYTHON_STRETCHES, phase=phase)
        found += [
            merge_kernels(select_kernels(operator=pattern, phase=phase)),
            remove_host(select_host(operator=pattern, phase=phase), _LOOP_REMOVED),
            remove_host(between, _LOOP_REMOVED * share),
        ]
    return found


def _loop_lines(case: Case) -> tuple[Place, ...]:
    """Lines that launch very many short kernels, from the window with stacks; without a device, the
    function with most Python self time."""
    stacks = case.show.timeline_stacks if case.show else None
    lines = stacks.by.line if stacks else case.trace.by.line if case.trace else []
    count = stacks.steps if stacks else max(1, case.recorded_steps)
    many = [x for x in lines if x.count / count >= 100 and x.mean_ns < 1e4]
    found = [facts.place_of_frame(x.name) for x in sorted(many, key=lambda x: -x.count)]
    launching = tuple(p for p in found if p is not None)[:2]
    return launching or facts.python_hotspots(case, 1) or facts.sites(case, "forward")


_LEAST_PYTHON = 0.1
_LEAST_IN_FORWARD = 0.3  # of the host's time must be in forward
_PER_CALL_US = 10.0  # of Python per operator; an eager layer needs 2 to 6
_PYTHON_REMOVED = 0.9


@rule("launch.python_heavy_forward", "Python between the operators of forward slows the step.")
def python_heavy_forward(case: Case) -> Iterable[Finding]:
    """Python between forward's operators takes 10% of the step, far more than calling them."""
    share, predicted = _python_share(case)
    python, calls = share * case.step_ms, max(facts.operator_calls(case), 1.0)
    if share < _LEAST_PYTHON or 1e3 * python < _PER_CALL_US * calls or not _in_forward(case):
        return
    yield Finding(
        id=python_heavy_forward.id,
        title="Python code in forward slows the step",
        why=f"{share:.0%} of the step is Python between {calls:,.0f} operators; nothing computes "
        "meanwhile.",
        advice="Move what does not depend on the batch out of forward (tables, masks, "
        "configuration) and vectorise the rest; `run --python` names the functions.",
        share=share,
        evidence=(
            Evidence("Python between operators", python, "ms"),
            Evidence("operators per step", calls),
            Evidence("Python per operator", 1e3 * python / calls, "µs"),
        ),
        where=facts.python_hotspots(case) or facts.sites(case, "forward"),
        predicted=predicted,
        confidence=Confidence.MEDIUM,
    )


def _python_share(case: Case) -> tuple[float, Predicted | None]:
    """Its share of the bare step, by replay; without a model, as recorded."""
    if case.model is None:
        return case.recorded_share(facts.python_ms(case)), None
    between = select_host(*facts.PYTHON_STRETCHES, phase="forward")
    if case.model.host_share(between) < _LEAST_PYTHON / 2:  # a replay gains at most about this
        return 0.0, None
    reason = "no Python between forward's operators"
    predicted = facts.predict_gain(case, [remove_host(between, _PYTHON_REMOVED)], reason, 0.4)
    saved = 1 - 1 / predicted.speedup if predicted is not None else 0.0
    return min(1.0, saved / _PYTHON_REMOVED), predicted


def _in_forward(case: Case) -> bool:
    """Whether it is in forward: a run's own clocks know, a trace alone does not."""
    phases = case.show.phases_host_ms if case.show else None
    if not phases:
        return case.show is None
    computing = sum(phases.get(p) or 0.0 for p in facts.COMPUTE_PHASES)
    return (phases.get("forward") or 0.0) >= _LEAST_IN_FORWARD * computing > 0
