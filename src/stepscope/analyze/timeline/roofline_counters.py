"""The roofline with what the device's counters measured in place of the model's estimate."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

import numpy as np

from stepscope.analyze.timeline.attribution import Attribution
from stepscope.analyze.timeline.roofline import (
    Measured,
    OperatorRate,
    Roofline,
    least_times,
    merged,
    rated,
)
from stepscope.analyze.timeline.roofline_calls import calls_of, used_dtype
from stepscope.analyze.timeline.roofline_work import OperatorWork
from stepscope.record.timeline import NOTHING, Column, DeviceKind, Timeline


class Counters(Protocol):
    """What was counted while one kernel ran; None: not counted."""

    @property
    def dram_bytes(self) -> float | None: ...
    @property
    def flops(self) -> float | None: ...


def with_counters(
    timeline: Timeline,
    attribution: Attribution,
    work: OperatorWork,
    found: Roofline,
    counters: Mapping[int, Counters],
) -> Roofline:
    """Replace the FLOPs and bytes of operators by those measured, the model's kept beside.

    `counters` are by device event. Only calls whose every kernel was counted are used; what they
    show per call stands for all calls of the same operator on the same shapes.
    """
    bytes_, flops, complete = _by_call(timeline, work, counters)
    calls = calls_of(timeline, attribution, work, None)
    sums: dict[tuple[str, str, str], list[int]] = {}
    for n in np.flatnonzero(complete[calls.host]).tolist():
        call = work.kinds[calls.kind[n]]
        units = call.cost.matrix and bool(calls.on_matrix_units[n])
        key = (call.name, call.shape, used_dtype(call.cost.dtype, units))
        sums.setdefault(key, []).append(int(calls.host[n]))
    rows = []
    for row in found.shapes:
        hosts = sums.get((row.name, row.shape or "", row.dtype))
        rows.append(_measured(row, flops[hosts], bytes_[hosts], found) if hosts else row)
    return replace(found, shapes=rows, kinds=merged(rows))


def _by_call(
    timeline: Timeline, work: OperatorWork, counters: Mapping[int, Counters]
) -> tuple[Column, Column, Column]:
    """Bytes, FLOPs and whether all kernels were counted, per host event; NaN: not counted."""
    device = timeline.device
    moved, done = np.full(len(device), np.nan), np.full(len(device), np.nan)
    for event, counted in counters.items():
        if 0 <= event < len(device):
            moved[event] = np.nan if counted.dram_bytes is None else counted.dram_bytes
            done[event] = np.nan if counted.flops is None else counted.flops
    use = np.flatnonzero((work.owner != NOTHING) & (device.kind == DeviceKind.KERNEL))
    owner, size = work.owner[use], len(timeline.host)
    seen = ~(np.isnan(moved[use]) & np.isnan(done[use]))
    every = np.bincount(owner, minlength=size)
    complete = (every > 0) & (np.bincount(owner, seen, size) == every)
    return np.bincount(owner, moved[use], size), np.bincount(owner, done[use], size), complete


def _measured(row: OperatorRate, flops: Column, bytes_: Column, found: Roofline) -> OperatorRate:
    calls = len(flops)
    model_flops = row.flops / row.calls * calls
    model_bytes = None if row.bytes is None else row.bytes / row.calls * calls
    told_flops, told_bytes = _known(flops), _known(bytes_)
    beside = Measured(
        calls=calls,
        flops=told_flops,
        model_flops=model_flops,
        flops_error=_error(model_flops, told_flops),
        bytes=told_bytes,
        model_bytes=model_bytes,
        bytes_error=_error(model_bytes, told_bytes),
    )
    scale = row.calls / calls
    new_flops = row.flops if told_flops is None else told_flops * scale
    new_bytes = row.bytes if told_bytes is None else told_bytes * scale
    matrix = row.category in ("matmul", "convolution", "attention")
    compute, memory = least_times(new_flops, new_bytes, row.dtype, found.ceilings, matrix)
    least, ceiling = row.least_ns, row.ceiling
    if memory is not None and (compute is not None or not matrix):
        least = max(compute or 0.0, memory)
        ceiling = "compute" if (compute or 0.0) > memory else "memory"
    row = replace(
        row,
        flops=new_flops,
        bytes=new_bytes,
        least_ns=least,
        ceiling=ceiling,
        bound="launch" if row.bound == "launch" else ceiling,
        measured=beside,
    )
    return rated(row)


def _known(values: Column) -> float | None:
    return None if np.isnan(values).any() else float(values.sum())


def _error(model: float | None, told: float | None) -> float | None:
    return None if model is None or not told else model / told - 1
