"""Idle time by cause, communication, the host's own work and memory in a recording."""

from typing import Any

from stepscope.record.units import memory_unit
from stepscope.report.story.blocks import (
    Axis,
    Block,
    Chart,
    Column,
    Paragraph,
    Section,
    Series,
    Table,
    Weight,
    table_without_empty_columns,
)
from stepscope.report.story.phrases import IDLE_CAUSES, costliest_place, without_autograd_prefix
from stepscope.report.story.series import downsample_note
from stepscope.report.text import format_bytes, format_number

Document = dict[str, Any]
_LEAST = 0.0005  # of the recorded step
_PLACES = 5  # of a cause


def idle_blocks(analysed: Document) -> list[Block]:
    """Nothing where no device was recorded or it was never idle."""
    wall, idle = analysed["breakdown_ns"]["wall"], analysed["idle_ns"]
    causes = sorted(((ns, cause) for cause, ns in idle.items() if ns), reverse=True)
    causes = [(ns, cause) for ns, cause in causes if wall and ns >= _LEAST * wall]
    if not causes:
        return []
    names = [IDLE_CAUSES.get(cause, cause) for _, cause in causes]
    shares = [100 * ns / wall for ns, _ in causes]
    chart = Chart(
        "idle",
        "bars",
        "The GPU's idle time by cause",
        (Series("", names, shares),),
        y=Axis("% of the recorded step"),
        across=True,
    )
    return [chart, *_places(analysed, [cause for _, cause in causes], wall)]


def idle_causes_table(analysed: Document) -> list[Block]:
    """Causes of idle time above 1% of a step, each with the costliest place on the host."""
    idle, wall = analysed["idle_ns"], analysed["breakdown_ns"]["wall"]
    known = [(ns, cause) for cause, ns in idle.items() if ns and ns > 0.01 * wall]
    if not known:
        return []
    steps, causes = analysed["steps"]["count"], busiest_device(analysed)["idle"]
    rows = tuple(
        (IDLE_CAUSES[cause], ns / steps / 1e6, ns / wall, costliest_place(causes[cause]["places"]))
        for ns, cause in sorted(known, reverse=True)
    )
    columns = (
        Column("cause"),
        Column("idle", "ms/step", number=True),
        Column("share", number=True, percent=True),
        Column("the host was in", clip=True, priority=1),
    )
    return [Table("idle-causes", columns, rows, "Why the GPU is idle")]


def _places(analysed: Document, causes: list[str], wall: int) -> list[Block]:
    steps = analysed["steps"]["count"]
    device = busiest_device(analysed)
    rows = tuple(
        (
            IDLE_CAUSES.get(cause, cause),
            without_autograd_prefix(place["where"]) if place["where"] else None,
            place["operator"],
            place["total_ns"] / steps / 1e6,
            place["total_ns"] / wall,
        )
        for cause in causes
        for place in device["idle"].get(cause, {}).get("places", ())[:_PLACES]
    )
    columns = (
        Column("cause"),
        Column("the host was in"),
        Column("operator"),
        Column("idle", "ms per step, recorded", number=True),
        Column("share", number=True, percent=True),
    )
    return [Table("idle", columns, rows, "What the host did meanwhile")] if rows else []


def busiest_device(analysed: Document) -> Document:
    """The device that works most."""
    devices: list[Document] = analysed["devices"]
    return max(devices, key=lambda one: one["breakdown_ns"]["wall"] - one["breakdown_ns"]["idle"])


def communication_sections(analysed: Document) -> list[Section]:
    """None where nothing was communicated."""
    talk, steps = analysed["communication"], analysed["steps"]["count"]
    if talk is None:
        return []
    rank = analysed["source"]["rank"]
    of = analysed["source"]["world_size"]
    who = "" if rank is None else f"This is rank {rank}" + (f" of {of}. " if of else ". ")
    blocks: list[Block] = []
    if talk["device_ns"]:
        exposed = format_number(talk["exposed_ns"] / steps / 1e6)
        each = format_number(talk["device_ns"] / steps / 1e6)
        text = f"{who}Communication takes {each} ms of a step, {exposed} ms of it exposed."
        blocks.append(Paragraph(text))
    elif who:
        blocks.append(Paragraph(who.strip()))
    blocks += _kinds(talk["kinds"], steps)
    folder = "To compare ranks, put their traces in a folder: stepscope analyze FOLDER."
    blocks.append(Paragraph(folder))
    return [Section("communication", "Communication", tuple(blocks), Weight.DETAIL)]


