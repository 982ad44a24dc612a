"""The roofline: how close each operator, and the step, came to the device's ceilings."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from math import fsum
from typing import Final, Protocol

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from stepscope.analyze.timeline.attribution import Attribution
from stepscope.analyze.timeline.kernels import MATRIX_CATEGORIES
from stepscope.analyze.timeline.roofline.ceilings import Ceilings, datasheet_ceilings, used_device
from stepscope.analyze.timeline.roofline.operator_work import (
    OperatorCall,
    OperatorWork,
    TimedCalls,
    ceiling_dtype,
    group_calls,
    timed_calls,
)
from stepscope.record.timeline import NOTHING, Column, DeviceKind, Timeline

_ENOUGH: Final = 0.9  # of the time of matrix products must have known FLOPs to speak of the step's


class StepWork(Struct, frozen=True):
    """All steps looked at, and per step; None where too little is known to say it."""

    steps: int
    wall_ns: int
    matrix_known_share: float | None  # of the time of matmul, convolution, attention: FLOPs known
    matrix_flops: float | None  # per step: matrix products, convolutions, attention
    recomputed_flops: float | None  # per step, the part that is done a second time in backward
    model_flops: float | None  # per step, without that part
    flops_by_dtype: dict[str, float]  # per step, of model_flops
    mfu: float | None  # model FLOPs at the datasheet's dense peak of their dtypes / wall time
    ceiling_share: float | None  # the same against the ceilings given


def _step_work(
    timeline: Timeline,
    work: OperatorWork,
    calls: TimedCalls,
    ceilings: Ceilings | None,
    steps: int,
    wall_ns: int | None,
    selected: Column | None,
) -> StepWork:
    """Add up the products of the calls; what is said of steps and wall time is taken as given."""
    device = timeline.device
    matrix = np.isin(work.category, MATRIX_CATEGORIES)
    if selected is not None:
        matrix &= selected
    is_matrix = np.array([*(call.cost.matrix for call in work.kinds), False], bool)
    owned = is_matrix[np.append(work.kind, np.int32(NOTHING))[work.owner]]
    whole = int(device.duration[matrix].sum())
    share = int(device.duration[matrix & owned].sum()) / whole if whole else None
    if not len(device):
        share = 1.0 if len(calls.kind) else None
    if wall_ns is None:
        use = np.flatnonzero(selected) if selected is not None else np.arange(len(device))
        first, last = timeline.span
        if len(use):
            first, last = int(device.start[use].min()), int(device.end[use].max())
        wall_ns = last - first
    flops: dict[str, float] = defaultdict(float)
    again = 0.0
    for rows in group_calls(calls):
        cost = work.kinds[calls.kind[rows[0]]].cost
        if cost.matrix:
            dtype = ceiling_dtype(cost.dtype, bool(calls.on_matrix_units[rows[0]]))
            repeated = int(np.count_nonzero(calls.recomputed[rows]))
            again += float(cost.flops) * repeated
            flops[dtype] += float(cost.flops) * (len(rows) - repeated)
    steps, model = max(1, steps), sum(flops.values())
    enough = share is not None and share >= _ENOUGH
    found = used_device(timeline)
    peak = datasheet_ceilings(found) if found else None
    return StepWork(
        steps=steps,
        wall_ns=wall_ns,
        matrix_known_share=share,
        matrix_flops=(model + again) / steps if enough else None,
        recomputed_flops=again / steps if enough else None,
        model_flops=model / steps if enough else None,
        flops_by_dtype={d: f / steps for d, f in sorted(flops.items())} if enough else {},
        mfu=_utilisation(flops, peak, wall_ns) if enough else None,
        ceiling_share=_utilisation(flops, ceilings, wall_ns) if enough else None,
    )


def _utilisation(flops: dict[str, float], peak: Ceilings | None, wall_ns: int) -> float | None:
    if peak is None or not wall_ns or any(dtype not in peak.flops_per_s for dtype in flops):
        return None
    least_s = sum(amount / peak.flops_per_s[dtype] for dtype, amount in flops.items())
    return least_s / (wall_ns / 1e9)


_NAMED: Final = 10


class MeasuredWork(Struct, frozen=True):
    """What counters of the device say of some of the calls, beside what the model says of them."""

    calls: int  # whose kernels all have counters
    flops: float | None
    model_flops: float
    flops_error: float | None  # model / measured - 1
    bytes: float | None
    model_bytes: float | None
    bytes_error: float | None


class OperatorRate(Struct, frozen=True, kw_only=True):
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
    intensity: float | None = None  # FLOPs per byte
    flops_per_s: float | None = None
    bytes_per_s: float | None = None
    least_ns: float | None  # at the ceilings
    share: float | None = None  # of the attainable rate; above 1 where a cache spared memory
    ceiling: str | None  # "compute" or "memory": the nearer one
    bound: str | None  # the same, or "launch": too short, or the device waited for it
    measured: MeasuredWork | None = None


class Roofline(Struct, frozen=True):
    """Lists are heaviest first."""

    ceilings: Ceilings | None
    kinds: list[OperatorRate]  # by operator and dtype
    shapes: list[OperatorRate]  # by operator, dtype and shapes
    known_share: float | None  # of the device's time (communication and host copies aside)
    unknown_ns: dict[str, int]  # time of operators without a model or shapes; "" is no operator
    step: StepWork


def roofline_of(
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
    calls = timed_calls(timeline, attribution, work, selected)
    shapes = [
        _rate(work.kinds[calls.kind[rows[0]]], calls, rows, ceilings) for rows in group_calls(calls)
    ]
    use = work.on_device if selected is None else work.on_device & selected
    duration, lost = timeline.device.duration, use & (work.owner == NOTHING)
    whole = int(duration[use].sum())
    names = timeline.host_names(attribution.operator[lost])
    sums = np.bincount(names.astype(np.int64) + 1, duration[lost], len(timeline.names) + 1)
    worst = [n for n in np.argsort(-sums)[:_NAMED].tolist() if sums[n] > 0]
    return Roofline(
        ceilings=ceilings,
        kinds=_merge_rates(shapes),
        shapes=sorted(shapes, key=lambda row: -row.time_ns),
        known_share=1 - int(duration[lost].sum()) / whole if whole else None,
        unknown_ns={timeline.name_of(n - 1): int(sums[n]) for n in worst},
        step=_step_work(timeline, work, calls, ceilings, steps, wall_ns, selected),
    )


def _merge_rates(rows: Iterable[OperatorRate]) -> list[OperatorRate]:
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
            ceiling=_most((r.ceiling, r.time_ns) for r in group),
            bound=_most((r.bound, r.time_ns) for r in group),
            measured=group[0].measured if len(group) == 1 else None,
        )
        found.append(_with_rates(row))
    return sorted(found, key=lambda row: -row.time_ns)


def _with_rates(row: OperatorRate) -> OperatorRate:
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


def _nearest_ceiling(
    flops: float, least: float | None, dtype: str, ceilings: Ceilings | None, matrix: bool
) -> tuple[float | None, str | None]:
    """Nanoseconds at the ceiling that is nearer, and which it is; None where not known."""
    compute, memory = least_times(flops, least, dtype, ceilings, matrix)
    if memory is None or (compute is None and matrix):
        return None, None
    compute = compute or 0.0
    return max(compute, memory), "compute" if compute > memory else "memory"


def _rate(
    call: OperatorCall, calls: TimedCalls, rows: Column, ceilings: Ceilings | None
) -> OperatorRate:
    cost, count = call.cost, len(rows)
    dtype = ceiling_dtype(cost.dtype, cost.matrix and bool(calls.on_matrix_units[rows[0]]))
    flops = float(cost.flops) * count
    least = None if cost.bytes is None else float(cost.bytes) * count
    least_ns, ceiling = _nearest_ceiling(flops, least, dtype, ceilings, cost.matrix)
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
        least_ns=least_ns,
        ceiling=ceiling,
        bound="launch" if waited_for else ceiling,
    )
    return _with_rates(row)


def _most(weighted: Iterable[tuple[str | None, int]]) -> str | None:
    """The word with most time."""
    times: Counter[str | None] = Counter()
    for word, time in weighted:
        times[word] += time
    return times.most_common(1)[0][0]


def _sum(values: Iterable[float | None]) -> float | None:
    known = list(values)
    return None if None in known else fsum(v for v in known if v is not None)


class WorkCounters(Protocol):
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
    counters: Mapping[int, WorkCounters],
) -> Roofline:
    """Replace the FLOPs and bytes of operators by those measured, the model's kept beside.

    `counters` are by device event. Only calls whose every kernel was counted are used; what they
    show per call stands for all calls of the same operator on the same shapes.
    """
    device = timeline.device
    moved, done = np.full(len(device), np.nan), np.full(len(device), np.nan)
    for event, counted in counters.items():
        if 0 <= event < len(device):
            moved[event] = np.nan if counted.dram_bytes is None else counted.dram_bytes
            done[event] = np.nan if counted.flops is None else counted.flops
    use = np.flatnonzero((work.owner != NOTHING) & (device.kind == DeviceKind.KERNEL))
    owner, size = work.owner[use], len(timeline.host)
    # By call: NaN where not counted; complete where all kernels were.
    bytes_, flops = np.bincount(owner, moved[use], size), np.bincount(owner, done[use], size)
    seen, every = ~(np.isnan(moved) & np.isnan(done)), np.bincount(owner, minlength=size)
    complete = (every > 0) & (np.bincount(owner, seen[use], size) == every)
    calls = timed_calls(timeline, attribution, work, None)
    sums: dict[tuple[str, str, str], list[int]] = {}
    for n in np.flatnonzero(complete[calls.host]).tolist():
        call = work.kinds[calls.kind[n]]
        units = call.cost.matrix and bool(calls.on_matrix_units[n])
        key = (call.name, call.shape, ceiling_dtype(call.cost.dtype, units))
        sums.setdefault(key, []).append(int(calls.host[n]))
    rows = []
    for row in found.shapes:
        hosts = sums.get((row.name, row.shape or "", row.dtype))
        rows.append(_with_measured(row, flops[hosts], bytes_[hosts], found) if hosts else row)
    return replace(found, shapes=rows, kinds=_merge_rates(rows))


def _with_measured(
    row: OperatorRate, flops: Column, bytes_: Column, found: Roofline
) -> OperatorRate:
    calls = len(flops)
    model_flops = row.flops / row.calls * calls
    model_bytes = None if row.bytes is None else row.bytes / row.calls * calls
    told_flops, told_bytes = (
        None if np.isnan(values).any() else float(values.sum()) for values in (flops, bytes_)
    )
    beside = MeasuredWork(
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
    least, ceiling = _nearest_ceiling(new_flops, new_bytes, row.dtype, found.ceilings, matrix)
    if least is None:
        least, ceiling = row.least_ns, row.ceiling
    bound = "launch" if row.bound == "launch" else ceiling
    row = replace(row, flops=new_flops, bytes=new_bytes, least_ns=least, ceiling=ceiling)
    return _with_rates(replace(row, bound=bound, measured=beside))


def _error(model: float | None, told: float | None) -> float | None:
    return None if model is None or not told else model / told - 1
