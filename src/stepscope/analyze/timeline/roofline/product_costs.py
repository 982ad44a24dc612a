"""FLOPs (a multiply-add is two) and least bytes of matrix products, convolutions, attention."""

from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, Final

from stepscope.analyze.timeline.roofline.operator_inputs import (
    Cost,
    Formula,
    Inputs,
    broadcast,
    total_bytes,
)


def _matmul(inputs: Inputs, left: int, right: int, transposed: bool = False) -> Cost | None:
    """A product of arguments `left` and `right`; all before `left` are added to the result."""
    a, b = inputs.tensor(left), inputs.tensor(right)
    if a is None or b is None or not a.dims or not b.dims:
        return None
    a_dims = a.dims if len(a.dims) > 1 else (1, *a.dims)
    b_dims = b.dims[::-1] if transposed else b.dims
    b_dims = b_dims if len(b_dims) > 1 else (*b_dims, 1)
    batch = broadcast(a_dims[:-2], b_dims[:-2])
    if batch is None or a_dims[-1] != b_dims[-2]:
        return None
    # Products of 8-bit numbers are kept wider: 32-bit integers, 16-bit floats.
    itemsize = {"int8": 4, "uint8": 4, "fp8": 2}.get(a.dtype, a.itemsize)
    elements = prod(batch) * a_dims[-2] * b_dims[-1]
    added = [t for n in range(left) if (t := inputs.tensor(n))]
    least = a.bytes + b.bytes + total_bytes(added) + elements * itemsize
    return Cost("matmul", 2 * elements * a_dims[-1], least, a.dtype, True)


def _linear(inputs: Inputs) -> Cost | None:
    weight = inputs.tensor(1)
    cost = _matmul(inputs, 0, 1, transposed=True) if weight and len(weight.dims) == 2 else None
    bias = inputs.tensor(2)
    if cost is None or bias is None or cost.bytes is None:
        return cost
    return Cost(cost.kind, cost.flops, cost.bytes + bias.bytes, cost.dtype, True)


_PLAIN_PRODUCTS: Final = ("mm", "bmm", "mv", "dot", "matmul", "_scaled_mm", "_int_mm")
_ADDED_PRODUCTS: Final = ("addmm", "addmm_", "_addmm_activation", "addmv", "baddbmm", "baddbmm_")
MATMULS: Final[dict[str, Formula]] = {
    **{f"aten::{name}": partial(_matmul, left=0, right=1) for name in _PLAIN_PRODUCTS},
    **{f"aten::{name}": partial(_matmul, left=1, right=2) for name in _ADDED_PRODUCTS},
    "aten::linear": _linear,
}


@dataclass(frozen=True, slots=True)
class _ArgumentPositions:
    """Where a convolution operator keeps its arguments; None: it has none, the default holds."""

    stride: int
    padding: int
    dilation: int | None
    transposed: int | bool = False  # the argument, or what it always is
    output_padding: int | None = None
    groups: int | None = None  # only transposed ones need it, for their output's channels


