"""What lower precision and fused attention change in a window, by the roofline of each operator."""

import json
import re
from collections.abc import Iterable
from typing import Final

from stepscope.analyze.replay.changes import Change, scale_host
from stepscope.analyze.replay.known import (
    KnownProgram,
    Row,
    device_limits,
    exact_names_pattern,
    factors_by_operator,
    host_operator_rows,
    program_config,
    roofline_rows,
    scale_operators,
    steps_in_window,
    time_at_bound,
    trained_parameters,
)
from stepscope.analyze.replay.tasks import select_host

MATRIX_CATEGORIES: Final = ("matmul", "convolution", "attention", "recurrent")
AUTOCAST_CPU_OPERATORS: Final = (
    r"^aten::(mm|addmm|bmm|baddbmm|linear|mkldnn_convolution|convolution_backward)$"
)
"""Operators that autocast runs in bf16 on the processor."""
_STREAMING = ("pointwise", "pooling", "random")
_AMP_HOST = 1.2  # casts cost forward and backward about that much more host time (ResNet-50, H200)
_CAST_BYTES = 12  # of a parameter: read and written to be cast, its gradient too
_WORTH = 1.3  # times faster must bf16 surely be on a processor
_CPU_KEEPS = 0.25  # of an operator there: packing and casting


def amp_gain(value: str | None, known: KnownProgram) -> list[Change] | None:
    """Autocast: products at the rate of `value` and half the bytes, what streams beside them too.

    Softmax, layer norms and losses stay in fp32. None where no gain is to be had or known.
    """
    dtype = value or "bf16"
    if known.device == "cpu":
        return _amp_on_cpu(dtype, known)
    limits = device_limits(known)
    rate, memory = limits.flops_per_s.get(dtype), limits.bytes_per_s
    if rate is None or memory is None:
        return None
    rows = roofline_rows(known)
    in_images = _time(rows, "convolution") > _time(rows, "matmul")

    def new_time(row: Row) -> float | None:
        if row["dtype"] not in ("fp32", "tf32") or not row.get("bytes"):
            return None
        least = row["bytes"] / 2 / memory * 1e9
        if row["category"] in MATRIX_CATEGORIES:
            return time_at_bound(row, max(row["flops"] / rate * 1e9, least), 0.5)
        streams = row["category"] in _STREAMING or "batch_norm" in row["name"]
        kept = not in_images and re.search(r"::add_?$", row["name"])  # the residual stays fp32
        return time_at_bound(row, least, 0.5) if streams and not kept else None

    factors = factors_by_operator(rows, new_time)
    if not any(row["name"] in factors for row in rows if row["category"] in MATRIX_CATEGORIES):
        return None
    _add_casts(factors, rows, known, memory)
    change = scale_operators(factors)
    assert change is not None
    return [change, *(scale_host(select_host(phase=p), _AMP_HOST) for p in ("forward", "backward"))]


def tf32_gain(value: str | None, known: KnownProgram) -> list[Change] | None:
    """Products that are now done in fp32 at the rate of TF32; None where there are none."""
    limits = device_limits(known)
    rate, memory = limits.flops_per_s.get("tf32"), limits.bytes_per_s
    if value == "off" or known.device == "cpu" or rate is None or memory is None:
        return None

    def new_time(row: Row) -> float | None:
        if (
            row["dtype"] != "fp32"
            or row["category"] not in MATRIX_CATEGORIES
            or not row.get("bytes")
        ):
            return None
        return time_at_bound(row, max(row["flops"] / rate, row["bytes"] / memory) * 1e9, 0.8)

    change = scale_operators(factors_by_operator(roofline_rows(known), new_time))
    return None if change is None else [change]


def _amp_on_cpu(dtype: str, known: KnownProgram) -> list[Change] | None:
    """Only where `doctor` measured that this processor is surely faster in bf16."""
    rates = device_limits(known).flops_per_s
    fast, slow = rates.get(dtype), rates.get("fp32")
    if not fast or not slow or fast < _WORTH * slow or program_config(known).get("autocast"):
        return None
    names = {
        o["name"] for o in host_operator_rows(known) if re.search(AUTOCAST_CPU_OPERATORS, o["name"])
    }
    factor = _CPU_KEEPS + (1 - _CPU_KEEPS) * slow / fast
    return [scale_host(select_host(operator=exact_names_pattern(names)), factor)] if names else None


