"""FLOPs and least bytes of an operator's call, from the shapes it was called with.

FLOPs of norms, softmax, pooling and lookups are per element what the mathematics needs, a root
or an exponential counted as one: enough to see that memory, not arithmetic, holds them back.
"""

from functools import partial
from math import prod
from typing import Final

from stepscope.analyze.timeline.roofline.operator_inputs import (
    FLOATING,
    Cost,
    Formula,
    Inputs,
    InputTensor,
    broadcast,
    read_inputs,
    total_bytes,
)
from stepscope.analyze.timeline.roofline.product_costs import ATTENTIONS, CONVOLUTIONS, MATMULS
from stepscope.record.timeline import Shapes


def _first_dtype(tensors: list[InputTensor]) -> str:
    """The dtype of the first floating tensor, else of the first."""
    floating = [t.dtype for t in tensors if t.dtype in FLOATING]
    return floating[0] if floating else tensors[0].dtype


def _streaming_cost(
    inputs: Inputs, kind: str, each: int, like: int = 0, extra: int = 0
) -> Cost | None:
    """Reads all its tensors and writes one like argument `like`, and `extra` bytes an element."""
    model, tensors = inputs.tensor(like), inputs.tensors
    if model is None:
        return None
    written = model.elements * (model.itemsize + extra)
    return Cost(kind, each * model.elements, total_bytes(tensors) + written, _first_dtype(tensors))


