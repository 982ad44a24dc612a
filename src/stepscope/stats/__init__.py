"""What may be claimed from samples: pure functions on numbers."""

from collections.abc import Iterable


def mean(values: Iterable[float]) -> float:
    """Of one value or more. What runs in the program's process imports nothing that a file of the
    program's may be called, as `statistics`: the one would get the other's."""
    found = list(values)
    return sum(found) / len(found)


def median(values: Iterable[float]) -> float:
    """Of one value or more."""
    found = sorted(values)
    return (found[(len(found) - 1) // 2] + found[len(found) // 2]) / 2
