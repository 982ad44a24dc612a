"""The clock of a loader: how many samples it delivers once its workers are under way."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

_CYCLES: Final = 3  # of all that is prefetched, at least, in a section
_PATIENCE: Final = 5  # times the seconds asked for, after which fewer cycles must do


@dataclass(slots=True)
class Delivered:
    """Batches at the place where they are used, steady part; seconds."""

    first_s: float  # from the beginning of the iteration to the first batch
    warmup: int  # batches left out before the section
    started_ns: int = 0  # ends of the section, CLOCK_MONOTONIC
    ended_ns: int = 0
    elapsed_s: float = 0.0
    calls: int = 0  # batches
    samples: int = 0
    gaps_s: list[float] = field(default_factory=list)  # between batches


def deliver(
    batches: Iterator[Any],
    take: Callable[[Any], int],
    wait: Callable[[], None],
    *,
    workers: int,
    prefetch: int,
    seconds: float,
    on_first: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
) -> Delivered:
    """Take batches until a section of `seconds` is over; `take` gives the samples in one.

    Workers deliver in bursts of one batch each: a section begins and ends with such a round, and
    holds several fillings of the queue. What gathers in the queue while `on_first` is called (when
    the first batch is there) is taken before the section.
    """
    turn = max(1, workers)
    queue = max(1, workers * prefetch)
    began = clock()
    take(next(batches))
    wait()
    found = Delivered(first_s=clock() - began, warmup=1)
    on_first()
    while found.warmup < queue + 2 * turn or found.warmup % turn:
        take(next(batches))
        found.warmup += 1
    wait()
    found.started_ns = time.monotonic_ns()
    start = last = clock()
    while True:
        found.samples += take(next(batches))
        found.calls += 1
        now = clock()
        found.gaps_s.append(now - last)
        last = now
        if found.calls % turn == 0 and _is_enough(now - start, found.calls, queue, seconds):
            break
    wait()
    found.elapsed_s = clock() - start
    found.ended_ns = time.monotonic_ns()
    return found


def _is_enough(elapsed_s: float, batches: int, queue: int, seconds: float) -> bool:
    if elapsed_s < seconds:
        return False
    return batches >= max(5, _CYCLES * queue) or elapsed_s >= _PATIENCE * seconds


def per_round(gaps_s: list[float], workers: int, most: int = 500) -> list[float]:
    """Mean milliseconds of a batch in each round of all workers; rounds together if too many."""
    turn = max(1, workers)
    turn *= -(-len(gaps_s) // (turn * most))
    whole = len(gaps_s) // turn * turn
    return [sum(gaps_s[at : at + turn]) / turn * 1e3 for at in range(0, whole, turn)]
