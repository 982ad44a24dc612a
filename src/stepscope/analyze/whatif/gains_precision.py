"""Lower precision: autocast and TF32, by the roofline of each operator."""

import re
from typing import Final

from stepscope.analyze.whatif.changes import Change, scale_host
from stepscope.analyze.whatif.gains_factors import any_of, bounded, by_operator, scaled
from stepscope.analyze.whatif.gains_known import (
    Known,
    Row,
    ceilings,
    config,
    host_operators,
    parameters,
    shapes,
    steps,
)
from stepscope.analyze.whatif.select import host

MATRIX: Final = ("matmul", "convolution", "attention", "recurrent")
ON_CPU: Final = r"^aten::(mm|addmm|bmm|baddbmm|linear|mkldnn_convolution|convolution_backward)$"
"""Operators that autocast runs in bf16 on the processor."""
_STREAMING = ("pointwise", "pooling", "random")
_HOST = 1.2  # casts cost forward and backward about that much more host time (ResNet-50, H200)
_CAST_BYTES = 12  # of a parameter: read and written to be cast, its gradient too
_WORTH = 1.3  # times faster must bf16 surely be on a processor
_CPU_KEEPS = 0.25  # of an operator there: packing and casting


def amp(value: str | None, known: Known) -> list[Change] | None:
    """Autocast: products at the rate of `value` and half the bytes, what streams beside them too.

    Softmax, layer norms and losses stay in fp32. None where no gain is to be had or known.
    """
    dtype = value or "bf16"
    if known.device == "cpu":
        return _on_cpu(dtype, known)
    limits = ceilings(known)
    rate, memory = limits.flops_per_s.get(dtype), limits.bytes_per_s
    if rate is None or memory is None:
        return None
    rows = shapes(known)
    in_images = _time(rows, "convolution") > _time(rows, "matmul")

    def new_time(row: Row) -> float | None:
        if row["dtype"] not in ("fp32", "tf32") or not row.get("bytes"):
            return None
        least = row["bytes"] / 2 / memory * 1e9
        if row["category"] in MATRIX:
            return bounded(row, max(row["flops"] / rate * 1e9, least), 0.5)
        streams = row["category"] in _STREAMING or "batch_norm" in row["name"]
        kept = not in_images and re.search(r"::add_?$", row["name"])  # the residual stays fp32
        return bounded(row, least, 0.5) if streams and not kept else None

    factors = by_operator(rows, new_time)
    if not any(row["name"] in factors for row in rows if row["category"] in MATRIX):
        return None
    _add_casts(factors, rows, known, memory)
    change = scaled(factors)
    assert change is not None
    return [change, *(scale_host(host(phase=p), _HOST) for p in ("forward", "backward"))]


def tf32(value: str | None, known: Known) -> list[Change] | None:
    """Products that are now done in fp32 at the rate of TF32; None where there are none."""
    limits = ceilings(known)
    rate, memory = limits.flops_per_s.get("tf32"), limits.bytes_per_s
    if value == "off" or known.device == "cpu" or rate is None or memory is None:
        return None

    def new_time(row: Row) -> float | None:
        if row["dtype"] != "fp32" or row["category"] not in MATRIX or not row.get("bytes"):
            return None
        return bounded(row, max(row["flops"] / rate, row["bytes"] / memory) * 1e9, 0.8)

    change = scaled(by_operator(shapes(known), new_time))
    return None if change is None else [change]


def _on_cpu(dtype: str, known: Known) -> list[Change] | None:
    """Only where `doctor` measured that this processor is surely faster in bf16."""
    rates = ceilings(known).flops_per_s
    fast, slow = rates.get(dtype), rates.get("fp32")
    if not fast or not slow or fast < _WORTH * slow or config(known).get("autocast"):
        return None
    names = {o["name"] for o in host_operators(known) if re.search(ON_CPU, o["name"])}
    factor = _CPU_KEEPS + (1 - _CPU_KEEPS) * slow / fast
    return [scale_host(host(operator=any_of(names)), factor)] if names else None


def _time(rows: list[Row], category: str) -> float:
    return float(sum(row["time_ns"] for row in rows if row["category"] == category))


def _add_casts(factors: dict[str, float], rows: list[Row], known: Known, memory: float) -> None:
    """Casting parameters and gradients, spread over the products that need it."""
    trained = parameters(known) or 0
    extra = trained * _CAST_BYTES / memory * 1e9 * steps(known)
    matrix = [row for row in rows if row["category"] in MATRIX]
    whole = sum(row["time_ns"] for row in matrix)
    for name in {row["name"] for row in matrix} if whole else ():
        factors[name] = factors.get(name, 1.0) + extra / whole
