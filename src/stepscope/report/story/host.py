"""What the host did in the window: operators, and the user's own functions where stacks tell."""

from typing import Any

from stepscope.report.story.blocks import Block, Column, Table

Document = dict[str, Any]


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
