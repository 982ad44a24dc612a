"""FLOPs and least bytes of fused attention, forward and backward."""

from functools import partial
from typing import Any, Final

from stepscope.analyze.timeline.flops_cost import Cost, Formula
from stepscope.analyze.timeline.flops_inputs import Inputs, total_bytes
from stepscope.analyze.timeline.flops_matmul import product


def _attention(
    inputs: Inputs, first: int, causal: int, backward: bool = False, heads: int = 1
) -> Cost | None:
    """Query, key and value from argument `first` on; `heads` is their dimension of heads.

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
    scores = product(batch, queries, inner, keys)
    result = product(batch, queries, keys, outer)
    flops = 3 * scores + 2 * result if backward else scores + result
    out = batch * queries * outer * q.itemsize
    # Backward reads the result and its gradient, and writes three gradients.
    least = total_bytes([q, k, v]) * (2 if backward else 1) + out * (2 if backward else 1)
    return Cost("attention", flops // 2 if masked else flops, least, q.dtype, True)


ATTENTIONS: Final[dict[str, Formula]] = {
    "aten::scaled_dot_product_attention": partial(_attention, first=0, causal=5),
    "aten::_scaled_dot_product_flash_attention": partial(_attention, first=0, causal=4),
    "aten::_scaled_dot_product_flash_attention_for_cpu": partial(_attention, first=0, causal=4),
    "aten::_scaled_dot_product_efficient_attention": partial(_attention, first=0, causal=6),
    "aten::_scaled_dot_product_cudnn_attention": partial(_attention, first=0, causal=6),
    "aten::_cudnn_attention_forward": partial(_attention, first=0, causal=10),
    "aten::_scaled_dot_product_fused_attention_overrideable": partial(
        _attention, first=0, causal=5
    ),
    "aten::_scaled_dot_product_flash_attention_backward": partial(
        _attention, first=1, causal=11, backward=True
    ),
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": partial(
        _attention, first=1, causal=7, backward=True
    ),
    "aten::_scaled_dot_product_efficient_attention_backward": partial(
        _attention, first=1, causal=11, backward=True
    ),
    "aten::_scaled_dot_product_cudnn_attention_backward": partial(
        _attention, first=1, causal=14, backward=True
    ),
    "aten::_cudnn_attention_backward": partial(_attention, first=1, causal=14, backward=True),
    "flash_attn::_flash_attn_forward": partial(_attention, first=0, causal=5, heads=2),
    "flash_attn::_flash_attn_backward": partial(
        _attention, first=1, causal=11, backward=True, heads=2
    ),
}
