"""Timing a torch operation: warm, repeated, on the clock of the device that runs it."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median, quantiles
from typing import Any, Final

REPEATS: Final = (5, 50)  # at least, at most


@dataclass(frozen=True)
class Repeats:
    """Seconds of each repeat: while warming up, and after."""

    warm_s: list[float]
    steady_s: list[float]


@dataclass(frozen=True)
class Result:
    """A measured rate or time: what lasts, the median of the steady repeats.

    `spread` is the width of their middle 80% over the median; `best` the best of all repeats,
    which a GPU reaches for a moment, until its power limit sets in.
    """

    value: float
    spread: float
    best: float
    repeats: int
    size: int

    def to_json(self) -> dict[str, Any]:
        """As kept in the cache."""
        return asdict(self)


def summarise(repeats: Repeats, size: int, value_of: Callable[[float], float]) -> Result:
    """A result from repeats; `value_of` turns seconds into the unit."""
    seconds = repeats.steady_s
    middle = median(seconds)
    deciles = quantiles(seconds, n=10, method="inclusive") if len(seconds) > 1 else [middle] * 9
    return Result(
        value=value_of(middle),
        spread=(deciles[8] - deciles[0]) / middle,
        best=value_of(min(seconds + repeats.warm_s)),
        repeats=len(seconds),
        size=size,
    )


def time_repeats(action: Callable[[], object], device: str, budget_s: float) -> Repeats:
    """Repeat for `budget_s`, after a warm-up of a third of it for the clocks to settle."""
    warm_s = _repeat(action, device, budget_s / 3, least=2, most=1 << 30)
    return Repeats(warm_s, _repeat(action, device, budget_s, *REPEATS))


def _repeat(
    action: Callable[[], object], device: str, budget_s: float, least: int, most: int
) -> list[float]:
    until = time.perf_counter() + budget_s
    seconds: list[float] = []
    while len(seconds) < least or (len(seconds) < most and time.perf_counter() < until):
        seconds.append(time_once(action, device))
    return seconds


def time_once(action: Callable[[], object], device: str) -> float:
    """Seconds one call takes: between two CUDA events on a GPU, else by the wall clock."""
    if device == "cpu":
        began = time.perf_counter()
        action()
        return time.perf_counter() - began
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    action()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1000
