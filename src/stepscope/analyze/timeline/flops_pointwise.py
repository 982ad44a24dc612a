"""FLOPs and least bytes of pointwise operators, reductions, copies and fills."""

from functools import partial
from math import prod
from typing import Final

from stepscope.analyze.timeline.flops_cost import Cost, Formula
from stepscope.analyze.timeline.flops_inputs import FLOATING, Dims, Inputs, Tensor, total_bytes


def first_dtype(tensors: list[Tensor]) -> str:
    """The dtype of the first floating tensor, else of the first."""
    floating = [t.dtype for t in tensors if t.dtype in FLOATING]
    return floating[0] if floating else tensors[0].dtype


def through(inputs: Inputs, kind: str, each: int, like: int = 0, extra: int = 0) -> Cost | None:
    """Reads all its tensors and writes one like argument `like`, and `extra` bytes an element."""
    model, tensors = inputs.tensor(like), inputs.tensors
    if model is None:
        return None
    written = model.elements * (model.itemsize + extra)
    return Cost(kind, each * model.elements, total_bytes(tensors) + written, first_dtype(tensors))


def _pointwise(inputs: Inputs, in_place: bool, answers: bool = False, each: int = 1) -> Cost | None:
    """Broadcasts its tensors; the result has the widest dtype of those that have dimensions."""
    tensors = inputs.tensors
    if not tensors:
        return None
    out: Dims = tensors[0].dims if in_place else ()
    if not in_place:
        rank = max(len(t.dims) for t in tensors)
        padded = [(1,) * (rank - len(t.dims)) + t.dims for t in tensors]
        if any(len({d for d in sides if d != 1}) > 1 for sides in zip(*padded, strict=True)):
            return None
        out = tuple(0 if 0 in sides else max(sides) for sides in zip(*padded, strict=True))
    shaped = [t for t in tensors if t.dims] or tensors
    itemsize = 1 if answers else (tensors[:1] if in_place else shaped)[0].itemsize
    if not in_place and not answers:
        itemsize = max(t.itemsize for t in shaped)
    elements = prod(out)
    return Cost(
        "pointwise",
        each * elements,
        total_bytes(tensors) + elements * itemsize,
        first_dtype(tensors),
    )


def _reduction(inputs: Inputs, kind: str = "reduction", each: int = 1) -> Cost | None:
    """Reads one tensor, writes what is left of it; without dimensions given, one element."""
    x = inputs.tensor(0)
    if x is None:
        return None
    dims = inputs.value(1)
    dims = [dims] if type(dims) is int else dims
    rank = len(x.dims)
    if not isinstance(dims, list) or not all(type(d) is int and -rank <= d < rank for d in dims):
        dims = []
    gone = {d % rank for d in dims} or set(range(rank))
    left = prod(size for n, size in enumerate(x.dims) if n not in gone)
    return Cost(kind, each * x.elements, x.bytes + left * x.itemsize, x.dtype)


def _copy(inputs: Inputs) -> Cost | None:
    into, source = inputs.tensor(0), inputs.tensor(1)
    if into is None or source is None:
        return None
    return Cost("copy", 0, source.bytes + into.elements * into.itemsize, into.dtype)


def _fill(inputs: Inputs) -> Cost | None:
    into = inputs.tensor(0)
    if into is None:
        return None
    return Cost("pointwise", 0, into.elements * into.itemsize, into.dtype)


_UNARY: Final = (
    "abs", "neg", "exp", "log", "log2", "log1p", "sqrt", "rsqrt", "reciprocal", "sin", "cos",
    "tanh", "sigmoid", "relu", "silu", "gelu", "erf", "floor", "ceil", "round", "sign", "clamp",
    "clamp_min", "clamp_max", "hardtanh", "hardswish", "hardsigmoid", "leaky_relu", "elu",
    "softplus", "mish", "logical_not", "bitwise_not", "square", "pow", "threshold", "triu",
    "tril", "nan_to_num", "expm1",
)  # fmt: skip
_BINARY: Final = (
    "add", "sub", "mul", "div", "rsub", "true_divide", "remainder", "fmod", "maximum",
    "minimum", "atan2", "where", "lerp", "addcmul", "addcdiv", "masked_fill", "bitwise_and",
    "bitwise_or", "bitwise_xor", "logical_and", "logical_or", "tanh_backward",
    "sigmoid_backward", "threshold_backward", "gelu_backward", "silu_backward", "elu_backward",
    "leaky_relu_backward", "hardtanh_backward", "hardswish_backward", "softplus_backward",
    "native_dropout_backward", "mse_loss_backward", "l1_loss_backward", "prelu",
)  # fmt: skip
_ANSWERS: Final = (
    "eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "isfinite", "isin",
)  # fmt: skip
_REDUCTIONS: Final = (
    "sum", "mean", "amax", "amin", "max", "min", "prod", "all", "any", "argmax", "argmin",
    "logsumexp", "norm", "linalg_vector_norm", "nansum",
)  # fmt: skip

POINTWISE: Final[dict[str, Formula]] = {
    **{f"aten::{n}": partial(_pointwise, in_place=False) for n in (*_UNARY, *_BINARY)},
    **{f"aten::{n}_": partial(_pointwise, in_place=True) for n in (*_UNARY, *_BINARY)},
    **{f"aten::{n}": partial(_pointwise, in_place=False, answers=True) for n in _ANSWERS},
    **{f"aten::{n}": _reduction for n in _REDUCTIONS},
    **{f"aten::{n}": partial(_reduction, each=4) for n in ("var", "std", "var_mean", "std_mean")},
    "aten::cumsum": partial(through, kind="sort/scan", each=1),
    "aten::mse_loss": partial(_pointwise, in_place=False, each=2),
    "aten::copy_": _copy,
    "aten::fill_": _fill,
    "aten::zero_": _fill,
}
