"""Attention written out, replaced by the fused one."""

import json
import re
from collections.abc import Iterable
from typing import Final

from stepscope.analyze.whatif.changes import Change, scale_host
from stepscope.analyze.whatif.gains_factors import by_operator, scaled
from stepscope.analyze.whatif.gains_known import Known, Row, ceilings, host_operators, shapes
from stepscope.analyze.whatif.select import host

_PRODUCTS: Final = r"^aten::(bmm|baddbmm)$"
_SOFTMAX: Final = r"^aten::_softmax(_backward_data)?$"
_BETWEEN: Final = (
    r"^aten::(_softmax|_softmax_backward_data|masked_fill_?|native_dropout|native_dropout_backward"
    r"|dropout|mul_?|div_?|add_?|where|copy_|bernoulli_)$"
)
_ON_CPU: Final = r"^aten::(_softmax|_softmax_backward_data|masked_fill_?|native_dropout)$"
_FUSED = 0.5  # of the rate of products: what fused attention reaches, a prior
_LEFT = 0.03  # of the passes over the scores: they stay in registers
_CPU_LEFT = 0.35
_CPU_PRODUCTS = 0.9
_LEAST = 64


def score_rows(rows: Iterable[Row]) -> list[Row]:
    """Rows over attention's scores, squares at least 64 wide that a softmax is taken of."""
    every = list(rows)
    scores = {
        tuple(dims)
        for row in every
        if re.search(_SOFTMAX, row["name"])
        for dims in tensors(row)
        if len(dims) >= 3 and dims[-1] == dims[-2] >= _LEAST
    }
    widths = {dims[-1] for dims in scores}
    return [row for row in every if _over_scores(row, scores, widths)]


def sdpa(value: str | None, known: Known) -> list[Change] | None:
    """Passes over the scores go away and the products run as one fused kernel."""
    if known.device == "cpu":
        return _on_cpu(known)
    rates = ceilings(known).flops_per_s
    rows = score_rows(shapes(known))
    ours = {(row["name"], row["shape"], row["dtype"]) for row in rows}

    def new_time(row: Row) -> float | None:
        if (row["name"], row["shape"], row["dtype"]) not in ours:
            return None
        now = float(row["time_ns"])
        if not re.search(_PRODUCTS, row["name"]):
            return now * _LEFT
        rate = rates.get(row["dtype"])
        return min(now, row["flops"] / rate * 1e9 / _FUSED) if rate else None

    change = scaled(by_operator(shapes(known), new_time))
    return None if change is None else [change]


def written_out(known: Known) -> bool:
    """Whether the processor runs attention written out: two products to each softmax."""
    counts = {o["name"]: o["count"] for o in host_operators(known)}
    softmax = counts.get("aten::_softmax", 0)
    return bool(softmax > 0 and counts.get("aten::bmm", 0) >= 2 * softmax)


def _on_cpu(known: Known) -> list[Change] | None:
    if not written_out(known):
        return None
    return [
        scale_host(host(operator=_ON_CPU), _CPU_LEFT),
        scale_host(host(operator=_PRODUCTS), _CPU_PRODUCTS),
    ]


def _over_scores(row: Row, scores: set[tuple[int, ...]], widths: set[int]) -> bool:
    inputs = tensors(row)
    if re.search(_PRODUCTS, row["name"]):
        return any(dims[-1] == dims[-2] and dims[-1] in widths for dims in inputs[-2:]) or (
            _makes_square(inputs[-2:], widths)
        )
    return bool(re.search(_BETWEEN, row["name"])) and any(tuple(d) in scores for d in inputs)


def _makes_square(inputs: list[list[int]], widths: set[int]) -> bool:
    """A product of [.., T, d] with [.., d, T]."""
    if len(inputs) < 2:
        return False
    left, right = inputs
    return left[-2] == right[-1] and left[-2] in widths


def tensors(row: Row) -> list[list[int]]:
    """The dimensions of a row's inputs of two or more, as recorded; empty where unreadable."""
    try:
        dims = json.loads(row.get("shape") or "[]")
    except ValueError:
        return []
    whole = [d for d in dims if isinstance(d, list) and all(isinstance(n, int) for n in d)]
    return [d for d in whole if len(d) >= 2]
