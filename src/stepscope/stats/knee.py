"""Where throughput stops growing with the batch size."""

from collections.abc import Sequence
from typing import Final

NEAR_BEST: Final = 0.05


def knee_index(rates: Sequence[float], within: float = NEAR_BEST) -> int | None:
    """The first of some sizes, in rising order, whose rate is within this share of the best.

    None where nothing was measured.
    """
    best = max(rates, default=0.0)
    if best <= 0:
        return None
    return next(place for place, rate in enumerate(rates) if rate >= (1 - within) * best)
