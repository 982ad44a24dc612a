"""The heaviest operators and kernels of a recorded step, compared with the device's ceilings."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from msgspec.structs import asdict, replace

from stepscope.analyze.timeline.attribution import Attribution, attribute, is_operator, nearest
from stepscope.analyze.timeline.host_threads import self_time
from stepscope.analyze.timeline.kernels import kernel_table
from stepscope.analyze.timeline.roofline.ceilings import Ceilings, ceilings_for
from stepscope.analyze.timeline.roofline.operator_work import OperatorWork, operator_work
from stepscope.analyze.timeline.roofline.rates import (
    OperatorRate,
    Roofline,
    least_times,
    roofline_of,
    with_counters,
)
from stepscope.bench import results
from stepscope.bench.results import OperatorUse
from stepscope.record.timeline import NOTHING, DeviceKind, Timeline
from stepscope.trace.nsight.counter_join import JoinedCounters, join_counters, kernel_base_name
from stepscope.trace.nsight.counters import KernelCounters


@dataclass(frozen=True, slots=True)
class _CeilingComparison:
    """A recording compared with the ceilings: by the model alone, and with counters."""

    timeline: Timeline
    attribution: Attribution
    work: OperatorWork
    model: Roofline
    counted: Roofline  # the same as `model` if nothing was counted
    joined: JoinedCounters


def compare_with_ceilings(
    timeline: Timeline,
    counters: Sequence[KernelCounters] = (),
    ceilings: Ceilings | None = None,
    steps: int = 1,
) -> _CeilingComparison:
    """`ceilings` None: the datasheet's."""
    attribution = attribute(timeline)
    work = operator_work(timeline, attribution)
    limits = ceilings or ceilings_for(timeline)
    model = roofline_of(timeline, attribution, work, limits, steps)
    joined = join_counters(counters, timeline) if len(timeline.device) else JoinedCounters()
    counted = model
    if joined.counters:
        counted = with_counters(timeline, attribution, work, model, joined.counters)
    return _CeilingComparison(timeline, attribution, work, model, counted, joined)


def heaviest_kernels(found: _CeilingComparison, most: int) -> set[str]:
    """The functions of kernels launched by the heaviest calls (an operator on some shapes), and of
    the heaviest kernels themselves. A call is counted only if all its kernels are."""
    timeline, work = found.timeline, found.work
    device = timeline.device
    kernels = device.kind == DeviceKind.KERNEL
    owned = kernels & (work.owner != NOTHING)
    kind = np.append(work.kind, np.int32(NOTHING))[work.owner]
    times = np.bincount(kind[owned], device.duration[owned], len(work.kinds))
    heavy = np.argsort(-times, kind="stable")[:most]
    chosen = owned & np.isin(kind, heavy[times[heavy] > 0])
    by_name = np.bincount(device.name[kernels], device.duration[kernels], len(timeline.names))
    names = np.argsort(-by_name, kind="stable")[:most]
    use = {*device.name[chosen].tolist(), *names[by_name[names] > 0].tolist()}
    return {kernel_base_name(timeline.name_of(name)) for name in use}


def host_rows(
    timeline: Timeline, work: OperatorWork, ceilings: Ceilings | None, steps: int
) -> list[OperatorUse]:
    """Operators by self time per step, heaviest first. An operator with known FLOPs includes the
    time of operators inside it."""
    host = timeline.host
    own = self_time(host)
    operators = np.flatnonzero(is_operator(timeline))
    owner = nearest(host.parent, work.kind != NOTHING)[operators]
    charged = np.where(owner == NOTHING, operators, owner)
    keys: dict[int, tuple[str, str | None]] = {}
    costs: dict[tuple[str, str | None], list[Any]] = defaultdict(list)
    for event in np.unique(charged).tolist():
        kind = int(work.kind[event])
        cost = work.kinds[kind].cost if kind >= 0 else None
        key = (timeline.name_of(int(host.name[event])), cost.dtype if cost else None)
        keys[event] = key
        costs[key].append(cost)
    time_of: dict[tuple[str, str | None], int] = defaultdict(int)
    for event, ns in zip(charged.tolist(), own[operators].tolist(), strict=True):
        time_of[keys[event]] += ns
    whole = sum(time_of.values())
    rows = [_host_row(*key, ns, costs[key], whole, ceilings, steps) for key, ns in time_of.items()]
    return sorted(rows, key=lambda row: -row.time_ms)


