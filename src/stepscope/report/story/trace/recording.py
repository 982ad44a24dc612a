"""Idle time by cause, communication, host work and memory in a recording."""

from math import nan
from typing import Any

from stepscope.record.units import format_bytes, format_number, memory_unit
from stepscope.report.story.blocks import (
    Block,
    Chart,
    Column,
    Paragraph,
    Section,
    Series,
    Table,
    Weight,
    scaled,
)
from stepscope.report.story.phrases import IDLE_CAUSES, costliest_place, without_autograd_prefix
from stepscope.report.story.series import downsample_note

Document = dict[str, Any]
_LEAST = 0.0005  # of the recorded step
_PLACES = 5  # of a cause
_RECORDED = "ms per step, recorded"


def idle_blocks(analysed: Document) -> list[Block]:
    """Nothing if no device was recorded or it was never idle."""
    wall, idle = analysed["breakdown_ns"]["wall"], analysed["idle_ns"]
    known = ((ns, cause) for cause, ns in idle.items() if ns and wall and ns >= _LEAST * wall)
    causes = sorted(known, reverse=True)
    if not causes:
        return []
    names = [IDLE_CAUSES.get(cause, cause) for _, cause in causes]
    series = Series("", names, [100 * ns / wall for ns, _ in causes])
    steps, found = analysed["steps"]["count"], busiest_device(analysed)["idle"]
    places = [
        (cause, place)
        for _, cause in causes
        for place in found.get(cause, {}).get("places", ())[:_PLACES]
    ]
    return [
        Chart.bars("idle", "GPU idle time by cause", series, unit="% of the recorded step"),
        *Table.known(
            "idle",
            "What the host did meanwhile",
            places,
            (Column("cause"), lambda at: IDLE_CAUSES.get(at[0], at[0])),
            (Column("the host was in"), lambda at: without_autograd_prefix(at[1]["where"] or "")),
            (Column("operator"), lambda at: at[1]["operator"]),
            (Column.numeric("idle", _RECORDED), lambda at: at[1]["total_ns"] / steps / 1e6),
            (Column.share("share"), lambda at: at[1]["total_ns"] / wall),
        ),
    ]


def idle_causes_table(analysed: Document) -> list[Table]:
    """Causes of idle time above 1% of a step, each with the costliest place on the host."""
    idle, wall = analysed["idle_ns"], analysed["breakdown_ns"]["wall"]
    known = [(ns, cause) for cause, ns in idle.items() if ns and ns > 0.01 * wall]
    if not known:
        return []
    steps, causes = analysed["steps"]["count"], busiest_device(analysed)["idle"]
    place = Column("the host was in", clip=True, priority=1)
    return Table.known(
        "idle-causes",
        "Why the GPU is idle",
        sorted(known, reverse=True),
        (Column("cause"), lambda one: IDLE_CAUSES[one[1]]),
        (Column.numeric("idle", "ms/step"), lambda one: one[0] / steps / 1e6),
        (Column.share("share"), lambda one: one[0] / wall),
        (place, lambda one: costliest_place(causes[one[1]]["places"])),
    )


def busiest_device(analysed: Document) -> Document:
    """The busiest device."""
    devices: list[Document] = analysed["devices"]
    return max(devices, key=lambda one: one["breakdown_ns"]["wall"] - one["breakdown_ns"]["idle"])


def communication_sections(analysed: Document) -> list[Section]:
    """Nothing without communication."""
    talk, steps = analysed["communication"], analysed["steps"]["count"]
    if talk is None:
        return []
    rank, ranks = analysed["source"]["rank"], analysed["source"]["world_size"]
    who = "" if rank is None else f"This is rank {rank}" + (f" of {ranks}. " if ranks else ". ")
    blocks: list[Block] = []
    if talk["device_ns"]:
        exposed = format_number(talk["exposed_ns"] / steps / 1e6)
        each = format_number(talk["device_ns"] / steps / 1e6)
        who += f"Communication takes {each} ms of a step, {exposed} ms of it exposed."
    if who:
        blocks.append(Paragraph(who.strip()))
    blocks += Table.known(
        "collectives",
        "Collectives",
        talk["kinds"],
        (Column("collective"), lambda one: one["kind"]),
        (Column("where"), lambda one: one["where"]),
        (Column.numeric("calls", "per step"), lambda one: one["count"] / steps),
        (Column.numeric("data", "MB per step"), lambda one: scaled(one["bytes"], 1 / steps / 1e6)),
        (Column.numeric("time", "ms per step"), lambda one: one["time_ns"] / steps / 1e6),
        (Column.numeric("bus", "GB/s"), lambda one: scaled(one["bus_bytes_per_s"], 1e-9)),
        (Column.share("hidden"), lambda one: one["overlap_share"]),
    )
    folder = "To compare ranks, put their traces in a folder: stepscope analyze FOLDER."
    blocks.append(Paragraph(folder))
    return [Section("communication", "Communication", tuple(blocks), Weight.DETAIL)]


