"""What a call of an operator has to do at least."""

from collections.abc import Callable
from dataclasses import dataclass

from stepscope.analyze.timeline.flops_inputs import Inputs


@dataclass(frozen=True, slots=True)
class Cost:
    """What one call of an operator has to do at least."""

    kind: str  # a category of kernels
    flops: int
    bytes: int | None  # None where an input's size is not known
    dtype: str  # of the arithmetic: the first floating input's
    matrix: bool = False  # matrix products, which matrix units can do


Formula = Callable[[Inputs], Cost | None]