def _kinds(kinds: list[Document], steps: int) -> list[Block]:
    columns = (
        Column("collective"),
        Column("where"),
        Column("calls", "per step", number=True),
        Column("data", "MB per step", number=True),
        Column("time", "ms per step", number=True),
        Column("bus", "GB/s", number=True),
        Column("hidden", number=True, percent=True),
    )
    rows = tuple(
        (
            one["kind"],
            one["where"],
            one["count"] / steps,
            None if one["bytes"] is None else one["bytes"] / steps / 1e6,
            one["time_ns"] / steps / 1e6,
            None if one["bus_bytes_per_s"] is None else one["bus_bytes_per_s"] / 1e9,
            one["overlap_share"],
        )
        for one in kinds
    )
    return [Table("collectives", columns, rows, "Collectives")] if rows else []


def host_blocks(analysed: Document) -> list[Block]:
    """Operators by their own time on the host, and its threads."""
    host, steps = analysed["host"], analysed["steps"]["count"]
    if host is None:
        return []
    blocks: list[Block] = []
    rows = tuple(
        (
            one["name"],
            one["count"] / steps,
            one["self_ns"] / steps / 1e6,
            one["total_ns"] / steps / 1e6,
        )
        for one in host["operators"]
    )
    columns = (
        Column("operator"),
        Column("calls", "per step", number=True),
        Column("alone", "ms per step, recorded", number=True),
        Column("with what it calls", "ms per step, recorded", number=True),
    )
    if rows:
        blocks.append(Table("host-operators", columns, rows, "What the host does", shown=10))
    return [*blocks, *_threads(host["threads"])]


def _threads(threads: list[Document]) -> list[Block]:
    columns = (
        Column("thread"),
        Column("busy", "ms", number=True),
        Column("share", number=True, percent=True),
        Column("waits for the device", "ms", number=True),
    )
    rows = tuple(
        (one["name"], one["busy_ns"] / 1e6, one["busy_share"], one["blocked_ns"] / 1e6)
        for one in threads
    )
    return [Table("threads", columns, rows, "Threads of the host", shown=8)] if rows else []


def function_blocks(lines: list[Document], steps: int) -> list[Block]:
    """The user's functions by the host's time in them, from a recording with stacks."""
    columns = (
        Column("function"),
        Column("calls", "per step", number=True),
        Column("alone", "ms per step, recorded", number=True),
        Column("with what it calls", "ms per step, recorded", number=True),
    )
    rows = tuple(
        (
            one["name"],
            one["count"] / steps,
            one["self_ns"] / steps / 1e6,
            one["total_ns"] / steps / 1e6,
        )
        for one in lines
    )
    return [Table("functions", columns, rows, "Your functions on the host")] if rows else []


_KEPT = 1000  # points that the analysis keeps of a device


def window_memory(analysed: Document) -> list[Block]:
    """Each device's (or the host's) memory; nothing where none was recorded."""
    blocks: list[Block] = []
    for number, use in enumerate(analysed["memory"] or ()):
        blocks += [
            _memory_chart(use, number),
            Paragraph(_peak_sentence(use)),
            *_owners(use, number),
        ]
    return blocks


def _name(use: Document) -> str:
    return "the host" if use["device"] is None else f"GPU {use['device']}"


def _memory_chart(use: Document, number: int) -> Chart:
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
        note=(base + downsample_note(use["events"], "changes", _KEPT)).strip(),
    )


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
    return (
        [table_without_empty_columns(f"memory-peak-{number + 1}", columns, rows, title)]
        if rows
        else []
    )
