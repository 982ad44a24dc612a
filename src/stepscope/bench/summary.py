"""Summarises a grid's records, one summary per point: speed, cost, reliability."""

import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from math import fsum, isfinite
from typing import Any, Final, TypeVar

import numpy as np
from msgspec import to_builtins
from msgspec.structs import asdict

from stepscope.bench import results
from stepscope.bench.grid import BenchRequest, variant_label
from stepscope.bench.record import ProcessRecord, Records, by_point, results_of
from stepscope.bench.results import BenchResult, PointSpeed, PointStatus, PointSummary, Speedup
from stepscope.record.version import __version__
from stepscope.stats.intervals import estimate, why_unstable
from stepscope.stats.verdict import compare_processes, noise_floor
from stepscope.workloads.measure.record import (
    AnyMeasured,
    GenerateMeasured,
    InferMeasured,
    ModelMeasured,
    TrainMeasured,
)

N = TypeVar("N", int, float)


def mean_known(values: Iterable[float | None]) -> float | None:
    """The mean of the finite values, or None."""
    known = [value for value in values if value is not None and isfinite(value)]
    return fsum(known) / len(known) if known else None


def max_known(values: Iterable[N | None]) -> N | None:
    """The largest known value, or None."""
    return max((value for value in values if value is not None), default=None)


def point_speed(measured: Sequence[AnyMeasured], floor: float | None) -> PointSpeed:
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
    """The usual difference between two processes of one point, as a share; None if each point has
    one process."""
    groups = ([_back_to_back_ms(one) for one in results_of(several)] for several in points)
    return noise_floor([[times for times in group if times] for group in groups])


def speedup(base: Records, other: Records, against: str, floor: float | None) -> Speedup | None:
    """How many times as fast the other is; None unless both were measured. Compares throughput,
    even in inference, which measures latency separately; per sample, since a fix may change a
    step's samples."""
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
    """Call times in the throughput section."""
    return (one.throughput_ms if isinstance(one, InferMeasured) else None) or one.series_ms


_J_PER_KWH: Final = 3.6e6
_OTHERS: Final = 0.1  # share of the machine's cores that others may use without a note
Ceilings = Mapping[str, Mapping[str, float]]  # TFLOP/s of matrix products by device and arithmetic


def summarize(
    records: Records, request: BenchRequest, ceilings: Ceilings | None = None
) -> tuple[PointSummary, ...]:
    """One summary per point, in the order of first measurement."""
    points = by_point(records)
    floor = process_noise(points)
    first: dict[tuple[str | int, ...], list[ProcessRecord]] = {}
    found = []
    for several in points:
        point = several[0].point
        base = first.setdefault((point.model, point.mode, point.batch, point.device), several)
        peaks = (ceilings or {}).get(point.device, {})
        found.append(_summary(several, base, request, peaks, floor))
    return tuple(found)


def _summary(
    several: Records,
    base: Records,
    request: BenchRequest,
    ceilings: Mapping[str, float],
    floor: float | None,
) -> PointSummary:
    """`base`: the variant to compare with."""
    point, last = several[0].point, several[-1]
    fine = [one for one in several if one.status is PointStatus.OK]
    measured = [one for one in results_of(fine) if isinstance(one, ModelMeasured)]
    train = [one for one in measured if isinstance(one, TrainMeasured)]
    series = [one.series_ms for one in measured if one.series_ms]
    why = None
    if measured and not all(one.warmup and one.warmup.settled for one in measured):
        why = "still warming up when measured"
    elif measured:
        why = why_unstable(series) if series else "too few calls"
    first = measured[0] if measured else ModelMeasured()
    trained = train[0] if train else TrainMeasured()
    speed = point_speed(measured, floor)
    rate = speed.samples_per_s
    size = max_known(one.train_samples for one in train)
    times = [one.time_to_score_s for one in train]
    against = variant_label(base[0].point.fixes)
    return PointSummary(
        key=several[0].key,
        **asdict(point),
        variant=variant_label(point.fixes),
        status=PointStatus.OK if fine else last.status,
        why=None if fine else last.why,
        not_applied=tuple(
            results.UnappliedFix(fix.name, "; ".join(fix.reasons) or "no effect")
            for fix in last.fixes
            if fix.state == "not applicable"
        ),
        rounds=len(fine),
        **asdict(speed),
        epoch_s=size / rate if size and rate else None,
        loss=mean_known(one.final_loss for one in train),
        score=mean_known(one.final_score for one in train),
        score_name=trained.score_name,
        steps=trained.steps,
        time_to_score_s=None if None in times else mean_known(times),
        **_generation(measured, rate),
        peak_memory_bytes=max_known(one.peak_memory_bytes for one in measured),
        gpu_busy=mean_known(record.machine.gpu_busy for record in fine),
        **_costs(fine, measured, rate, request, ceilings),
        first_calls_s=mean_known(one.first_calls_extra_s for one in measured),
        clock=first.clock,
        parameters=first.parameters,
        unstable=why is not None,
        unstable_why=why,
        notes=_notes(several),
        speedup=None if base is several else speedup(base, several, against, floor),
    )