def _time(rows: list[Row], category: str) -> float:
    return float(sum(row["time_ns"] for row in rows if row["category"] == category))


def _add_casts(
    factors: dict[str, float], rows: list[Row], known: KnownProgram, memory: float
) -> None:
    """Casting parameters and gradients, spread over the products that need it."""
    trained = trained_parameters(known) or 0
    extra = trained * _CAST_BYTES / memory * 1e9 * steps_in_window(known)
    matrix = [row for row in rows if row["category"] in MATRIX_CATEGORIES]
    whole = sum(row["time_ns"] for row in matrix)
    for name in {row["name"] for row in matrix} if whole else ():
        factors[name] = factors.get(name, 1.0) + extra / whole


_PRODUCTS: Final = r"^aten::(bmm|baddbmm)$"
_SOFTMAX: Final = r"^aten::_softmax(_backward_data)?$"
_BETWEEN: Final = (
    r"^aten::(_softmax|_softmax_backward_data|masked_fill_?|native_dropout|native_dropout_backward"
    r"|dropout|mul_?|div_?|add_?|where|copy_|bernoulli_)$"
)
_SDPA_CPU_OPERATORS: Final = (
    r"^aten::(_softmax|_softmax_backward_data|masked_fill_?|native_dropout)$"
)
_FUSED_SHARE = 0.5  # of the rate of products: what fused attention reaches, a prior
_SCORES_LEFT = 0.03  # of the passes over the scores: they stay in registers
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
        for dims in input_dims(row)
        if len(dims) >= 3 and dims[-1] == dims[-2] >= _LEAST
    }
    widths = {dims[-1] for dims in scores}
    return [row for row in every if _over_scores(row, scores, widths)]


def sdpa_gain(value: str | None, known: KnownProgram) -> list[Change] | None:
    """Passes over the scores go away and the products run as one fused kernel."""
    if known.device == "cpu":
        return _sdpa_on_cpu(known)
    rates = device_limits(known).flops_per_s
    rows = score_rows(roofline_rows(known))
    ours = {(row["name"], row["shape"], row["dtype"]) for row in rows}

    def new_time(row: Row) -> float | None:
        if (row["name"], row["shape"], row["dtype"]) not in ours:
            return None
        now = float(row["time_ns"])
        if not re.search(_PRODUCTS, row["name"]):
            return now * _SCORES_LEFT
        rate = rates.get(row["dtype"])
        return min(now, row["flops"] / rate * 1e9 / _FUSED_SHARE) if rate else None

    change = scale_operators(factors_by_operator(roofline_rows(known), new_time))
    return None if change is None else [change]


def attention_written_out(known: KnownProgram) -> bool:
    """Whether the processor runs attention written out: two products to each softmax."""
    counts = {o["name"]: o["count"] for o in host_operator_rows(known)}
    softmax = counts.get("aten::_softmax", 0)
    return bool(softmax > 0 and counts.get("aten::bmm", 0) >= 2 * softmax)


def _sdpa_on_cpu(known: KnownProgram) -> list[Change] | None:
    if not attention_written_out(known):
        return None
    return [
        scale_host(select_host(operator=_SDPA_CPU_OPERATORS), _CPU_LEFT),
        scale_host(select_host(operator=_PRODUCTS), _CPU_PRODUCTS),
    ]


def _over_scores(row: Row, scores: set[tuple[int, ...]], widths: set[int]) -> bool:
    inputs = input_dims(row)
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


def input_dims(row: Row) -> list[list[int]]:
    """The dimensions of a row's inputs of two or more, as recorded; empty where unreadable."""
    try:
        dims = json.loads(row.get("shape") or "[]")
    except ValueError:
        return []
    whole = [d for d in dims if isinstance(d, list) and all(isinstance(n, int) for n in d)]
    return [d for d in whole if len(d) >= 2]
