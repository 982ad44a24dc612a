"""Device time by kernel, category, operator, module, line and phase; use of tensor cores."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict, replace

from stepscope.analyze.timeline.attribution import (
    CATEGORIES,
    Attribution,
    event_categories,
    is_operator,
    nearest,
)
from stepscope.record.row_log import STEP_PHASES
from stepscope.record.timeline import NOTHING, Column, Timeline, distinct_values, map_rows

MATRIX_CATEGORIES: Final = tuple(
    CATEGORIES.index(name) for name in ("convolution", "matmul", "attention")
)
_ORDINARY_UNITS, MATRIX_UNITS, _UNKNOWN_UNITS = 0, 1, 2

# First what says that ordinary units do it: such names often also carry the words of the others.
_ORDINARY_NAMES: Final = re.compile(
    r"ffma|simt|splitk_?reduce|reducesplitk|reduce_wgrad|gemv|dot_kernel|epilogue::impl"
    r"|scal_kernel|scalepackedtensor|subtensorop|offsetskernel|init_device_workspace"
    r"|winograd(?!.{0,200}884)|(volta|ampere|maxwell|pascal|turing|hopper)_[scz]gemm|_scudnn|::scudnn"
    r"|sgemm_largek|magma_[sdcz]gemm|implicit_convolve_sgemm|(dgrad|wgrad)\w*_engine<float"
    r"|dgrad2d_alg|wgrad2d|fft|cgemm|im2col|col2im|naive_conv|miopensp3|dot_do_o|convert_dq"
    r"|gemmk1_kernel|reduce_segments|finalize|elementwise",
    re.IGNORECASE,
)
_MATRIX_NAMES: Final = re.compile(
    r"s16816|s1688|s161616|h16816|h1688|i16816|i16832|i8816|[hs]884|[hid]mma|wgmma|gmma|wmma|mfma"
    r"|tensor_?op|tensor\d+x\d+|tf32|tfloat32|nvjet|_mi\d+x\d+x\d+|xdlops?|_xdl_|gtcx\d?|flash"
    r"|sm(90|100|120)_xmma|warpgroup|sdpa|fmha\w*_(f16|bf16)"
    r"|(bf16|fp16|f16|half|fp8|e4m3|mxfp4)\w*(gemm|matmul)"
    r"|(gemm|matmul)\w*(bf16|fp16|f16|fp8|e4m3|mxfp4)",
    re.IGNORECASE,
)


def on_tensor_cores(name: str, category: str) -> bool | None:
    """Whether the kernel multiplies on matrix units; None where its name does not tell."""
    if category not in ("convolution", "matmul", "attention", "recurrent", "compiled"):
        return False
    if _ORDINARY_NAMES.search(name):
        return False
    if _MATRIX_NAMES.search(name):
        return True
    # Tensile writes MI… into every kernel that uses matrix cores.
    return False if name.startswith("Cijk_") else None


def event_tensor_cores(timeline: Timeline, categories: Column) -> Column:
    """uint8 for each device event: NO, YES or UNKNOWN."""

    def units(name: int, category: int) -> int:
        says = on_tensor_cores(timeline.name_of(name), CATEGORIES[category])
        return _UNKNOWN_UNITS if says is None else int(says)

    return map_rows([timeline.device.name, categories], units, np.uint8)


_BINS: Final = 48  # of durations: the last holds everything from 2^47 ns (39 hours)


class WorkGroup(Struct, frozen=True):
    """Device work that has something in common. `name` is None where that is not known."""

    name: str | None
    count: int
    total_ns: int
    mean_ns: float
    min_ns: int
    max_ns: int
    share: float  # of the time of all the work looked at


class Kernel(WorkGroup, frozen=True, kw_only=True):
    """All runs of one kernel (or copy, or memset)."""

    name: str
    category: str
    tensor_core: bool | None  # None: the name does not tell
    occupancy: float | None  # mean weighted by time, 0 to 1; None: not recorded
    histogram: dict[int, int]  # n -> how many runs took 2^n up to 2^(n+1) ns


class TensorCores(Struct, frozen=True):
    """How much of the device's time was on matrix units; None where there was none to share."""

    share: float | None  # of all device time
    matrix_share: float | None  # of the time of matmul, convolution and attention
    unknown_share: float | None  # of that time, in kernels whose name does not tell


