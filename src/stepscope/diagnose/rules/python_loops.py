"""Loops over a tensor's elements: many tiny operators instead of a few large ones."""

import re
from collections.abc import Iterable
from typing import Any

from stepscope.analyze.whatif.changes import merge_kernels, remove_host
from stepscope.analyze.whatif.gains_factors import any_of
from stepscope.analyze.whatif.gains_launch import is_pointwise
from stepscope.analyze.whatif.select import host, kernels
from stepscope.analyze.whatif.tasks import Did
from stepscope.diagnose.case import Case, Rule
from stepscope.diagnose.rules._kernels import gain
from stepscope.diagnose.rules._loops import LOOPS, own_operators
from stepscope.diagnose.rules._step import (
    functions,
    operator_calls,
    part,
    per_step,
    place_of,
    python_ms,
    sites,
    steps,
)
from stepscope.record.finding import Evidence, Finding, Place

_INDEXING = re.compile(r"^aten::(select|slice|narrow|unbind|index)$")
_LEAST_INDEXING = 50
_INDEXING_SHARE = 0.04  # of all operators called
_LEAST_ANY = 1000
_TINY_NS = 60_000
_SMALL_NS = 20_000
_OF_THE_LOOP = 0.25  # as often as the loop goes round: what belongs to it
_LEAST = 0.05
_REMOVED = 0.9


def _python_loops(case: Case) -> Iterable[Finding]:
    """Where tensors are indexed, or the same small operator called, hundreds of times a step."""
    rounds = _rounds(case)
    if not rounds:
        return
    tiny = [o for o in own_operators(case) if _belongs(case, o, rounds)]
    calls = sum(o["count"] for o in tiny) / max(1, steps(case))
    recorded = (case.trace or {}).get("steps", {}).get("mean_ms") or 0.0
    inside = per_step(case, sum(o["self_ns"] for o in tiny))
    share_of_calls = min(1.0, calls / max(operator_calls(case), 1.0))
    spent = inside + python_ms(case) * share_of_calls
    share = min(_outside(case), spent / recorded) if recorded else 0.0
    if share < _LEAST:
        return
    names = [o["name"] for o in tiny]
    predicted = gain(case, _changes(names, share_of_calls), _words(calls), 0.4)
    yield Finding(
        id=PYTHON_LOOPS.id,
        title="A Python loop works through a tensor piece by piece",
        why=(
            f"{calls:,.0f} tiny operators a step, in a loop of about {rounds:,.0f} rounds: each "
            "costs the host microseconds, whatever little it computes."
        ),
        advice=(
            "Write the loop as operations on whole tensors: index once, stack or batch what it "
            "goes through, and reduce along a dimension."
        ),
        share=share,
        evidence=(
            Evidence("tiny operators per step", calls),
            Evidence("their part of the step", 100 * share, "%"),
            Evidence("mean of each", 1e3 * inside / max(calls, 1.0), "µs"),
        ),
        where=_where(case) or (Place(operator=names[0]),),
        predicted=predicted,
        effort="some lines",
        kind="numeric",
        confidence="medium",
    )


PYTHON_LOOPS = Rule(
    id="launch.python_loops",
    cause="Loops over a tensor's elements: many tiny operators instead of a few large ones.",
    find=_python_loops,
)


def _rounds(case: Case) -> float:
    """How often a step goes round the loop; 0 where nothing looks like one."""
    count, called = max(1, steps(case)), operator_calls(case)
    rounds = [0.0]
    for one in own_operators(case):
        times, each = one["count"] / count, one["self_ns"] / max(one["count"], 1e-9)
        indexing = _INDEXING.match(one["name"]) and times >= _LEAST_INDEXING
        many = times >= _LEAST_ANY and _is_own(one["name"]) and each < _SMALL_NS
        if many or (indexing and times >= _INDEXING_SHARE * called):
            rounds.append(times)
    return max(rounds)


def _is_own(name: str) -> bool:
    """Arithmetic of the program's: not in place, as optimizers do it, and no copy."""
    return is_pointwise(name) and not name.endswith("_")


def _belongs(case: Case, one: Any, rounds: float) -> bool:
    often = one["count"] / max(1, steps(case)) >= _OF_THE_LOOP * rounds
    return bool(often and one["self_ns"] < _TINY_NS * one["count"])


def _changes(names: list[str], share: float) -> list[Any]:
    pattern = any_of(names)
    between = (Did.GAP, Did.PYTHON, Did.ANNOTATION)
    found: list[Any] = []
    for phase in LOOPS:
        found += [
            merge_kernels(kernels(operator=pattern, phase=phase)),
            remove_host(host(operator=pattern, phase=phase), _REMOVED),
            remove_host(host(*between, phase=phase), _REMOVED * share),
        ]
    return found


def _outside(case: Case) -> float:
    """The share of the step that is not the optimizer's: loops there are its own rule's."""
    return 1 - part(case, case.phases.get("optimizer", 0.0))


def _words(calls: float) -> str:
    return f"{calls:,.0f} tiny operators a step become a few over whole tensors"


def _where(case: Case) -> tuple[Place, ...]:
    """Lines by their kernels; without a device the function whose own Python takes longest."""
    return _places(case) or functions(case, 1) or sites(case, "forward")


def _places(case: Case) -> tuple[Place, ...]:
    """Lines that launch very many short kernels, from the window with stacks."""
    stacks = (case.show or {}).get("timeline_stacks") or {}
    lines = (stacks.get("by") or (case.trace or {}).get("by") or {}).get("line") or []
    count = stacks.get("steps") or max(1, steps(case))
    many = [x for x in lines if x["count"] / count >= 100 and x["mean_ns"] < 1e4]
    found = [place_of(x["name"]) for x in sorted(many, key=lambda x: -x["count"])]
    return tuple(p for p in found if p is not None)[:2]