def _convolution(inputs: Inputs, where: _ArgumentPositions) -> Cost | None:
    x, weight = inputs.tensor(0), inputs.tensor(1)
    if x is None or weight is None or len(x.dims) != len(weight.dims) or len(x.dims) < 3:
        return None
    sides = len(x.dims) - 2
    stride, padding = inputs.numbers(where.stride, sides), inputs.numbers(where.padding, sides)
    dilation = inputs.numbers(where.dilation, sides, default=1)
    extra = inputs.numbers(where.output_padding, sides, default=0)
    transposed = where.transposed
    transposes = transposed if isinstance(transposed, bool) else inputs.value(transposed)
    if stride is None or padding is None or dilation is None or extra is None:
        return None
    out: list[int] = []
    for n, side in enumerate(x.dims[2:]):
        reach = dilation[n] * (weight.dims[n + 2] - 1)
        if transposes:
            out.append((side - 1) * stride[n] - 2 * padding[n] + reach + extra[n] + 1)
        else:
            out.append((side + 2 * padding[n] - reach - 1) // max(1, stride[n]) + 1)
    if min(out) < 0:
        return None
    places = x.dims[2:] if transposes else out
    (groups,) = inputs.numbers(where.groups, 1, default=1) or (1,)
    channels = weight.dims[1] * groups if transposes else weight.dims[0]
    flops = 2 * x.dims[0] * prod(places) * weight.elements
    written = x.dims[0] * channels * prod(out) * x.itemsize
    bias = inputs.tensor(2)
    least = x.bytes + weight.bytes + written + (bias.bytes if bias else 0)
    return Cost("convolution", flops, least, x.dtype, True)


def _convolution_backward(inputs: Inputs) -> Cost | None:
    grad, x, weight = (inputs.tensor(n) for n in range(3))
    mask, transposed = inputs.value(10), inputs.value(7)
    if grad is None or x is None or weight is None or len(x.dims) < 3:
        return None
    if not isinstance(mask, list) or len(mask) != 3 or not isinstance(transposed, bool):
        return None
    places = (x if transposed else grad).dims[2:]
    once = 2 * x.dims[0] * prod(places) * weight.elements
    wants_input, wants_weight, _ = mask
    least = grad.bytes
    if wants_input:
        least += weight.bytes + x.elements * x.itemsize
    if wants_weight:
        least += x.bytes + weight.elements * weight.itemsize
    flops = once * (bool(wants_input) + bool(wants_weight))
    return Cost("convolution", flops, least, x.dtype, True)


def _convolutions(where: _ArgumentPositions, *names: str) -> dict[str, Formula]:
    return {f"aten::{name}": partial(_convolution, where=where) for name in names}


_PLAIN: Final = ("conv1d", "conv2d", "conv3d", "cudnn_convolution_relu")
_TRANSPOSED: Final = ("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
_FULL: Final = ("convolution", "_convolution", "convolution_overrideable")
_MIOPEN: Final = ("miopen_convolution", "miopen_depthwise_convolution", "mkldnn_convolution")
CONVOLUTIONS: Final[dict[str, Formula]] = {
    **_convolutions(_ArgumentPositions(3, 4, 5), *_PLAIN),
    **_convolutions(_ArgumentPositions(3, 4, 7, True, 5, 6), *_TRANSPOSED),
    **_convolutions(_ArgumentPositions(3, 4, 5, 6, 7, 8), *_FULL),
    **_convolutions(_ArgumentPositions(3, 2, 4), "cudnn_convolution"),
    **_convolutions(_ArgumentPositions(4, 2, 5, True, 3, 6), "cudnn_convolution_transpose"),
    **_convolutions(_ArgumentPositions(4, 3, 5), *_MIOPEN),
    **_convolutions(_ArgumentPositions(5, 3, 6, True, 4, 7), "miopen_convolution_transpose"),
    **_convolutions(_ArgumentPositions(4, 5, 6), "_conv_depthwise2d"),
    **_convolutions(_ArgumentPositions(4, 5, None), "_slow_conv2d_forward", "thnn_conv2d"),
    "aten::convolution_backward": _convolution_backward,
}


def _attention(
    inputs: Inputs, first: int, causal: int, backward: bool = False, heads: int = 1
) -> Cost | None:
    """Query, key and value from argument `first` on; argument `causal` says whether the mask is;
    `heads` is their dimension of heads.

    Forward is two products; backward is five, as it computes the scores again.
    A causal mask leaves half of them.
    """
    q, k, v = (inputs.tensor(first + n) for n in range(3))
    masked: Any = inputs.value(causal)
    if q is None or k is None or v is None or not isinstance(masked, bool):
        return None
    if not len(q.dims) == len(k.dims) == len(v.dims) == 4:
        return None
    rows = 3 - heads
    batch = q.dims[0] * q.dims[heads]
    queries, keys, inner, outer = q.dims[rows], k.dims[rows], q.dims[3], v.dims[3]
    scores, result = (2 * batch * queries * keys * size for size in (inner, outer))
    flops = 3 * scores + 2 * result if backward else scores + result
    out = batch * queries * outer * q.itemsize
    # Backward reads the result and its gradient, and writes three gradients.
    least = total_bytes([q, k, v]) * (2 if backward else 1) + out * (2 if backward else 1)
    return Cost("attention", flops // 2 if masked else flops, least, q.dtype, True)


_forward = partial(_attention, first=0)
_backward = partial(_attention, first=1, backward=True)
_SCALED: Final = "aten::_scaled_dot_product"
ATTENTIONS: Final[dict[str, Formula]] = {
    "aten::scaled_dot_product_attention": partial(_forward, causal=5),
    f"{_SCALED}_flash_attention": partial(_forward, causal=4),
    f"{_SCALED}_flash_attention_for_cpu": partial(_forward, causal=4),
    f"{_SCALED}_efficient_attention": partial(_forward, causal=6),
    f"{_SCALED}_cudnn_attention": partial(_forward, causal=6),
    "aten::_cudnn_attention_forward": partial(_forward, causal=10),
    f"{_SCALED}_fused_attention_overrideable": partial(_forward, causal=5),
    f"{_SCALED}_flash_attention_backward": partial(_backward, causal=11),
    f"{_SCALED}_flash_attention_for_cpu_backward": partial(_backward, causal=7),
    f"{_SCALED}_efficient_attention_backward": partial(_backward, causal=11),
    f"{_SCALED}_cudnn_attention_backward": partial(_backward, causal=14),
    "aten::_cudnn_attention_backward": partial(_backward, causal=14),
    "flash_attn::_flash_attn_forward": partial(_forward, causal=5, heads=2),
    "flash_attn::_flash_attn_backward": partial(_backward, causal=11, heads=2),
}