def _host_row(
    name: str,
    dtype: str | None,
    ns: int,
    costs: list[Any],
    whole: int,
    ceilings: Ceilings | None,
    steps: int,
) -> OperatorUse:
    row = OperatorUse(
        name=name,
        calls=len(costs) / steps,
        kernels=0,
        time_ms=ns / steps / 1e6,
        share=ns / whole if whole else 0.0,
    )
    if dtype is None:
        return row
    flops = float(sum(cost.flops for cost in costs))
    moved = _total(cost.bytes for cost in costs)
    matrix = costs[0].matrix
    compute, memory = least_times(flops, moved, dtype, ceilings, matrix)
    bound = least = None
    if memory is not None and (compute is not None or not matrix):
        least = max(compute or 0.0, memory)
        bound = "compute" if (compute or 0.0) > memory else "memory"
    return replace(
        row,
        dtype=dtype,
        category=costs[0].kind,
        flops=flops / steps,
        bytes=None if moved is None else moved / steps,
        flops_per_s=flops / ns * 1e9 if ns else None,
        bytes_per_s=moved / ns * 1e9 if moved is not None and ns else None,
        bound=bound,
        ceiling_share=least / ns if least is not None and ns else None,
    )


def study_kernels(found: _CeilingComparison, steps: int, top: int) -> results.KernelTables:
    """Tables per step, heaviest first; None: unknown."""
    timeline, limits, joined = found.timeline, found.counted.ceilings, found.joined
    has_device = len(timeline.device) > 0
    if has_device:
        rows = _operators(found, steps)
    else:
        rows = host_rows(timeline, found.work, limits, steps)
    shapes = [asdict(row) | {"calls": row.calls / steps} for row in found.counted.shapes[:top]]
    return results.KernelTables(
        on="device" if has_device else "host",
        steps=steps,
        work_ms=sum(row.time_ms for row in rows),
        ceilings=limits,
        known_share=sum(row.share for row in rows if row.flops is not None),
        operators=tuple(rows[:top]),
        operators_in_all=len(rows),
        shapes=tuple(
            results.ShapeUse(**row, time_ms=row["time_ns"] / steps / 1e6) for row in shapes
        ),
        kernels=tuple(_kernels(found, steps, top)) if has_device else (),
        launched=int(np.count_nonzero(timeline.device.kind == DeviceKind.KERNEL)) / steps,
        counted=len(joined.counters) / steps,
        join={one.name: getattr(joined, one.name) for one in fields(joined)[1:]},
        step=found.counted.step,
    )


def _operators(found: _CeilingComparison, steps: int) -> list[OperatorUse]:
    """Work by operator and dtype, with or without a FLOP model; copies and work no operator
    launched, by kernel."""
    timeline, device = found.timeline, found.timeline.device
    whole = float(device.duration.sum())
    models = {(row.name, row.dtype): row for row in found.model.kinds}
    shapes: dict[tuple[str, str], list[OperatorRate]] = defaultdict(list)
    for shape in found.counted.shapes:
        shapes[shape.name, shape.dtype].append(shape)
    rows = []
    for row in found.counted.kinds:
        model = models[row.name, row.dtype]
        rows.append(
            OperatorUse(
                name=row.name,
                dtype=row.dtype,
                category=row.category,
                calls=row.calls / steps,
                kernels=row.kernels / steps,
                time_ms=row.time_ns / steps / 1e6,
                share=row.time_ns / whole if whole else 0.0,
                flops=model.flops / steps,
                bytes=None if model.bytes is None else model.bytes / steps,
                flops_per_s=row.flops_per_s,
                bytes_per_s=row.bytes_per_s,
                bound=row.bound,
                ceiling_share=row.share,
                counted=_counted(shapes[row.name, row.dtype]),
            )
        )
    # Without known FLOPs: by operator, or by the work's own name.
    lost = np.flatnonzero(found.work.owner == NOTHING)
    operator = np.append(timeline.host.name, np.int32(NOTHING))[found.attribution.operator[lost]]
    named = (operator != NOTHING) & (device.kind[lost] == DeviceKind.KERNEL)
    names = np.where(named, operator, device.name[lost])
    sums = np.bincount(names, device.duration[lost], len(timeline.names))
    for number in np.flatnonzero(sums).tolist():
        ns, name = int(sums[number]), timeline.name_of(number)
        rows.append(OperatorUse(name=name, time_ms=ns / steps / 1e6, share=ns / whole))
    return sorted(rows, key=lambda row: -row.time_ms)


