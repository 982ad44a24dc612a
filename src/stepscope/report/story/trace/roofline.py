"""Operators against the ceilings of the device."""

from typing import Any

from stepscope.record.units import format_rate
from stepscope.report.story.blocks import (
    Axis,
    Block,
    Chart,
    Column,
    Missing,
    Paragraph,
    Series,
    Table,
    scaled,
)
from stepscope.report.story.series import MAX_POINTS

Document = dict[str, Any]
_DRAWN = 0.001  # of the time of all: what is less would only stretch the axes
_COMPUTES = 1e-6  # of the highest rate: what is slower hardly computes


def roofline_blocks(analysed: Document, how: str) -> list[Block]:
    """`how`: what records the shapes that this needs."""
    found = analysed["roofline"]
    if found is None:
        return [Missing("No roofline: the recording has no shapes of operators.", how)]
    if found["ceilings"] is None:
        how = "Run stepscope doctor on the machine that has it."
        return [Missing("The ceilings of this device were not measured.", how), *_rates(found)]
    blocks: list[Block] = []
    # What can be drawn and takes time worth a point.
    least = _DRAWN * sum(one["time_ns"] for one in found["kinds"])
    slowest = _COMPUTES * max((one["flops_per_s"] or 0.0 for one in found["kinds"]), default=0.0)
    points = [
        one
        for one in found["kinds"]
        if one["intensity"] and (one["flops_per_s"] or 0.0) > slowest and one["time_ns"] >= least
    ]
    if points:
        blocks.append(_chart(found, points))
    step = found["step"]
    if step["mfu"] is not None:
        share = step["ceiling_share"]
        ceiling = "" if share is None else f", {share:.1%} of ceilings"
        words = f"A step is {format_rate(step['model_flops'], 'FLOPs')} of products"
        told = f"{words}: MFU {step['mfu']:.1%} of the datasheet's peak{ceiling}."
        blocks.append(Paragraph(told))
    return [*blocks, *_rates(found)]


def _chart(found: Document, points: list[Document]) -> Chart:
    """Log-log; a point below its ceiling leaves something to gain."""
    ceilings = found["ceilings"]
    low = min(one["intensity"] for one in points) / 2
    high = max(one["intensity"] for one in points) * 2
    used = {one["dtype"] for one in points}
    series = []
    for bound in ("compute", "memory", "launch", None):
        chosen = [one for one in points if one["bound"] == bound][:MAX_POINTS]
        texts = []
        for one in chosen:
            share = at_most_all(one["share"])
            of = "" if share is None else f", {share:.0%} of attainable"
            texts.append(f"{one['name']} {one['dtype']}{of}")
        if chosen:
            cloud = Series(
                f"{bound}-bound" if bound else "bound not known",
                [one["intensity"] for one in chosen],
                [one["flops_per_s"] / 1e12 for one in chosen],
                text=texts,
                size=[float(one["time_ns"]) for one in chosen],
            )
            series.append(cloud)
    for dtype, flops in ceilings["flops_per_s"].items():
        if dtype in used:
            series.append(_ceiling(dtype, flops, ceilings["bytes_per_s"], low, high))
    share = found["known_share"]
    seen = "" if share is None else f" They cover {share:.0%} of the device's computing time."
    memory = format_rate(ceilings["bytes_per_s"], "B/s")
    source = {"measured": "measured", "datasheet": "the datasheet's"}[ceilings["source"]]
    area = "Area is time; what takes less than 0.1% of it or hardly computes is in the table."
    note = f"Ceilings are {source}; memory {memory}. {area}{seen}"
    axes = (Axis("FLOPs per byte", log=True), Axis("TFLOP/s", log=True))
    return Chart("roofline", "scatter", "Roofline", tuple(series), *axes, note=note)


def _ceiling(dtype: str, flops: float, memory: float, low: float, high: float) -> Series:
    """Up along the memory's rate, then flat at the arithmetic's."""
    ridge = flops / memory
    corners = [x for x in (low, ridge, max(high, ridge * 2)) if x >= low]
    heights = [min(flops, memory * x) / 1e12 for x in corners]
    return Series(f"{dtype}: {format_rate(flops, 'FLOP/s')}", corners, heights, line=True)


def _rates(found: Document) -> list[Table]:
    steps = found["step"]["steps"]
    return Table.known(
        "roofline",
        "Operators against the ceilings",
        found["kinds"][:MAX_POINTS],
        (Column("operator"), lambda one: one["name"]),
        (Column("dtype"), lambda one: one["dtype"]),
        (Column.numeric("calls", "per step"), lambda one: one["calls"] / steps),
        (Column.numeric("time", "ms per step"), lambda one: one["time_ns"] / steps / 1e6),
        (Column.numeric("intensity", "FLOPs per byte"), lambda one: one["intensity"]),
        (Column.numeric("arithmetic", "TFLOP/s"), lambda one: scaled(one["flops_per_s"], 1e-12)),
        (Column.numeric("memory", "GB/s"), lambda one: scaled(one["bytes_per_s"], 1e-9)),
        (Column("bound by"), lambda one: one["bound"]),
        (Column.share("of attainable"), lambda one: at_most_all(one["share"])),
    )


def at_most_all(share: float | None) -> float | None:
    """A share of what is attainable; counting FLOPs may give a little more than 1."""
    return None if share is None else min(share, 1.0)
