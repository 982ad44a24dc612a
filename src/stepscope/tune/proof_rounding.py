"""How coarse the arithmetic is that a set of fixes brings, and what it may change at once."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from stepscope.tune.ask import ROUNDINGS


@dataclass(frozen=True, slots=True)
class Limits:
    """What a change of rounding is allowed. Shares are of the value itself."""

    first_loss: float
    """The loss of the first step, as a share; more where the control moves it by more."""
    first_norm: float
    """The norm of a gradient, as a share; likewise."""
    growth: float
    """How many times the control's divergence a variant's may be."""
    floor: float
    """The divergence, as a share of the loss, below which the control is not believed."""


_UNIT: Final = {"float32": 2.0**-24, "tfloat32": 2.0**-11, "float16": 2.0**-11, "bfloat16": 2.0**-8}


def limits(dtype: str) -> Limits:
    """In float32 sums are taken in another order: an error of many units, and still a tiny one.

    Coarser ones round what goes into products and sum in float32: a few units.
    """
    unit = _UNIT[dtype]
    if dtype == "float32":
        return Limits(1024 * unit, 4096 * unit, growth=64.0, floor=16 * unit)
    return Limits(2 * unit, 16 * unit, growth=8.0, floor=unit / 8)


def early(dtype: str) -> Limits:
    """What is so far out that one seed suffices. In float32 a single activation that falls on the
    other side of zero makes a seed's divergence jump: 256 times the control's was seen."""
    limit = limits(dtype)
    return replace(
        limit,
        first_loss=2 * limit.first_loss,
        first_norm=2 * limit.first_norm,
        growth=limit.growth * (16 if dtype == "float32" else 4),
    )


def rounding_of(fixes: Iterable[str], own: str = "float32") -> str:
    """The coarsest arithmetic among fixes as `--fix` takes them and the program's own."""
    found = [own]
    for fix in fixes:
        name, _, value = fix.partition("=")
        if name == "amp":
            found.append("float16" if value == "fp16" else "bfloat16")
        elif name == "tf32":
            found.append("tfloat32")
    return max(found, key=ROUNDINGS.index)