def host_blocks(analysed: Document) -> list[Block]:
    """Operators by host self time, and the host's threads."""
    host = analysed["host"]
    if host is None:
        return []
    steps, waits = analysed["steps"]["count"], Column.numeric("waits for the device", "ms")
    return [
        *_host_table("host-operators", "operator", "What the host does", host["operators"], steps),
        *Table.known(
            "threads",
            "Host threads",
            host["threads"],
            (Column("thread"), lambda one: one["name"]),
            (Column.numeric("busy", "ms"), lambda one: one["busy_ns"] / 1e6),
            (Column.share("share"), lambda one: one["busy_share"]),
            (waits, lambda one: one["blocked_ns"] / 1e6),
            shown=8,
        ),
    ]


def function_blocks(lines: list[Document], steps: int) -> list[Table]:
    """The user's functions by host time, from a recording with stacks."""
    return _host_table("functions", "function", "Your functions on the host", lines, steps, 20)


def _host_table(
    name: str, what: str, title: str, lines: list[Document], steps: int, shown: int = 10
) -> list[Table]:
    """What ran on the host, by self time and with callees."""
    return Table.known(
        name,
        title,
        lines,
        (Column(what), lambda one: one["name"]),
        (Column.numeric("calls", "per step"), lambda one: one["count"] / steps),
        (Column.numeric("alone", _RECORDED), lambda one: one["self_ns"] / steps / 1e6),
        (Column.numeric("with callees", _RECORDED), lambda one: one["total_ns"] / steps / 1e6),
        shown=shown,
    )


def window_memory(analysed: Document) -> list[Block]:
    """Each device's (or the host's) memory; nothing if none was recorded."""
    blocks: list[Block] = []
    for number, use in enumerate(analysed["memory"] or (), start=1):
        whose = "the host" if use["device"] is None else f"GPU {use['device']}"
        points = use["points"]
        unit, name = memory_unit([use["peak_reserved_bytes"] or use["peak_bytes"]])
        times = [point["time_ns"] / 1e6 for point in points]
        series = [Series("allocated", times, [point["allocated_bytes"] / unit for point in points])]
        reserved = [point["reserved_bytes"] for point in points]
        if any(value is not None for value in reserved):
            values = [nan if value is None else value / unit for value in reserved]
            series.append(Series("reserved", times, values))
        base = "" if use["absolute"] else "Counted from the lowest level: no totals were recorded. "
        # The analysis keeps 1,000 points of a device.
        note = (base + downsample_note(use["events"], "changes", 1000)).strip()
        title = f"Memory of {whose} in the recorded steps"
        chart = Chart.lines(f"memory-window-{number}", title, *series, x="ms", y=name, note=note)
        blocks += [chart, Paragraph(_peak_sentence(use))]

        blocks += Table.known(
            f"memory-peak-{number}",
            f"Who owned the peak of {whose}",
            [{**one, "share": one["bytes"] / (use["peak_bytes"] or 1)} for one in use["owners"]],
            (Column("operator"), lambda one: one["operator"]),
            (Column("module"), lambda one: one["module"]),
            (Column("line"), lambda one: one["line"]),
            (Column("phase"), lambda one: one["phase"]),
            (Column.numeric("memory", "MiB"), lambda one: one["bytes"] / 2**20),
            (Column.share("of the peak"), lambda one: one["share"]),
            (Column.numeric("allocations", digits=6), lambda one: one["count"]),
        )
    return blocks


def _peak_sentence(use: Document) -> str:
    step = f" in {use['peak_step']}" if use["peak_step"] else ""
    text = f"It peaks at {format_bytes(use['peak_bytes'])}{step}"
    if use["before_bytes"]:
        text += f", {format_bytes(use['before_bytes'])} of it allocated before the recording"
    if use["fragmented_bytes"]:
        text += f"; the allocator holds {format_bytes(use['fragmented_bytes'])} more"
    if use["grows_every_step"]:
        growth = format_bytes(use["growth_per_step_bytes"])
        text += f". It grows every step, by {growth}: the sign of a leak"
    return f"{text}."
