"""Memory in the recorded window, allocation by allocation."""

from typing import Any

from stepscope.report.story.blocks import Axis, Block, Chart, Column, Say, Series
from stepscope.report.story.columns import told_table
from stepscope.report.story.thin import thinned
from stepscope.report.story.units import memory_unit
from stepscope.report.text import size

Document = dict[str, Any]
_KEPT = 1000  # points that the analysis keeps of a device


def window_memory(analysed: Document) -> list[Block]:
    """Each device's (or the host's) memory; nothing where none was recorded."""
    blocks: list[Block] = []
    for number, use in enumerate(analysed["memory"] or ()):
        blocks += [_chart(use, number), Say(_told(use)), *_owners(use, number)]
    return blocks


def _name(use: Document) -> str:
    return "the host" if use["device"] is None else f"GPU {use['device']}"


def _chart(use: Document, number: int) -> Chart:
    points = use["points"]
    unit, name = memory_unit([use["peak_reserved_bytes"] or use["peak_bytes"]])
    times = [point["time_ns"] / 1e6 for point in points]
    series = [Series("allocated", times, [point["allocated_bytes"] / unit for point in points])]
    if any(point["reserved_bytes"] is not None for point in points):
        held = [
            float("nan") if point["reserved_bytes"] is None else point["reserved_bytes"] / unit
            for point in points
        ]
        series.append(Series("reserved", times, held))
    base = "" if use["absolute"] else "Counted from the lowest level: no totals were recorded. "
    return Chart(
        f"memory-window-{number + 1}",
        "line",
        f"Memory of {_name(use)} in the recorded steps",
        tuple(series),
        x=Axis("ms"),
        y=Axis(name),
        note=(base + thinned(use["events"], "changes", _KEPT)).strip(),
    )


def _told(use: Document) -> str:
    step = f" in {use['peak_step']}" if use["peak_step"] else ""
    text = f"It peaks at {size(use['peak_bytes'])}{step}"
    if use["before_bytes"]:
        text += f", {size(use['before_bytes'])} of it allocated before the recording"
    if use["fragmented_bytes"]:
        text += f"; the allocator holds {size(use['fragmented_bytes'])} more"
    if use["grows_every_step"]:
        growth = size(use["growth_per_step_bytes"])
        text += f". It grows every step, by {growth}: the sign of a leak"
    return f"{text}."


def _owners(use: Document, number: int) -> list[Block]:
    columns = (
        Column("operator"),
        Column("module"),
        Column("line"),
        Column("phase"),
        Column("memory", "MiB", number=True),
        Column("of the peak", number=True, percent=True),
        Column("allocations", number=True, digits=6),
    )
    peak = use["peak_bytes"] or 1
    rows = tuple(
        (
            one["operator"],
            one["module"],
            one["line"],
            one["phase"],
            one["bytes"] / 2**20,
            one["bytes"] / peak,
            one["count"],
        )
        for one in use["owners"]
    )
    title = f"Who owned the peak of {_name(use)}"
    return [told_table(f"memory-peak-{number + 1}", columns, rows, title)] if rows else []
