"""FLOPs and least bytes of optimizers that work on lists of tensors."""

from functools import partial
from typing import Final

from stepscope.analyze.timeline.flops_cost import Cost, Formula
from stepscope.analyze.timeline.flops_inputs import Inputs, total_bytes
from stepscope.analyze.timeline.flops_pointwise import first_dtype


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
    return Cost("optimizer", each * elements, least, first_dtype(first))


def _sgd(inputs: Inputs) -> Cost | None:
    """Without momentum (argument 4) there are no buffers of it."""
    if inputs.value(4) == 0:
        return _optimizer(inputs, written=(0,), each=4, read=2)
    return _optimizer(inputs, written=(0, 2), each=6, read=3)


OPTIMIZERS: Final[dict[str, Formula]] = {
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