def _counted(rows: Sequence[OperatorRate]) -> results.CountedWork | None:
    """What counters say about the calls they saw, beside the model's values; None: nothing."""
    seen = [(row, row.measured) for row in rows if row.measured is not None]
    if not seen:
        return None
    counts = [one for _, one in seen]
    flops = _total(one.flops for one in counts)
    moved = _total(one.bytes for one in counts)
    model_flops = sum(one.model_flops for one in counts)
    model_bytes = _total(one.model_bytes for one in counts)
    time_ns = sum(row.time_ns for row in rows)
    covered = sum(row.time_ns * one.calls / row.calls for row, one in seen)
    return results.CountedWork(
        calls=sum(one.calls for one in counts),
        time_share=covered / time_ns if time_ns else 0.0,
        flops=flops,
        model_flops=model_flops,
        flops_error=model_flops / flops - 1 if flops else None,
        bytes=moved,
        model_bytes=model_bytes,
        bytes_ratio=moved / model_bytes if moved and model_bytes else None,
    )


def _kernels(found: _CeilingComparison, steps: int, top: int) -> list[results.KernelUse]:
    """Kernels, copies and memsets by name, with their counters and the operator with most of the
    kernel's time (None if no operator launched it)."""
    timeline, device = found.timeline, found.timeline.device
    operators = np.append(timeline.host.name, np.int32(NOTHING))[found.attribution.operator]
    counted = _by_name(found)
    rows = []
    for kernel in kernel_table(timeline, found.attribution)[:top]:
        use = device.name == timeline.names.index(kernel.name)
        times = np.bincount(operators[use].astype(np.int64) + 1, device.duration[use])
        most = int(times.argmax()) - 1
        rows.append(
            results.KernelUse(
                name=kernel.name,
                operator=timeline.name_of(most) if most >= 0 else None,
                category=kernel.category,
                runs=kernel.count / steps,
                time_ms=kernel.total_ns / steps / 1e6,
                share=kernel.share,
                tensor_core=kernel.tensor_core,
                occupancy=kernel.occupancy,
                counted=counted.get(kernel.name),
            )
        )
    return rows


def _by_name(found: _CeilingComparison) -> dict[str, results.KernelRates]:
    """Rates of the counted kernels: counters over the times in the recording."""
    timeline = found.timeline
    groups: dict[str, list[int]] = defaultdict(list)
    for event in found.joined.counters:
        groups[timeline.name_of(int(timeline.device.name[event]))].append(event)
    rates = {}
    for name, events in groups.items():
        seconds = float(timeline.device.duration[events].sum()) / 1e9
        flops = _total(found.joined.counters[event].flops for event in events)
        moved = _total(found.joined.counters[event].dram_bytes for event in events)
        rates[name] = results.KernelRates(
            runs=len(events),
            flops=None if flops is None else flops / len(events),
            bytes=None if moved is None else moved / len(events),
            flops_per_s=flops / seconds if flops is not None and seconds else None,
            bytes_per_s=moved / seconds if moved is not None and seconds else None,
        )
    return rates


def _total(values: Iterable[float | None]) -> float | None:
    """The sum; None if a value is unknown."""
    known = list(values)
    return None if None in known else float(sum(value or 0.0 for value in known))
