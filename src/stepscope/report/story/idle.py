"""Why the device was idle, as blocks."""

from typing import Any

from stepscope.report.idle import IDLE_CAUSES, host_place
from stepscope.report.story.blocks import Axis, Block, Chart, Column, Series, Table

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


def _places(analysed: Document, causes: list[str], wall: int) -> list[Block]:
    steps = analysed["steps"]["count"]
    device = _busiest(analysed)
    rows = tuple(
        (
            IDLE_CAUSES.get(cause, cause),
            host_place(place["where"]) if place["where"] else None,
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


def _busiest(analysed: Document) -> Document:
    devices: list[Document] = analysed["devices"]
    return max(devices, key=lambda one: one["breakdown_ns"]["wall"] - one["breakdown_ns"]["idle"])
