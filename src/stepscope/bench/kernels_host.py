"""The operators of a recording without a device: whose time the host's is, and what they did."""

from collections import defaultdict
from typing import Any

import numpy as np

from stepscope.analyze.timeline.attribution import is_operator, nearest
from stepscope.analyze.timeline.roofline import least_times
from stepscope.analyze.timeline.roofline_ceilings import Ceilings
from stepscope.analyze.timeline.roofline_work import OperatorWork
from stepscope.analyze.timeline.threads import self_time
from stepscope.record.timeline import NOTHING, Timeline


def host_rows(
    timeline: Timeline, work: OperatorWork, ceilings: Ceilings | None, steps: int
) -> list[dict[str, Any]]:
    """Operators by their own time, heaviest first, per step.

    The time of operators within one whose FLOPs are known is that one's.
    """
    host = timeline.host
    own = self_time(host)
    operators = np.flatnonzero(is_operator(timeline))
    owner = nearest(host.parent, work.kind != NOTHING)[operators]
    charged = np.where(owner == NOTHING, operators, owner)
    time_of: dict[tuple[str, str | None], int] = defaultdict(int)
    for event, ns in zip(charged.tolist(), own[operators].tolist(), strict=True):
        time_of[_key(timeline, work, event)] += ns
    did: dict[tuple[str, str | None], list[Any]] = defaultdict(list)
    for event in np.unique(charged).tolist():
        number = int(work.kind[event])
        did[_key(timeline, work, event)].append(work.kinds[number].cost if number >= 0 else None)
    whole = sum(time_of.values())
    rows = [_row(key, ns, did[key], whole, ceilings, steps) for key, ns in time_of.items()]
    return sorted(rows, key=lambda row: -float(row["time_ms"]))


def _key(timeline: Timeline, work: OperatorWork, event: int) -> tuple[str, str | None]:
    number = int(work.kind[event])
    dtype = work.kinds[number].cost.dtype if number >= 0 else None
    return timeline.name_of(int(timeline.host.name[event])), dtype


def _row(
    key: tuple[str, str | None],
    ns: int,
    costs: list[Any],
    whole: int,
    ceilings: Ceilings | None,
    steps: int,
) -> dict[str, Any]:
    name, dtype = key
    known = dtype is not None
    flops = float(sum(cost.flops for cost in costs)) if known else None
    sizes: list[Any] = [cost.bytes for cost in costs] if known else [None]
    moved = None if None in sizes else float(sum(sizes))
    matrix = known and costs[0].matrix
    compute, memory = least_times(flops or 0.0, moved, dtype or "", ceilings, matrix)
    least = None
    if known and memory is not None and (compute is not None or not matrix):
        least = max(compute or 0.0, memory)
    ceiling = (
        None if least is None else "compute" if (compute or 0.0) > (memory or 0.0) else "memory"
    )
    return {
        "name": name,
        "dtype": dtype,
        "category": costs[0].kind if known else None,
        "calls": len(costs) / steps,
        "kernels": 0,
        "time_ms": ns / steps / 1e6,
        "share": ns / whole if whole else 0.0,
        "flops": None if flops is None else flops / steps,
        "bytes": None if moved is None else moved / steps,
        "flops_per_s": flops / ns * 1e9 if flops is not None and ns else None,
        "bytes_per_s": moved / ns * 1e9 if moved is not None and ns else None,
        "bound": ceiling,
        "ceiling_share": least / ns if least is not None and ns else None,
        "counted": None,
    }
