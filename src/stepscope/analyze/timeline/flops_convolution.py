"""FLOPs and least bytes of convolutions, transposed ones too, forward and backward."""

from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Final

from stepscope.analyze.timeline.flops_cost import Cost, Formula
from stepscope.analyze.timeline.flops_inputs import Dims, Inputs


@dataclass(frozen=True, slots=True)
class _Where:
    """Where a convolution operator keeps its arguments; None: it has none, the default holds."""

    stride: int
    padding: int
    dilation: int | None
    transposed: int | bool = False  # the argument, or what it always is
    output_padding: int | None = None
    groups: int | None = None  # only transposed ones need it, for their output's channels


def _convolution(inputs: Inputs, where: _Where) -> Cost | None:
    x, weight = inputs.tensor(0), inputs.tensor(1)
    if x is None or weight is None or len(x.dims) != len(weight.dims) or len(x.dims) < 3:
        return None
    sides = len(x.dims) - 2
    stride, padding = inputs.numbers(where.stride, sides), inputs.numbers(where.padding, sides)
    dilation = _optional(inputs, where.dilation, sides, 1)
    extra = _optional(inputs, where.output_padding, sides, 0)
    told = where.transposed
    backwards = told if isinstance(told, bool) else inputs.value(told)
    if stride is None or padding is None or dilation is None or extra is None:
        return None
    out: list[int] = []
    for n in range(sides):
        reach = dilation[n] * (weight.dims[n + 2] - 1)
        if backwards:
            side = (x.dims[n + 2] - 1) * stride[n] - 2 * padding[n] + reach + extra[n] + 1
        else:
            side = (x.dims[n + 2] + 2 * padding[n] - reach - 1) // max(1, stride[n]) + 1
        out.append(side)
    if min(out) < 0:
        return None
    places = x.dims[2:] if backwards else tuple(out)
    (groups,) = _optional(inputs, where.groups, 1, 1) or (1,)
    channels = weight.dims[1] * groups if backwards else weight.dims[0]
    flops = 2 * x.dims[0] * prod(places) * weight.elements
    written = x.dims[0] * channels * prod(out) * x.itemsize
    bias = inputs.tensor(2)
    least = x.bytes + weight.bytes + written + (bias.bytes if bias else 0)
    return Cost("convolution", flops, least, x.dtype, True)


def _optional(inputs: Inputs, at: int | None, sides: int, default: int) -> Dims | None:
    return (default,) * sides if at is None else inputs.numbers(at, sides)


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


_PLAIN: Final = partial(_convolution, where=_Where(3, 4, 5))
_FULL: Final = partial(_convolution, where=_Where(3, 4, 5, 6, 7, 8))
_CUDNN: Final = partial(_convolution, where=_Where(3, 2, 4))
_MIOPEN: Final = partial(_convolution, where=_Where(4, 3, 5))
_TRANSPOSED: Final = partial(_convolution, where=_Where(3, 4, 7, True, 5, 6))

CONVOLUTIONS: Final[dict[str, Formula]] = {
    "aten::conv1d": _PLAIN,
    "aten::conv2d": _PLAIN,
    "aten::conv3d": _PLAIN,
    "aten::conv_transpose1d": _TRANSPOSED,
    "aten::conv_transpose2d": _TRANSPOSED,
    "aten::conv_transpose3d": _TRANSPOSED,
    "aten::convolution": _FULL,
    "aten::_convolution": _FULL,
    "aten::convolution_overrideable": _FULL,
    "aten::cudnn_convolution": _CUDNN,
    "aten::cudnn_convolution_transpose": partial(_convolution, where=_Where(4, 2, 5, True, 3, 6)),
    "aten::cudnn_convolution_relu": _PLAIN,
    "aten::miopen_convolution": _MIOPEN,
    "aten::miopen_depthwise_convolution": _MIOPEN,
    "aten::miopen_convolution_transpose": partial(_convolution, where=_Where(5, 3, 6, True, 4, 7)),
    "aten::mkldnn_convolution": _MIOPEN,
    "aten::_conv_depthwise2d": partial(_convolution, where=_Where(4, 5, 6)),
    "aten::_slow_conv2d_forward": partial(_convolution, where=_Where(4, 5, None)),
    "aten::thnn_conv2d": partial(_convolution, where=_Where(4, 5, None)),
    "aten::convolution_backward": _convolution_backward,
}
