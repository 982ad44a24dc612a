"""What ranks told each other, where the recording is of one of several."""

from typing import Any

from stepscope.report.story.blocks import Block, Column, Say, Section, Table
from stepscope.report.text import milliseconds

Document = dict[str, Any]


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
        exposed = milliseconds(talk["exposed_ns"] / steps / 1e6)
        each = milliseconds(talk["device_ns"] / steps / 1e6)
        text = f"{who}Communication takes {each} ms of a step; {exposed} ms of it nothing hides."
        blocks.append(Say(text))
    elif who:
        blocks.append(Say(who.strip()))
    blocks += _kinds(talk["kinds"], steps)
    folder = "A folder of all ranks' traces: stepscope analyze FOLDER tells who waits for whom."
    blocks.append(Say(folder))
    return [Section("communication", "Communication", tuple(blocks))]


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
