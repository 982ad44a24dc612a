"""FLOPs and least bytes of matrix products; a multiplication and an addition are two FLOPs."""

from functools import partial
from math import prod
from typing import Final

from stepscope.analyze.timeline.flops_cost import Cost, Formula
from stepscope.analyze.timeline.flops_inputs import Dims, Inputs, Tensor, total_bytes


def product(batch: int, rows: int, inner: int, columns: int) -> int:
    """FLOPs of `batch` products of matrices."""
    return 2 * batch * rows * inner * columns


def _matmul(inputs: Inputs, left: int, right: int, transposed: bool = False) -> Cost | None:
    """A product of arguments `left` and `right`; all before `left` are added to the result."""
    a, b = inputs.tensor(left), inputs.tensor(right)
    if a is None or b is None or not a.dims or not b.dims:
        return None
    a_dims = a.dims if len(a.dims) > 1 else (1, *a.dims)
    b_dims = b.dims[::-1] if transposed else b.dims
    b_dims = b_dims if len(b_dims) > 1 else (*b_dims, 1)
    batch = _broadcast(a_dims[:-2], b_dims[:-2])
    if batch is None or a_dims[-1] != b_dims[-2]:
        return None
    rows, inner, columns = a_dims[-2], a_dims[-1], b_dims[-1]
    out = prod(batch) * rows * columns * _out_itemsize(a)
    added = [t for n in range(left) if (t := inputs.tensor(n))]
    flops = product(prod(batch), rows, inner, columns)
    return Cost("matmul", flops, a.bytes + b.bytes + total_bytes(added) + out, a.dtype, True)


def _out_itemsize(a: Tensor) -> int:
    # Products of 8-bit numbers are kept wider: 32-bit integers, 16-bit floats.
    return {"int8": 4, "uint8": 4, "fp8": 2}.get(a.dtype, a.itemsize)


def _broadcast(a: Dims, b: Dims) -> Dims | None:
    size = max(len(a), len(b))
    pairs = zip((1,) * (size - len(a)) + a, (1,) * (size - len(b)) + b, strict=True)
    out = []
    for m, n in pairs:
        if m != n and 1 not in (m, n):
            return None
        out.append(n if m == 1 else m)
    return tuple(out)


def _linear(inputs: Inputs) -> Cost | None:
    weight = inputs.tensor(1)
    cost = _matmul(inputs, 0, 1, transposed=True) if weight and len(weight.dims) == 2 else None
    bias = inputs.tensor(2)
    if cost is None or bias is None or cost.bytes is None:
        return cost
    return Cost(cost.kind, cost.flops, cost.bytes + bias.bytes, cost.dtype, True)


MATMULS: Final[dict[str, Formula]] = {
    "aten::mm": partial(_matmul, left=0, right=1),
    "aten::bmm": partial(_matmul, left=0, right=1),
    "aten::mv": partial(_matmul, left=0, right=1),
    "aten::dot": partial(_matmul, left=0, right=1),
    "aten::matmul": partial(_matmul, left=0, right=1),
    "aten::_scaled_mm": partial(_matmul, left=0, right=1),
    "aten::_int_mm": partial(_matmul, left=0, right=1),
    "aten::addmm": partial(_matmul, left=1, right=2),
    "aten::addmm_": partial(_matmul, left=1, right=2),
    "aten::_addmm_activation": partial(_matmul, left=1, right=2),
    "aten::addmv": partial(_matmul, left=1, right=2),
    "aten::baddbmm": partial(_matmul, left=1, right=2),
    "aten::baddbmm_": partial(_matmul, left=1, right=2),
    "aten::linear": _linear,
}
