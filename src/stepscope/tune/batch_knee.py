"""Where a larger batch stops being worth it: the knee of throughput over batch size."""

from collections.abc import Iterable, Sequence

from stepscope.tune.batch_measured import Point


def roomy(points: Iterable[Point], memory_bytes: float | None, headroom: float) -> list[Point]:
    """Those that ran and leave that share of memory free, smallest first; what is not known
    counts as free."""
    most = None if memory_bytes is None else (1 - headroom) * memory_bytes
    return sorted(
        (
            one
            for one in points
            if one.ok and (most is None or one.memory_bytes is None or one.memory_bytes <= most)
        ),
        key=lambda one: one.batch,
    )


def knee(points: Sequence[Point], within: float) -> Point | None:
    """The smallest of these within that share of the best throughput; None where there are none."""
    best = max((one.samples_per_s or 0.0 for one in points), default=0.0)
    for one in sorted(points, key=lambda one: one.batch):
        if one.samples_per_s and one.samples_per_s >= (1 - within) * best:
            return one
    return None


def still_growing(points: Sequence[Point], within: float) -> bool:
    """Whether the largest of these is better than all smaller ones by more than that share."""
    known = [one.samples_per_s for one in sorted(points, key=lambda one: one.batch)]
    rates = [rate for rate in known if rate]
    return len(rates) > 1 and max(rates[:-1]) < (1 - within) * rates[-1]
