"""How near the device's work came to what the device can do, by operator and for the step."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import fsum
from typing import Final

import numpy as np

from stepscope.analyze.timeline.attribution import Attribution
from stepscope.analyze.timeline.roofline_calls import Calls, alike, calls_of, used_dtype
from stepscope.analyze.timeline.roofline_ceilings import Ceilings
from stepscope.analyze.timeline.roofline_step import StepWork, step_work
from stepscope.analyze.timeline.roofline_work import Call, OperatorWork
from stepscope.record.timeline import NOTHING, Column, Timeline

_NAMED: Final = 10


@dataclass(frozen=True, slots=True)
class Measured:
    """What counters of the device say of some of the calls, beside what the model says of them."""

    calls: int  # whose kernels all have counters
    flops: float | None
    model_flops: float
    flops_error: float | None  # model / measured - 1
    bytes: float | None
    model_bytes: float | None
    bytes_error: float | None


@dataclass(frozen=True, slots=True)
class OperatorRate:
    """Calls of an operator held against the ceilings; None where something is not known."""

    name: str
    shape: str | None  # of its inputs, as recorded; None: calls of several shapes
    category: str
    dtype: str  # of the arithmetic; tf32 where fp32 was multiplied on matrix units
    calls: int
    kernels: int
    time_ns: int  # of its kernels
    flops: float
    bytes: float | None  # the least that must be read and written
    intensity: float | None  # FLOPs per byte
    flops_per_s: float | None
    bytes_per_s: float | None
    least_ns: float | None  # at the ceilings
    share: float | None  # of the attainable rate; above 1 where a cache served what memory need not
    ceiling: str | None  # "compute" or "memory": the nearer one
    bound: str | None  # the same, or "launch": too short, or the device waited for it
    measured: Measured | None = None


@dataclass(frozen=True, slots=True)
class Roofline:
    """Lists are heaviest first."""

    ceilings: Ceilings | None
    kinds: list[OperatorRate]  # by operator and dtype
    shapes: list[OperatorRate]  # by operator, dtype and shapes
    known_share: float | None  # of the device's time (communication and host copies aside)
    unknown_ns: dict[str, int]  # time of operators without a model or shapes; "" is no operator
    step: StepWork


def roofline(
    timeline: Timeline,
    attribution: Attribution,
    work: OperatorWork,
    ceilings: Ceilings | None,
    steps: int = 1,
    wall_ns: int | None = None,
    selected: Column | None = None,
) -> Roofline:
    """Hold the device events `selected` (None: all) against the ceilings.

    `steps` and `wall_ns` are of the same stretch; wall_ns None: from its first to its last work.
    """
    calls = calls_of(timeline, attribution, work, selected)
    shapes = [_rate(work.kinds[calls.kind[rows[0]]], calls, rows, ceilings)
              for rows in alike(calls)]  # fmt: skip
    use = work.on_device if selected is None else work.on_device & selected
    known, unknown = _coverage(timeline, attribution, work, use)
    return Roofline(
        ceilings=ceilings,
        kinds=merged(shapes),
        shapes=sorted(shapes, key=lambda row: -row.time_ns),
        known_share=known,
        unknown_ns=unknown,
        step=step_work(timeline, work, calls, ceilings, steps, wall_ns, selected),
    )


def merged(rows: Iterable[OperatorRate]) -> list[OperatorRate]:
    """Rows of the same operator and dtype as one, heaviest first."""
    together: dict[tuple[str, str], list[OperatorRate]] = defaultdict(list)
    for row in rows:
        together[row.name, row.dtype].append(row)
    found = []
    for group in together.values():
        row = replace(
            group[0],
            shape=group[0].shape if len(group) == 1 else None,
            calls=sum(r.calls for r in group),
            kernels=sum(r.kernels for r in group),
            time_ns=sum(r.time_ns for r in group),
            flops=sum(r.flops for r in group),
            bytes=_sum(r.bytes for r in group),
            least_ns=_sum(r.least_ns for r in group),
            ceiling=_most([(r.ceiling, r.time_ns) for r in group]),
            bound=_most([(r.bound, r.time_ns) for r in group]),
            measured=group[0].measured if len(group) == 1 else None,
        )
        found.append(rated(row))
    return sorted(found, key=lambda row: -row.time_ns)


def rated(row: OperatorRate) -> OperatorRate:
    """The row with its rates worked out from its sums."""
    seconds = row.time_ns / 1e9
    return replace(
        row,
        intensity=row.flops / row.bytes if row.bytes else None,
        flops_per_s=row.flops / seconds if seconds else None,
        bytes_per_s=row.bytes / seconds if seconds and row.bytes is not None else None,
        share=row.least_ns / row.time_ns if row.time_ns and row.least_ns is not None else None,
    )


def least_times(
    flops: float, least: float | None, dtype: str, ceilings: Ceilings | None, matrix: bool
) -> tuple[float | None, float | None]:
    """Nanoseconds at the ceilings of arithmetic and of memory; None where one is not known."""
    if ceilings is None:
        return None, None
    # What is not a matrix product runs on the ordinary units, which compute in fp32.
    rate = ceilings.flops_per_s.get(dtype if matrix or dtype == "fp64" else "fp32")
    compute = flops / rate * 1e9 if rate else None
    return compute, None if least is None else least / ceilings.bytes_per_s * 1e9


def _rate(call: Call, calls: Calls, rows: Column, ceilings: Ceilings | None) -> OperatorRate:
    cost, count = call.cost, len(rows)
    dtype = used_dtype(cost.dtype, cost.matrix and bool(calls.on_matrix_units[rows[0]]))
    flops = float(cost.flops) * count
    least = None if cost.bytes is None else float(cost.bytes) * count
    compute, memory = least_times(flops, least, dtype, ceilings, cost.matrix)
    known = memory is not None and (compute is not None or not cost.matrix)
    ceiling = None if not known else "compute" if (compute or 0) > (memory or 0) else "memory"
    waited_for = np.count_nonzero(calls.waited_for[rows]) * 2 >= count
    row = OperatorRate(
        name=call.name,
        shape=call.shape,
        category=cost.kind,
        dtype=dtype,
        calls=count,
        kernels=int(calls.kernels[rows].sum()),
        time_ns=int(calls.time[rows].sum()),
        flops=flops,
        bytes=least,
        intensity=None,
        flops_per_s=None,
        bytes_per_s=None,
        least_ns=max(compute or 0.0, memory or 0.0) if known else None,
        share=None,
        ceiling=ceiling,
        bound="launch" if waited_for else ceiling,
    )
    return rated(row)


def _coverage(
    timeline: Timeline, attribution: Attribution, work: OperatorWork, use: Column
) -> tuple[float | None, dict[str, int]]:
    duration = timeline.device.duration
    whole = int(duration[use].sum())
    lost = use & (work.owner == NOTHING)
    names = np.append(timeline.host.name, np.int32(NOTHING))[attribution.operator[lost]]
    sums = np.bincount(names.astype(np.int64) + 1, duration[lost], len(timeline.names) + 1)
    worst = [n for n in np.argsort(-sums)[:_NAMED].tolist() if sums[n] > 0]
    unknown = {timeline.name_of(n - 1): int(sums[n]) for n in worst}
    return 1 - int(duration[lost].sum()) / whole if whole else None, unknown


def _most(weighted: list[tuple[str | None, int]]) -> str | None:
    """The word with most time."""
    times: dict[str | None, int] = defaultdict(int)
    for word, time in weighted:
        times[word] += time
    return max(times, key=lambda word: times[word])


def _sum(values: Iterable[float | None]) -> float | None:
    known = list(values)
    return None if None in known else fsum(v for v in known if v is not None)