class WorkBy(Struct, frozen=True):
    """The device's work by what it has in common."""

    category: list[WorkGroup]
    operator: list[WorkGroup]  # the innermost
    module: list[WorkGroup]
    line: list[WorkGroup]
    phase: list[WorkGroup]


@dataclass(frozen=True, slots=True)
class Kernels:
    """Everything about what ran on the device, each list heaviest first."""

    count: int
    total_ns: int  # added up over streams: overlapping work counts twice
    kernels: list[Kernel]
    by: WorkBy
    tensor_cores: TensorCores
    occupancy: float | None  # mean weighted by time; None: not recorded


def kernel_report(timeline: Timeline, attribution: Attribution) -> Kernels:
    """All tables at once."""
    categories = event_categories(timeline)
    units = event_tensor_cores(timeline, categories)
    duration = timeline.device.duration
    rising = np.argsort(duration, kind="stable")
    operator = timeline.host_names(attribution.operator)
    occupancy = _occupancies(timeline)[timeline.device.geometry]
    known = ~np.isnan(occupancy)
    weight = float(duration[known].sum())
    occupied = float((occupancy[known] * duration[known]).sum() / weight) if weight else None
    return Kernels(
        count=len(duration),
        total_ns=int(duration.sum()),
        kernels=_kernels(timeline, rising, categories, units, occupancy),
        by=WorkBy(
            category=_groups(categories, duration, rising, CATEGORIES),
            operator=_groups(operator, duration, rising, timeline.names),
            module=_groups(attribution.module, duration, rising, attribution.modules),
            line=_groups(attribution.line, duration, rising, timeline.names),
            phase=_groups(attribution.phase, duration, rising, STEP_PHASES),
        ),
        tensor_cores=_tensor_cores(duration, categories, units),
        occupancy=occupied,
    )


def kernel_table(timeline: Timeline, attribution: Attribution) -> list[Kernel]:
    """Every kernel, copy and memset by name, heaviest first."""
    return kernel_report(timeline, attribution).kernels


def _group_times(keys: Column, duration: Column, rising: Column, size: int) -> list[WorkGroup]:
    """Of each key below `size`, without a name; `rising` is the order of the durations."""
    # Of several assignments to one place the last stays: in order of duration, the longest.
    low, high = np.zeros(size, np.int64), np.zeros(size, np.int64)
    high[keys[rising]] = duration[rising]
    low[keys[rising[::-1]]] = duration[rising[::-1]]
    count = np.bincount(keys, minlength=size).tolist()
    total = np.bincount(keys, duration, size).astype(np.int64).tolist()
    whole = float(duration.sum())
    return [
        WorkGroup(None, n, ns, ns / max(n, 1), least, most, ns / whole if whole else 0.0)
        for n, ns, least, most in zip(count, total, low.tolist(), high.tolist(), strict=True)
    ]


def _groups(
    keys: Column, duration: Column, rising: Column, names: Sequence[str]
) -> list[WorkGroup]:
    """Groups by key, heaviest first; -1 is the group that is not known."""
    shifted = keys.astype(np.int64) + 1
    times = _group_times(shifted, duration, rising, int(shifted.max(initial=0)) + 1)
    used = [
        replace(group, name=names[key - 1] if key else None)
        for key, group in enumerate(times)
        if group.count
    ]
    return sorted(used, key=lambda group: -group.total_ns)


