"""FLOPs and least bytes of layers that mostly move memory: norms, softmax, pooling, lookups.

FLOPs are per element what the mathematics needs, a root or an exponential counted as one: enough
to see that memory, not arithmetic, holds them back.
"""

from functools import partial
from math import prod
from typing import Final

from stepscope.analyze.timeline.flops_cost import Cost, Formula
from stepscope.analyze.timeline.flops_inputs import Inputs
from stepscope.analyze.timeline.flops_pointwise import through


def _loss_forward(inputs: Inputs) -> Cost | None:
    x, target = inputs.tensor(0), inputs.tensor(1)
    if x is None or target is None:
        return None
    # One probability per target is read, not all classes.
    return Cost("loss", target.elements, target.bytes + target.elements * x.itemsize, x.dtype)


def _loss_backward(inputs: Inputs) -> Cost | None:
    x, target = inputs.tensor(1), inputs.tensor(2)
    if x is None or target is None:
        return None
    return Cost("loss", target.elements, target.bytes + target.elements * x.itemsize, x.dtype)


def _picked(inputs: Inputs, index: int, source: int = 0, width: int | None = None) -> Cost | None:
    """Reads what the index names out of `source` and writes it elsewhere.

    `width`: the dimension of the source that the index runs over; None: one element per index.
    """
    table, where = inputs.tensor(source), inputs.tensor(index)
    if table is None or where is None:
        return None
    each = 1
    if width is not None:
        if not -len(table.dims) <= width < len(table.dims):
            return None
        each = table.elements // max(1, table.dims[width])
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
    if size is None or stride is None or padding is None or spread is None:
        return None
    if not 0 < sides < len(x.dims):
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


_NORMS: Final = (
    "cudnn_batch_norm", "miopen_batch_norm", "native_batch_norm", "_native_batch_norm_legit",
)  # fmt: skip

LAYERS: Final[dict[str, Formula]] = {
    **{f"aten::{name}": partial(through, kind="normalisation", each=8) for name in _NORMS},
    **{
        f"aten::{name}_backward": partial(through, kind="normalisation", each=11)
        for name in _NORMS[:3]
    },
    "aten::native_layer_norm": partial(through, kind="normalisation", each=8),
    "aten::native_layer_norm_backward": partial(through, kind="normalisation", each=11),
    "aten::native_group_norm": partial(through, kind="normalisation", each=8),
    "aten::native_group_norm_backward": partial(through, kind="normalisation", each=11),
    "aten::_fused_rms_norm": partial(through, kind="normalisation", each=4),
    "aten::_fused_rms_norm_backward": partial(through, kind="normalisation", each=8),
    "aten::_softmax": partial(through, kind="softmax", each=5),
    "aten::_log_softmax": partial(through, kind="softmax", each=5),
    "aten::_softmax_backward_data": partial(through, kind="softmax", each=4),
    "aten::_log_softmax_backward_data": partial(through, kind="softmax", each=4),
    "aten::nll_loss_forward": _loss_forward,
    "aten::nll_loss2d_forward": _loss_forward,
    "aten::nll_loss_backward": _loss_backward,
    "aten::nll_loss2d_backward": _loss_backward,
    "aten::embedding": partial(_picked, index=1, width=0),
    "aten::index_select": _index_select,
    "aten::gather": partial(_picked, index=2),
    "aten::scatter": partial(_picked, index=2),
    "aten::scatter_": partial(_picked, index=2),
    "aten::scatter_add": partial(_picked, index=2),
    "aten::scatter_add_": partial(_picked, index=2),
    "aten::embedding_dense_backward": _embedding_backward,
    "aten::max_pool2d_with_indices": partial(_pool, indices=True, dilated=True),
    "aten::max_pool3d_with_indices": partial(_pool, indices=True, dilated=True),
    "aten::avg_pool2d": partial(_pool, indices=False, dilated=False),
    "aten::avg_pool3d": partial(_pool, indices=False, dilated=False),
    "aten::max_pool2d_with_indices_backward": partial(_pool_backward, indices=7),
    "aten::max_pool3d_with_indices_backward": partial(_pool_backward, indices=7),
    "aten::avg_pool2d_backward": partial(_pool_backward, indices=None),
    "aten::avg_pool3d_backward": partial(_pool_backward, indices=None),
    "aten::_adaptive_avg_pool2d_backward": partial(_pool_backward, indices=None),
    "aten::native_dropout": partial(through, kind="random", each=2, extra=1),
}