def _pointwise(inputs: Inputs, in_place: bool, answers: bool = False, each: int = 1) -> Cost | None:
    """Broadcasts its tensors; the result has the widest dtype of those that have dimensions."""
    tensors = inputs.tensors
    if not tensors:
        return None
    out = tensors[0].dims if in_place else broadcast(*(t.dims for t in tensors))
    if out is None:
        return None
    itemsize = tensors[0].itemsize
    if not in_place:
        itemsize = max(t.itemsize for t in [t for t in tensors if t.dims] or tensors)
    elements = prod(out)
    least = total_bytes(tensors) + elements * (1 if answers else itemsize)
    return Cost("pointwise", each * elements, least, _first_dtype(tensors))


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
    return Cost("pointwise", 0, into.elements * into.itemsize, into.dtype) if into else None


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
_ANSWERS: Final = ("eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "isfinite", "isin")
_REDUCTIONS: Final = (
    "sum", "mean", "amax", "amin", "max", "min", "prod", "all", "any", "argmax", "argmin",
    "logsumexp", "norm", "linalg_vector_norm", "nansum",
)  # fmt: skip

POINTWISE_FORMULAS: Final[dict[str, Formula]] = {
    **{f"aten::{n}": partial(_pointwise, in_place=False) for n in (*_UNARY, *_BINARY)},
    **{f"aten::{n}_": partial(_pointwise, in_place=True) for n in (*_UNARY, *_BINARY)},
    **{f"aten::{n}": partial(_pointwise, in_place=False, answers=True) for n in _ANSWERS},
    **{f"aten::{n}": _reduction for n in _REDUCTIONS},
    **{f"aten::{n}": partial(_reduction, each=4) for n in ("var", "std", "var_mean", "std_mean")},
    "aten::cumsum": partial(_streaming_cost, kind="sort/scan", each=1),
    "aten::mse_loss": partial(_pointwise, in_place=False, each=2),
    "aten::copy_": _copy,
    "aten::fill_": _fill,
    "aten::zero_": _fill,
}


def _loss(inputs: Inputs, first: int) -> Cost | None:
    x, target = inputs.tensor(first), inputs.tensor(first + 1)
    if x is None or target is None:
        return None
    # One probability per target is read, not all classes.
    return Cost("loss", target.elements, target.bytes + target.elements * x.itemsize, x.dtype)


def _picked(inputs: Inputs, index: int, source: int = 0, width: int | None = None) -> Cost | None:
    """Reads what the index names out of `source` and writes it elsewhere.

    `width`: the dimension of the source that the index runs over; None: one element per index.
    """
    table, where = inputs.tensor(source), inputs.tensor(index)
    if table is None or where is None:
        return None
    if width is not None and not -len(table.dims) <= width < len(table.dims):
        return None
    each = 1 if width is None else table.elements // max(1, table.dims[width])
    moved = where.elements * each * table.itemsize
    return Cost("embedding/index", 0, 2 * moved + where.bytes, table.dtype)


def _index_select(inputs: Inputs) -> Cost | None:
    dim = inputs.value(1)
    return _picked(inputs, 2, width=dim) if type(dim) is int else None


def _embedding_backward(inputs: Inputs) -> Cost | None:
    grad, where = inputs.tensor(0), inputs.tensor(1)
    if grad is None or where is None:
        return None
    least = grad.bytes + grad.elements * grad.itemsize + where.bytes
    return Cost("embedding/index", grad.elements, least, grad.dtype)


def _pool(inputs: Inputs, indices: bool, dilated: bool) -> Cost | None:
    x = inputs.tensor(0)
    if x is None or len(x.dims) < 3:
        return None
    kernel = inputs.value(1)
    sides = len(kernel) if isinstance(kernel, list) else 2
    size = inputs.numbers(1, sides)
    stride = size if inputs.value(2) == [] else inputs.numbers(2, sides)
    padding = inputs.numbers(3, sides)
    spread = inputs.numbers(4, sides) if dilated else (1,) * sides
    if not size or stride is None or padding is None or spread is None or sides >= len(x.dims):
        return None
    ends = zip(x.dims[-sides:], size, stride, padding, spread, strict=True)
    out = prod(x.dims[:-sides]) * prod(
        max(0, (d + 2 * p - g * (k - 1) - 1) // max(1, s) + 1) for d, k, s, p, g in ends
    )
    least = x.bytes + out * (x.itemsize + (8 if indices else 0))
    return Cost("pooling", out * prod(size), least, x.dtype)


def _pool_backward(inputs: Inputs, indices: int | None) -> Cost | None:
    grad, x = inputs.tensor(0), inputs.tensor(1)
    where = inputs.tensor(indices) if indices is not None else None
    if grad is None or x is None or (indices is not None and where is None):
        return None
    least = grad.bytes + x.elements * x.itemsize + (where.bytes if where else 0)
    return Cost("pooling", x.elements, least, x.dtype)


def _named(formula: Formula, *names: str) -> dict[str, Formula]:
    return dict.fromkeys((f"aten::{name}" for name in names), formula)


def _streams(kind: str, each: int, *names: str) -> dict[str, Formula]:
    return _named(partial(_streaming_cost, kind=kind, each=each), *names)


_NORMS: Final = (
    *("cudnn_batch_norm", "miopen_batch_norm"),
    *("native_batch_norm", "native_layer_norm", "native_group_norm"),
)
_SCATTERS: Final = ("scatter", "scatter_", "scatter_add", "scatter_add_")
_MAX_POOLS: Final = ("max_pool2d_with_indices", "max_pool3d_with_indices")
_AVERAGE_POOLS_BACKWARD: Final = (
    *("avg_pool2d_backward", "avg_pool3d_backward", "_adaptive_avg_pool2d_backward"),
)
_LAYERS: Final[dict[str, Formula]] = {
    **_streams("normalisation", 8, *_NORMS, "_native_batch_norm_legit", "_fused_rms_norm_backward"),
    **_streams("normalisation", 11, *(f"{name}_backward" for name in _NORMS)),
    **_streams("normalisation", 4, "_fused_rms_norm"),
    **_streams("softmax", 5, "_softmax", "_log_softmax"),
    **_streams("softmax", 4, "_softmax_backward_data", "_log_softmax_backward_data"),
    **_named(partial(_loss, first=0), "nll_loss_forward", "nll_loss2d_forward"),
    **_named(partial(_loss, first=1), "nll_loss_backward", "nll_loss2d_backward"),
    "aten::embedding": partial(_picked, index=1, width=0),
    "aten::index_select": _index_select,
    **_named(partial(_picked, index=2), "gather", *_SCATTERS),
    "aten::embedding_dense_backward": _embedding_backward,
    **_named(partial(_pool, indices=True, dilated=True), *_MAX_POOLS),
    **_named(partial(_pool, indices=False, dilated=False), "avg_pool2d", "avg_pool3d"),
    **_named(partial(_pool_backward, indices=7), *(f"{name}_backward" for name in _MAX_POOLS)),
    **_named(partial(_pool_backward, indices=None), *_AVERAGE_POOLS_BACKWARD),
    "aten::native_dropout": partial(_streaming_cost, kind="random", each=2, extra=1),
}


def _optimizer(
    inputs: Inputs, written: tuple[int, ...], each: int, read: int | None = None
) -> Cost | None:
    """Reads lists of tensors (the first `read`; None: all) and writes those at `written`."""
    first = inputs.arguments[0] if inputs.arguments else None
    if not isinstance(first, list):
        return None
    lists = [a for a in inputs.arguments if isinstance(a, list)]
    if any(len(one) != len(first) for one in lists):
        return None
    back = [a for n in written if n < len(inputs.arguments) and (a := inputs.arguments[n])]
    least = sum(total_bytes(one) for one in lists[:read])
    least += sum(total_bytes(one) for one in back if isinstance(one, list))
    elements = sum(t.elements for t in first)
    return Cost("optimizer", each * elements, least, _first_dtype(first))


def _sgd(inputs: Inputs) -> Cost | None:
    """Without momentum (argument 4) there are no buffers of it."""
    if inputs.value(4) == 0:
        return _optimizer(inputs, written=(0,), each=4, read=2)
    return _optimizer(inputs, written=(0, 2), each=6, read=3)


_OPTIMIZERS: Final[dict[str, Formula]] = {
    "aten::_fused_adam_": partial(_optimizer, written=(0, 2, 3), each=13, read=4),
    "aten::_fused_adamw_": partial(_optimizer, written=(0, 2, 3), each=14, read=4),
    "aten::_fused_sgd_": _sgd,
    "aten::_fused_adagrad_": partial(_optimizer, written=(0, 2), each=8, read=3),
    "aten::_foreach_zero_": partial(_optimizer, written=(0,), each=0, read=0),
    "aten::_foreach_copy_": partial(_optimizer, written=(0,), each=0, read=1),
    # Adam multiplies the gradients with themselves: the same list twice, read once.
    "aten::_foreach_addcmul": partial(_optimizer, written=(0,), each=3, read=2),
    "aten::_foreach_addcmul_": partial(_optimizer, written=(0,), each=3, read=2),
    "aten::_foreach_norm": partial(_optimizer, written=(), each=2),
    **{
        f"aten::_foreach_{name}{place}": partial(_optimizer, written=(0,), each=each)
        for name, each in (
            ("add", 1), ("sub", 1), ("mul", 1), ("div", 1), ("sqrt", 1), ("neg", 1), ("lerp", 3),
            ("addcdiv", 3), ("maximum", 1), ("reciprocal", 1), ("pow", 1),
            ("clamp_max", 1), ("clamp_min", 1), ("sign", 1), ("abs", 1),
        )
        for place in ("", "_")
    },
}  # fmt: skip


_PRODUCTS: Final = {**MATMULS, **CONVOLUTIONS, **ATTENTIONS}
_WHOLE: Final = {**_LAYERS, **_OPTIMIZERS}
_FORMULAS: Final[dict[str, Formula]] = {**POINTWISE_FORMULAS, **_WHOLE, **_PRODUCTS}


def operator_weight(operator: str) -> int:
    """How much of a model's work an operator is: 3 a product, 2 another whole layer, 1 a small
    one that larger ones use as a helper, 0 without a formula.
    """
    for weight, formulas in ((3, _PRODUCTS), (2, _WHOLE), (1, POINTWISE_FORMULAS)):
        if operator in formulas:
            return weight
    return 0


def operator_cost(
    operator: str, shapes: Shapes, list_dtype: str | None = None, list_elements: int | None = None
) -> Cost | None:
    """What a call has to do; None where there is no formula or the shapes do not tell.

    `list_dtype` (as Kineto names it) and `list_elements`: of tensors in lists, where known.
    """
    formula = _FORMULAS.get(operator)
    if formula is None:
        return None
    inputs = read_inputs(shapes, list_dtype, list_elements)
    return formula(inputs) if inputs else None
