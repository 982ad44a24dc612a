"""Numbers over several measurements, where any of them may be missing."""

from collections.abc import Iterable, Mapping
from math import fsum, isfinite
from typing import Any


def known(several: Iterable[Mapping[str, Any]], name: str) -> list[float]:
    """The finite values of a name."""
    values = (one.get(name) for one in several)
    return [float(value) for value in values if value is not None and isfinite(value)]


def mean(several: Iterable[Mapping[str, Any]], name: str) -> float | None:
    """Of those known; None where none is."""
    values = known(several, name)
    return fsum(values) / len(values) if values else None


def most(several: Iterable[Mapping[str, Any]], name: str) -> float | None:
    """The largest of those known; None where none is. Whole numbers stay whole."""
    values = [one[name] for one in several if one.get(name) is not None]
    return max(values) if values else None


def total(values: Iterable[float]) -> float:
    """Their sum, rounded once."""
    return fsum(values)
