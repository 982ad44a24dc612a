"""The FLOPs of a step, and how much of what the device could do in its time they are."""

from collections import defaultdict
from dataclasses import dataclass
from typing import Final

import numpy as np

from stepscope.analyze.timeline.roofline_calls import Calls, alike, used_dtype
from stepscope.analyze.timeline.roofline_ceilings import Ceilings, datasheet, used_device
from stepscope.analyze.timeline.roofline_work import OperatorWork
from stepscope.analyze.timeline.tensorcore import MATRIX
from stepscope.record.timeline import NOTHING, Column, Timeline

_ENOUGH: Final = 0.9  # of the time of matrix products must have known FLOPs to speak of the step's


@dataclass(frozen=True, slots=True)
class StepWork:
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


def step_work(
    timeline: Timeline,
    work: OperatorWork,
    calls: Calls,
    ceilings: Ceilings | None,
    steps: int,
    wall_ns: int | None,
    selected: Column | None,
) -> StepWork:
    """Add up the products of the calls; what is said of steps and wall time is taken as given."""
    device = timeline.device
    matrix = np.isin(work.category, MATRIX)
    if selected is not None:
        matrix &= selected
    is_matrix = np.array([*(call.cost.matrix for call in work.kinds), False], bool)
    owned = is_matrix[np.append(work.kind, np.int32(NOTHING))[work.owner]]
    whole = int(device.duration[matrix].sum())
    share = int(device.duration[matrix & owned].sum()) / whole if whole else None
    if not len(device):
        share = 1.0 if len(calls.kind) else None
    if wall_ns is None:
        wall_ns = _extent(timeline, selected)
    flops: dict[str, float] = defaultdict(float)
    again = 0.0
    for rows in alike(calls):
        cost = work.kinds[calls.kind[rows[0]]].cost
        if cost.matrix:
            dtype = used_dtype(cost.dtype, bool(calls.on_matrix_units[rows[0]]))
            repeated = int(np.count_nonzero(calls.recomputed[rows]))
            again += float(cost.flops) * repeated
            flops[dtype] += float(cost.flops) * (len(rows) - repeated)
    steps = max(1, steps)
    enough = share is not None and share >= _ENOUGH
    model = sum(flops.values())
    found = used_device(timeline)
    peak = datasheet(found) if found else None
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


def _extent(timeline: Timeline, selected: Column | None) -> int:
    device = timeline.device
    use = np.flatnonzero(selected) if selected is not None else np.arange(len(device))
    if not len(use):
        return timeline.span[1] - timeline.span[0]
    return int(device.end[use].max() - device.start[use].min())


def _utilisation(flops: dict[str, float], peak: Ceilings | None, wall_ns: int) -> float | None:
    if peak is None or not wall_ns or any(dtype not in peak.flops_per_s for dtype in flops):
        return None
    least_s = sum(amount / peak.flops_per_s[dtype] for dtype, amount in flops.items())
    return least_s / (wall_ns / 1e9)
