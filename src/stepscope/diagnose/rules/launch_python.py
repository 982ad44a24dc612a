"""Launch rules about Python: loops over tensors, Python between the operators of forward, and code
in no phase of the step.
"""

import re
from collections.abc import Iterable
from pathlib import PurePath
from typing import Any, Final, NamedTuple

import numpy as np

from stepscope.analyze.replay.changes import merge_kernels, remove_host
from stepscope.analyze.replay.known import exact_names_pattern, is_pointwise
from stepscope.analyze.replay.tasks import select_host, select_kernels
from stepscope.analyze.run.host_code import OtherCode
from stepscope.diagnose.case import Case, in_ms, rule
from stepscope.diagnose.rules import facts
from stepscope.record.finding import (
    ChangeKind,
    Confidence,
    Effort,
    Evidence,
    Finding,
    Place,
    Predicted,
)
from stepscope.record.frames import is_program
from stepscope.record.kinds import SampleWork
from stepscope.record.row_log import STEP_PHASES, UNEXPLAINED

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


_LEADS = 0.4  # of the time in no phase: a piece of code that takes less does not stand for it
_LONGEST_NAME = 34
_SURE_SAMPLES = 50
_BATCHES = re.compile(
    r"(?i)batch|sample|load|collate|token|augment|transform|fetch|dataset|crop|imread|Image\.open"
)
_MAKES = {
    SampleWork.READING: "Reading takes most of it: keep the data in memory or on a local disk, in "
    "few large files.",
    SampleWork.DECODING: "Decoding takes most of it: decode once and keep the arrays.",
    SampleWork.AUGMENTING: "Transforms take most of it: do on whole batches what can be.",
}


@rule("launch.other_code", "Code outside loading, model and optimizer takes much of the step.")
def other_code(case: Case) -> Iterable[Finding]:
    """Code in no phase takes 20% of the step, waits for the device at known lines left out."""
    share = _share_in_no_phase(case)
    if case.show is None or share <= UNEXPLAINED:
        return
    sampled = case.show.other_time
    code = sampled.code if sampled is not None else []
    if not code or sampled is None or share * (1 - sampled.around) <= UNEXPLAINED:
        yield _not_named(case, share)
        return
    first = code[0]
    alone = first.share >= _LEADS
    source = case.source(first.file, first.line) or ""
    batches = bool(first.works or _BATCHES.search(first.function or source))
    called = f", called at line {first.called_at}," if first.called_at else ""
    part = f"Most of that is line {first.line}" if first.first_line != first.last_line else ""
    through = f"{' in' if part else 'Most of that is'} {first.calls}()" if first.calls else ""
    yield Finding(
        id=other_code.id,
        title=f"{share * first.share:.0%} of the step is {_name(first)}"
        if alone
        else f"{share:.0%} of the step is code in no phase",
        why=f"{_name(first)}{called} takes {in_ms(share * first.share * case.step_ms)} ms of each "
        "step; loading, model and optimizer wait meanwhile."
        + (f" {part}{through}." if part or through else ""),
        advice=_advice(case, first, batches),
        share=share * first.share if alone else share,
        evidence=(
            Evidence("code in no phase", 100 * share, "% of the step"),
            *(Evidence(_name(one), 100 * share * one.share, "% of the step") for one in code),
            Evidence("samples", sampled.samples),
        ),
        where=_places(one for one in code if one is first or share * one.share >= _LEAST_LOOP),
        kind=ChangeKind.NUMERIC,
        confidence=Confidence.HIGH
        if alone and sampled.samples * sampled.share >= _SURE_SAMPLES
        else Confidence.MEDIUM,
    )


def _share_in_no_phase(case: Case) -> float:
    """Of the step. Waits count as far as the lines that wait are not known."""
    show = case.show
    if show is None:
        return 0.0
    other, host = case.phases.get("other", 0.0), show.phases_host_ms or {}
    if show.phases_seen_by == "host" and host:
        waits = max(0.0, other - host.get("other", 0.0))
        named = sum(sync.lost_ms for sync in show.syncs) / max(1, case.run_steps)
        other -= min(waits, named)
    return case.step_share(other)


def _name(code: OtherCode) -> str:
    """`get_batch()`, or `train.py:9–14` for lines of the loop."""
    if code.function and not code.function.startswith("<"):
        return f"{code.function[:_LONGEST_NAME]}()"
    lines = f"{code.first_line}"
    if code.last_line != code.first_line:
        lines += f"–{code.last_line}"
    return f"{PurePath(code.file).name[-_LONGEST_NAME:]}:{lines}"


def _places(code: Iterable[OtherCode]) -> tuple[Place, ...]:
    """The costliest line of each."""
    return tuple(dict.fromkeys(Place(one.file, one.line) for one in code))


def _advice(case: Case, code: OtherCode, batches: bool) -> str:
    if not batches:
        return (
            "Vectorise its loops (one operation on a whole tensor or array), keep what does not "
            "change between steps, and do every N steps what need not be done in each, such as "
            "metrics and logging."
        )
    most = max(code.works, key=lambda work: code.works[work], default=None)
    where = "the dataset or collate_fn" if case.loaders else "the `__getitem__` of a Dataset"
    return " ".join(
        [
            f"If it makes batches, move it into {where}: a DataLoader with workers runs it while "
            "the step computes.",
            *([_MAKES[most]] if most is not None else []),
            "Vectorise its loops; compute once what is the same in every epoch.",
        ]
    )


def _not_named(case: Case, share: float) -> Finding:
    """It is torch's own work around phases, or was not sampled: the program was too short or
    profiled itself, or the steps were a trial's, or those of an earlier version."""
    hot, sampled = (case.show.host_code, case.show.other_time) if case.show else (None, None)
    lines = [
        line for line in (hot.lines if hot else ()) if line.own_s > 0 and is_program(line.file)
    ]
    if sampled is not None and sampled.around > 0:
        why = "Most of it is torch's own work around backward and the optimizer's step: the step "
        why += "is too short to hide it."
        advice = "Do more in each step: a larger batch, or fewer and larger parameters."
    else:
        why = "It is neither loading, copying, model nor optimizer. Which line it is was not "
        why += "sampled: that takes a few plain steps after the first ones."
        advice = "The lines below took most time of the whole run."
        if not lines:
            advice = "Run for more steps, without a profiler of its own in the program; or sample "
            advice += "the whole run: `stepscope run --python`."
    return Finding(
        id=other_code.id,
        title=f"{share:.0%} of the step is code in no phase",
        why=why,
        advice=advice,
        share=share,
        evidence=(Evidence("code in no phase", 100 * share, "% of the step"),),
        where=tuple(Place(line.file, line.line) for line in lines[:3]),
        effort=Effort.NONE,
        kind=ChangeKind.NONE,
        confidence=Confidence.LOW,
    )
