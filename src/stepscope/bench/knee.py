"""Where a larger batch stops being worth it."""

from collections.abc import Sequence
from math import log2
from typing import Final

WORTH: Final = 1.10
"""Throughput that a doubling of the batch must multiply by to count as growth."""


def knee(rates: Sequence[tuple[int, float]]) -> int | None:
    """The smallest batch beyond which no doubling gains 10%, from (batch, samples/s) pairs.

    Larger batches are each held against it, so that one slow measurement makes no knee. None where
    throughput still grows at the largest batch, or where there are fewer than three.
    """
    known = sorted((batch, rate) for batch, rate in rates if batch > 0 and rate > 0)
    if len(known) < 3:
        return None
    for place, (batch, rate) in enumerate(known[:-1]):
        larger = known[place + 1 :]
        if all(more < rate * WORTH ** log2(size / batch) for size, more in larger):
            return batch
    return None
