"""Throughput, step times and speedups of a point."""

from collections.abc import Iterable, Mapping, Sequence
from math import fsum, isfinite
from typing import Any

import numpy as np

from stepscope.bench.results import Speedup
from stepscope.stats.intervals import estimate
from stepscope.stats.verdict import compare_processes, noise_floor


def known_values(several: Iterable[Mapping[str, Any]], name: str) -> list[float]:
    """The finite values of a name."""
    values = (one.get(name) for one in several)
    return [float(value) for value in values if value is not None and isfinite(value)]


def mean_known(several: Iterable[Mapping[str, Any]], name: str) -> float | None:
    """Of those known; None where none is."""
    values = known_values(several, name)
    return fsum(values) / len(values) if values else None


def max_known(several: Iterable[Mapping[str, Any]], name: str) -> float | None:
    """The largest of those known; None where none is. Whole numbers stay whole."""
    values = [one[name] for one in several if one.get(name) is not None]
    return max(values) if values else None


def total(values: Iterable[float]) -> float:
    """Their sum, rounded once."""
    return fsum(values)


Record = Mapping[str, Any]


def point_speed(measured: Sequence[Record], floor: float | None) -> dict[str, Any]:
    """Samples and batches per second over all throughput sections, and the times of single steps.

    All None where nothing was measured.
    """
    elapsed = total(one["elapsed_s"] for one in measured)
    processes = _series(measured)
    values = np.concatenate(processes) if processes else np.zeros(0)
    found = estimate(processes, floor) if processes else None
    p50, p95, p99 = np.percentile(values, [50, 95, 99]) if values.size else [None] * 3
    return {
        "samples_per_s": total(m["samples"] for m in measured) / elapsed if elapsed else None,
        "batches_per_s": total(m["calls"] for m in measured) / elapsed if elapsed else None,
        "mean_ms": found.value if found else None,
        "mean_low_ms": found.low if found else None,
        "mean_high_ms": found.high if found else None,
        "std_ms": float(values.std()) if values.size else None,
        "p50_ms": _plain(p50),
        "p95_ms": _plain(p95),
        "p99_ms": _plain(p99),
    }


def process_noise(points: Iterable[Sequence[Record]]) -> float | None:
    """How far two processes of one point are usually apart, as a share; None if each is alone."""
    groups = ([_in_a_row(one) for one in _measured(several)] for several in points)
    return noise_floor([[times for times in group if times] for group in groups])


def speedup(
    base: Sequence[Record], other: Sequence[Record], against: str, floor: float | None
) -> Speedup | None:
    """How many times as fast the other is; None unless both were measured.

    Throughput is compared, in inference too, where latency has a section of its own. Times are
    held against each other per sample: a fix may change how many a step has.
    """
    ours, theirs = (_per_sample(_measured(several)) for several in (base, other))
    if not ours or not theirs:
        return None
    found = compare_processes(ours, theirs, floor)
    return Speedup(against, found.ratio, found.low, found.high, found.verdict.name)


def _measured(records: Sequence[Record]) -> list[Record]:
    return [record["measured"] for record in records if record["status"] == "ok"]


def _series(measured: Sequence[Record]) -> list[list[float]]:
    return [one["series_ms"] for one in measured if one["series_ms"]]


def _in_a_row(one: Record) -> list[float]:
    """Times of the calls of the throughput section."""
    times: list[float] = one.get("throughput_ms") or one["series_ms"]
    return times


def _per_sample(measured: Sequence[Record]) -> list[list[float]]:
    return [
        [ms * one["calls"] / one["samples"] for ms in _in_a_row(one)]
        for one in measured
        if one["samples"] and _in_a_row(one)
    ]


def _plain(value: Any) -> float | None:
    return None if value is None else float(value)