def _kernels(
    timeline: Timeline, rising: Column, categories: Column, units: Column, occupancy: Column
) -> list[Kernel]:
    duration = timeline.device.duration
    # The same name under another operator can be of another category: its own row.
    pairs = timeline.device.name.astype(np.int64) * len(CATEGORIES) + categories
    combined, first, keys = np.unique(pairs, return_index=True, return_inverse=True)
    keys = keys.ravel()
    size = len(combined)
    times = _group_times(keys, duration, rising, size)
    bins = np.clip(np.frexp(np.maximum(duration, 1).astype(float))[1] - 1, 0, _BINS - 1)
    histogram = np.bincount(keys * _BINS + bins, minlength=size * _BINS).reshape(size, _BINS)
    known = ~np.isnan(occupancy)
    weight = np.bincount(keys[known], duration[known], size)
    weighted = np.bincount(keys[known], duration[known] * occupancy[known], size)
    found = []
    for key, pair in enumerate(combined.tolist()):
        name, category = divmod(pair, len(CATEGORIES))
        found.append(
            Kernel(
                **asdict(times[key]) | {"name": timeline.name_of(name)},
                category=CATEGORIES[category],
                tensor_core={_ORDINARY_UNITS: False, MATRIX_UNITS: True}.get(units[first[key]]),
                occupancy=float(weighted[key] / weight[key]) if weight[key] else None,
                histogram={n: runs for n, runs in enumerate(histogram[key].tolist()) if runs},
            )
        )
    return sorted(found, key=lambda kernel: -kernel.total_ns)


def _occupancies(timeline: Timeline) -> Column:
    """By geometry, NaN where not known.

    Kineto writes 0 where it could not work it out; where less than a warp fell to each
    multiprocessor, 0 is its rounding.
    """
    known = (
        None if not one.occupancy and (one.warps_per_sm or 0.0) >= 1 else one.occupancy
        for one in timeline.geometries
    )
    return np.array([*known, None], float)


def _tensor_cores(duration: Column, categories: Column, units: Column) -> TensorCores:
    matrix = np.isin(categories, MATRIX_CATEGORIES)

    def share(of: Column, unit: int) -> float | None:
        whole = float(duration[of].sum())
        return float(duration[of & (units == unit)].sum()) / whole if whole else None

    everything = np.ones(len(duration), bool)
    return TensorCores(
        share=share(everything, MATRIX_UNITS),
        matrix_share=share(matrix, MATRIX_UNITS),
        unknown_share=share(matrix, _UNKNOWN_UNITS),
    )


class HeavyOperator(Struct, frozen=True):
    """All calls of an operator that is not part of another one."""

    name: str
    calls: int  # that launched work
    kernels: int
    device_ns: int  # of all it launched, itself or through the operators it called
    share: float  # of the time of all device work looked at
    host_ns: int  # from its calls' starts to their ends, added up
    host_self_ns: int  # the same without the operators it called


def heaviest_operators(
    timeline: Timeline, attribution: Attribution, limit: int = 10
) -> list[HeavyOperator]:
    """Outermost operators by the time of their device work, heaviest first."""
    host, device = timeline.host, timeline.device
    use = np.flatnonzero(attribution.top != NOTHING)
    top, duration = attribution.top[use], device.duration[use]
    calls = distinct_values(top)
    size = len(timeline.names)
    kernels = np.bincount(host.name[top], minlength=size)
    total = np.bincount(host.name[top], duration, size).astype(np.int64)
    count = np.bincount(host.name[calls], minlength=size)
    inside = np.bincount(host.name[calls], host.duration[calls], size)
    alone = np.bincount(host.name[calls], operator_self_times(timeline)[calls], size)
    order = np.argsort(-total, kind="stable")[:limit]
    whole = float(device.duration.sum())
    return [
        HeavyOperator(
            name=timeline.names[n],
            calls=int(count[n]),
            kernels=int(kernels[n]),
            device_ns=int(total[n]),
            share=float(total[n] / whole) if whole else 0.0,
            host_ns=int(inside[n]),
            host_self_ns=int(alone[n]),
        )
        for n in order.tolist()
        if kernels[n]
    ]


def operator_self_times(timeline: Timeline) -> Column:
    """Of each operator, the time not spent in operators it called."""
    host = timeline.host
    operators = is_operator(timeline)
    caller = nearest(host.parent, operators)[host.parent]
    called = np.flatnonzero(operators & (caller != NOTHING))
    times: Column = host.duration.copy()
    np.subtract.at(times, caller[called], host.duration[called])
    return np.maximum(times, 0)
