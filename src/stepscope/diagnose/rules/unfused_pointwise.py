"""Chains of pointwise operators, each a pass over memory of its own."""

from collections.abc import Iterable
from typing import Any

from stepscope.analyze.whatif.changes import fuse_pointwise
from stepscope.analyze.whatif.gains import change_for
from stepscope.analyze.whatif.gains_launch import is_pointwise
from stepscope.diagnose.case import Case, Rule, in_ms
from stepscope.diagnose.rules._kernels import MATRIX, category_ms, count_of, gain, heaviest, in_vain
from stepscope.diagnose.rules._step import (
    compiled,
    operators,
    part,
    per_step,
    recorded_step_ms,
    sites,
    steps,
)
from stepscope.record.finding import Evidence, Finding, FixRef, Place

_LEAST = 0.15
_CHAIN = 3.0  # pointwise operators to each product: layers have one or two
_PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::convolution")
_OF_ADAM = ("aten::sqrt", "aten::div")


def _unfused_pointwise(case: Case) -> Iterable[Finding]:
    """Where they take 15% of the step, three or more to each product, and nothing is compiled."""
    if compiled(case):
        return
    spent, count, products, where = _on_cpu(case) if case.device == "cpu" else _on_gpu(case)
    if part(case, spent) < _LEAST or count < _CHAIN * max(products, 1.0):
        return
    changes = change_for("compile", "default", case) if case.device == "cpu" else [fuse_pointwise()]
    words = f"{in_ms(spent)} ms of chains become one read and one write each"
    predicted = gain(case, changes, words, 0.4)
    if in_vain(case, changes, predicted):
        return
    yield Finding(
        id=UNFUSED_POINTWISE.id,
        title="Chains of pointwise operators are not fused",
        why=(
            f"{count:,.0f} pointwise operators a step take {part(case, spent):.0%} of it: each "
            "reads its input from memory and writes its result back."
        ),
        advice="Compile the model (torch.compile), or use the fused operator (gelu, silu, …).",
        share=part(case, spent),
        evidence=(
            Evidence("pointwise", spent, "ms"),
            Evidence("pointwise operators per step", count),
            Evidence("products per step", products),
        ),
        where=(*sites(case, "forward")[:1], *where),
        predicted=predicted,
        fix=FixRef("compile", "default"),
        effort="one line",
        kind="numeric",
        confidence="medium",
    )


UNFUSED_POINTWISE = Rule(
    id="compute.unfused_pointwise",
    cause="Chains of pointwise operators, each a pass over memory of its own.",
    find=_unfused_pointwise,
)


def _on_gpu(case: Case) -> tuple[float, float, float, tuple[Place, ...]]:
    where = heaviest(case, lambda k: k["category"] == "pointwise", 2)
    return (
        category_ms(case, "pointwise"),
        count_of(case, "pointwise"),
        count_of(case, *MATRIX),
        where,
    )


def _on_cpu(case: Case) -> tuple[float, float, float, tuple[Place, ...]]:
    """Of the program's own operators: those in place, and Adam's, belong to the optimizer."""
    known = operators(case)
    adam = any(o["name"] == "aten::addcdiv_" for o in known)
    ours = [o for o in known if is_pointwise(o["name"]) and not _optimizers(o, adam)]
    recorded = recorded_step_ms(case)
    share = per_step(case, sum(o["self_ns"] for o in ours)) / recorded if recorded else 0.0
    count = max(1, steps(case))
    products = sum(o["count"] for o in known if o["name"] in _PRODUCTS) / count
    where = tuple(Place(operator=o["name"]) for o in ours[:2])
    return share * case.step_ms, sum(o["count"] for o in ours) / count, products, where


def _optimizers(operator: Any, adam: bool) -> bool:
    name = operator["name"]
    return name.endswith("_") or (adam and name in _OF_ADAM)