def _generation(measured: Sequence[ModelMeasured], samples_per_s: float | None) -> dict[str, Any]:
    """Times to the first token and per further token; tokens per second, also over whole
    sequences."""
    generated = [one for one in measured if isinstance(one, GenerateMeasured)]
    rate = mean_known(one.tokens_per_s for one in generated)
    tokens = max_known(one.tokens_per_sample for one in measured)
    if rate is None and tokens and samples_per_s:
        rate = tokens * samples_per_s
    return {
        "first_token_ms": mean_known(ms for one in generated for ms in one.first_token_ms),
        "token_ms": mean_known(ms for one in generated for ms in one.token_ms),
        "tokens_per_s": rate,
    }


def _costs(
    records: Records,
    measured: Sequence[ModelMeasured],
    samples_per_s: float | None,
    request: BenchRequest,
    ceilings: Mapping[str, float],
) -> dict[str, Any]:
    """`mfu` is the share of this device's measured matrix-product rate in the same arithmetic."""
    flops = max_known(one.flops_per_sample for one in measured)
    kinds = {one.arithmetic for one in measured}
    arithmetic = kinds.pop() if len(kinds) == 1 else None
    tflops = flops * samples_per_s / 1e12 if flops and samples_per_s else None
    ceiling = ceilings.get(arithmetic or "")
    counted = [one for one in records if one.machine.energy_j is not None]
    samples = sum(one.samples for one in results_of(counted))
    joules = fsum(one.machine.energy_j or 0.0 for one in counted) / samples if samples else None
    carbon, price = request.carbon_intensity, request.price_per_hour
    grams = None if joules is None or carbon is None else joules / _J_PER_KWH * carbon
    cost = price / 3600 / samples_per_s if price is not None and samples_per_s else None
    return {
        "flops_per_sample": flops,
        "tflops_per_s": tflops,
        "mfu": tflops / ceiling if tflops and ceiling else None,
        "arithmetic": arithmetic,
        "energy_j_per_sample": joules,
        "carbon_g_per_million": None if grams is None else grams * 1e6,
        "cost_per_million": None if cost is None else cost * 1e6,
    }


def _notes(records: Records) -> tuple[str, ...]:
    """Notes on the circumstances, each once."""
    fine = [record for record in records if record.status is PointStatus.OK]
    found = [note for one in results_of(fine) for note in one.notes]
    for record in fine:
        machine = record.machine
        found += [f"throttled: {reason}" for reason in machine.throttle]
        if machine.other_processes:
            found.append("other processes used the GPU")
        if (machine.other_cores or 0) > max(0.5, _OTHERS * (os.cpu_count() or 1)):
            found.append("other processes kept the CPU busy")
        if isinstance(record.measured, ModelMeasured) and record.measured.flops_why_not:
            found.append(f"FLOPs not counted: {record.measured.flops_why_not}")
    for record in records if fine else ():
        if record.status is not PointStatus.OK:
            found.append(f"process {record.round} left out: {record.why or record.status}")
    return tuple(dict.fromkeys(found))


def bench_result(
    request: BenchRequest,
    records: Records,
    ceilings: Ceilings,
    command: str,
    started: str,
    notes: Sequence[str] = (),
    *,
    points: tuple[PointSummary, ...] | None = None,
    study: results.CpuGpuStudy | results.MemoryStudy | None = None,
    kernels: results.KernelsResult | None = None,
    loader: results.LoaderResult | None = None,
) -> BenchResult:
    """The whole result; `points` None: summarised from the records."""
    from stepscope.hardware.machine import describe_machine

    machine = describe_machine()
    return BenchResult(
        machine=to_builtins(machine),
        versions=machine.versions,
        command=command,
        started=started,
        request=request,
        noise_floor=process_noise(by_point(records)),
        points=summarize(records, request, ceilings) if points is None else points,
        notes=tuple(notes),
        study=study,
        kernels=kernels,
        loader=loader,
    )


def made_with(devices: Sequence[str]) -> dict[str, str]:
    """What results must share to be comparable: stepscope, torch, each device."""
    from stepscope.hardware.ceilings import device_key
    from stepscope.hardware.gpus import visible_gpu_index

    gpu = visible_gpu_index(os.environ) if "cuda" in devices else None
    keys = {device: device_key(device, gpu if device == "cuda" else None) for device in devices}
    return {"stepscope": __version__, "python": platform.python_version(), **keys}
