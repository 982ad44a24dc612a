"""Throughput, step times and speedups of a point."""

from collections.abc import Iterable, Sequence
from math import fsum, isfinite
from typing import TypeVar

import numpy as np

from stepscope.bench.record import Records, results_of
from stepscope.bench.results import PointSpeed, Speedup
from stepscope.stats.intervals import estimate
from stepscope.stats.verdict import compare_processes, noise_floor
from stepscope.workloads.measure.record import AnyMeasured, InferMeasured

N = TypeVar("N", int, float)


def mean_known(values: Iterable[float | None]) -> float | None:
    """The mean of the finite ones; None where there are none."""
    known = [value for value in values if value is not None and isfinite(value)]
    return fsum(known) / len(known) if known else None


def max_known(values: Iterable[N | None]) -> N | None:
    """The largest; None where none is known."""
    return max((value for value in values if value is not None), default=None)


def point_speed(measured: Sequence[AnyMeasured], floor: float | None) -> PointSpeed:
    """Of all processes of a point."""
    elapsed = fsum(one.elapsed_s for one in measured)
    samples = fsum(one.samples for one in measured) / elapsed if elapsed else None
    batches = fsum(one.calls for one in measured) / elapsed if elapsed else None
    processes = [one.series_ms for one in measured if one.series_ms]
    if not processes:
        return PointSpeed(samples, batches)
    values = np.concatenate(processes)
    found = estimate(processes, floor)
    percentiles = np.percentile(values, [50, 95, 99]).tolist()
    mean = (found.value, found.low, found.high)
    return PointSpeed(samples, batches, *mean, float(values.std()), *percentiles)


def process_noise(points: Iterable[Records]) -> float | None:
    """How far two processes of one point are usually apart, as a share; None if each is alone."""
    groups = ([_back_to_back_ms(one) for one in results_of(several)] for several in points)
    return noise_floor([[times for times in group if times] for group in groups])


def speedup(base: Records, other: Records, against: str, floor: float | None) -> Speedup | None:
    """How many times as fast the other is; None unless both were measured.

    Compares throughput, in inference too, where latency has a section of its own; per sample, as
    a fix may change how many a step has.
    """
    ours, theirs = (
        [
            [ms * one.calls / one.samples for ms in _back_to_back_ms(one)]
            for one in results_of(several)
            if one.samples and _back_to_back_ms(one)
        ]
        for several in (base, other)
    )
    if not ours or not theirs:
        return None
    found = compare_processes(ours, theirs, floor)
    return Speedup(against, found.ratio, found.low, found.high, found.verdict.name)


def _back_to_back_ms(one: AnyMeasured) -> list[float]:
    """Times of the calls of the throughput section."""
    return (one.throughput_ms if isinstance(one, InferMeasured) else None) or one.series_ms
