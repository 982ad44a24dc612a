"""FLOPs and least bytes of an operator's call, from the shapes it was called with."""

from typing import Final

from stepscope.analyze.timeline.flops_attention import ATTENTIONS
from stepscope.analyze.timeline.flops_convolution import CONVOLUTIONS
from stepscope.analyze.timeline.flops_cost import Cost, Formula
from stepscope.analyze.timeline.flops_inputs import read_inputs
from stepscope.analyze.timeline.flops_layers import LAYERS
from stepscope.analyze.timeline.flops_matmul import MATMULS
from stepscope.analyze.timeline.flops_optimizers import OPTIMIZERS
from stepscope.analyze.timeline.flops_pointwise import POINTWISE
from stepscope.record.timeline import Shapes

__all__ = ["Cost", "cost_of", "weight_of"]

_PRODUCTS: Final = {**MATMULS, **CONVOLUTIONS, **ATTENTIONS}
_WHOLE: Final = {**LAYERS, **OPTIMIZERS}
_FORMULAS: Final[dict[str, Formula]] = {**POINTWISE, **_WHOLE, **_PRODUCTS}


def weight_of(operator: str) -> int:
    """How much of a model's work an operator is: 3 a product, 2 another whole layer, 1 a small
    one that larger ones use as a helper, 0 without a formula.
    """
    for weight, formulas in ((3, _PRODUCTS), (2, _WHOLE), (1, POINTWISE)):
        if operator in formulas:
            return weight
    return 0


def cost_of(
    operator: str,
    shapes: Shapes,
    list_dtype: str | None = None,
    list_elements: int | None = None,
) -> Cost | None:
    """What a call has to do; None where there is no formula or the shapes do not tell.

    `list_dtype` (as Kineto names it) and `list_elements`: of tensors in lists, where known.
    """
    formula = _FORMULAS.get(operator)
    if formula is None:
        return None
    inputs = read_inputs(shapes, list_dtype, list_elements)
    return formula(inputs) if inputs else None
