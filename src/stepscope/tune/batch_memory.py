"""How much memory a batch takes, from those measured: a fixed part and so much for each sample."""

from collections.abc import Iterable

from stepscope.tune.batch_measured import Point


def predicted_bytes(points: Iterable[Point], batch: int) -> float | None:
    """Memory of a batch. None where fewer than two sizes were measured.

    By the two largest: libraries change their workspaces with the size, and the last ones tell
    most about the next.
    """
    line = _line(points)
    return None if line is None else line[0] + line[1] * batch


def most_by_memory(points: Iterable[Point], limit_bytes: float) -> int | None:
    """The largest batch that memory should hold; None where memory was not seen to grow."""
    line = _line(points)
    if line is None or line[1] <= 0:
        return None
    return int((limit_bytes - line[0]) // line[1])


def _line(points: Iterable[Point]) -> tuple[float, float] | None:
    """Bytes of no sample, and bytes of each; never less than none."""
    known = sorted((one.batch, one.memory_bytes) for one in points if one.ok and one.memory_bytes)
    if len(known) < 2:
        return None
    (small, less), (large, more) = known[-2:]
    each = max(0.0, (more - less) / (large - small))
    return more - each * large, each
