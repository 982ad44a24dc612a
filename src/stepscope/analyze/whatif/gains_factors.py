"""Kernels scaled by a factor for each operator: roofline rows turned into a change."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from stepscope.analyze.whatif.changes import Change, scale_kernels
from stepscope.analyze.whatif.gains_known import Row
from stepscope.analyze.whatif.select import kernels
from stepscope.analyze.whatif.tasks import Tasks
from stepscope.record.timeline import Column

REACHED = 0.75
"""Of a ceiling: what large kernels get of it, a prior."""
LEAST_NS = 2_000.0
"""Of a kernel: none is shorter."""
SHORT_NS = 10_000.0
"""Kernels shorter than this are bound by latency, which neither rates nor bytes change."""
LATENCY_STAYS = 0.8
"""Of such a kernel's time, a prior."""
NewTime = Callable[[Row], float | None]
"""The nanoseconds that a row of the roofline would take; None: as long as now."""


def bounded(row: Row, least_ns: float, rest: float) -> float | None:
    """A row's time when its bound at the ceilings falls to `least_ns`.

    What it takes beyond REACHED of its present bound (small sizes, layout changes, bad tiles)
    falls to the share `rest`. None where its present bound is not known, or nothing is gained.
    """
    now, bound, count = float(row["time_ns"]), row.get("least_ns"), max(1, row["kernels"])
    if bound is None or now <= 0:
        return None
    explained = min(now, bound / REACHED)
    stays = rest if now / count >= SHORT_NS else max(rest, LATENCY_STAYS)
    after = max(least_ns / REACHED + (now - explained) * stays, LEAST_NS * count)
    return after if after < now else None


def by_operator(rows: Iterable[Row], new_time: NewTime) -> dict[str, float]:
    """For each operator its new time over its present one; those that stay are left out."""
    before: dict[str, float] = defaultdict(float)
    after: dict[str, float] = defaultdict(float)
    for row in rows:
        time, new = float(row["time_ns"]), new_time(row)
        before[row["name"]] += time
        after[row["name"]] += time if new is None else new
    return {n: after[n] / t for n, t in before.items() if t > 0 and after[n] != t}


def scaled(factors: Mapping[str, float]) -> Change | None:
    """Each operator's kernels take its factor times as long; None where there is none."""
    if not factors:
        return None

    def factor(tasks: Tasks) -> Column:
        by_name = np.ones(len(tasks.names) + 1)
        for index in np.unique(tasks.work.operator).tolist():
            if index >= 0:
                by_name[index] = factors.get(tasks.names[index], 1.0)
        times: Column = by_name[tasks.work.operator]
        return times

    return scale_kernels(kernels(operator=any_of(factors)), factor)


def any_of(names: Iterable[str]) -> str:
    """A regular expression that finds exactly these names."""
    return "^(" + "|".join(re.escape(name) for name in sorted(names)) + ")$"
