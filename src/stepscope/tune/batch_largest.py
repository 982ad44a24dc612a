"""Where to look for the largest batch that a GPU's memory holds."""

from typing import Final

from stepscope.tune.batch_bounds import MOST_OF_FIX, Bounds
from stepscope.tune.batch_memory import most_by_memory
from stepscope.tune.batch_sizes import Sizes

FULL: Final = 0.95
"""Of a GPU's memory can be tensors: contexts and gaps between them take the rest."""
_FINE: Final = 16  # the answer is known to one part in so many
_MULTIPLE: Final = 8


def next_largest(sizes: Sizes, bounds: Bounds) -> int | None:
    """The next size to try: where memory should end, or halfway to one that did not fit.

    None where the largest is known to one part in 16.
    """
    good, bad = sizes.largest, sizes.too_large
    if good is None:
        return None
    fine = max(_MULTIPLE, good // _FINE)
    if bad is not None and bad - good <= fine:
        return None
    memory = bounds.memory_bytes
    batch = most_by_memory(sizes.points, FULL * memory) if memory is not None else None
    if bad is not None and (batch is None or not good < batch < bad - fine // 2):
        batch = (good + bad) // 2
    if batch is None:
        return None
    batch = min(batch, bounds.largest or batch, bounds.samples or batch, MOST_OF_FIX)
    batch = batch // _MULTIPLE * _MULTIPLE
    near = bad is None and batch - good <= fine
    return None if near or not good < batch < (bad or batch + 1) else batch
