"""Every kernel in a row, with the operator that launched it and how near that came to a ceiling."""

from typing import Any

import numpy as np

from stepscope.analyze.timeline.attribution import attribute
from stepscope.record.timeline import NOTHING, Timeline
from stepscope.report.story.blocks import Cell, Column, Table
from stepscope.report.story.columns import told_table
from stepscope.report.story.thin import MOST

Document = dict[str, Any]

_COLUMNS = (
    Column("kernel"),
    Column("category"),
    Column("operator"),
    Column("runs", "per step", number=True),
    Column("time", "ms per step", number=True),
    Column("share", number=True, percent=True),
    Column("mean", "µs", number=True),
    Column("longest", "µs", number=True),
    Column("bound by"),
    Column("of attainable", number=True, percent=True),
    Column("tensor cores"),
    Column("occupancy", number=True, percent=True),
)


def kernel_table(analysed: Document, timeline: Timeline | None) -> Table:
    """Heaviest first; the lightest are left out where there are more than a table holds."""
    kernels = analysed["kernels"]
    launched = main_operators(timeline) if timeline is not None else {}
    rates = _rates(analysed)
    steps = analysed["steps"]["count"]
    rows = tuple(_row(one, steps, launched, rates) for one in kernels[:MOST])
    note = " (what bounds them is that of the operator)" if rates else ""
    left = f", the heaviest {MOST:,} of {len(kernels):,}" if len(kernels) > MOST else ""
    return told_table("kernels", _COLUMNS, rows, f"Kernels{left}{note}")


def main_operators(timeline: Timeline) -> dict[str, str]:
    """By kernel, the operator that most of its time was launched by."""
    device, host = timeline.device, timeline.host
    if not len(device) or not len(host):
        return {}
    operator = np.append(host.name, np.int32(NOTHING))[attribute(timeline).operator]
    known = operator != NOTHING
    pairs = np.stack((device.name[known], operator[known]))
    if not pairs.size:
        return {}
    keys, which = np.unique(pairs, axis=1, return_inverse=True)
    time = np.bincount(which.ravel(), device.duration[known])
    ordered = keys[:, np.argsort(time, kind="stable")].T.tolist()
    return {timeline.names[kernel]: timeline.names[name] for kernel, name in ordered}


def _rates(analysed: Document) -> dict[str, Document]:
    """By operator, its heaviest row of the roofline."""
    kinds = (analysed["roofline"] or {}).get("kinds", ())
    return {rate["name"]: rate for rate in sorted(kinds, key=lambda rate: rate["time_ns"])}


def _row(
    kernel: Document, steps: int, launched: dict[str, str], rates: dict[str, Document]
) -> tuple[Cell, ...]:
    operator = launched.get(kernel["name"])
    rate = rates.get(operator or "", {})
    share = rate.get("share")
    return (
        kernel["name"],
        kernel["category"],
        operator,
        kernel["count"] / steps,
        kernel["total_ns"] / steps / 1e6,
        kernel["share"],
        kernel["mean_ns"] / 1e3,
        kernel["max_ns"] / 1e3,
        rate.get("bound"),
        None if share is None else min(share, 1.0),
        kernel["tensor_core"],
        kernel["occupancy"],
    )
