"""The operators that take most of the device's time."""

from typing import Any

from stepscope.report.story.blocks import Axis, Block, Chart, Column, Series, Table

Document = dict[str, Any]


def operator_blocks(analysed: Document) -> list[Block]:
    """The ten heaviest; nothing where the recording has no operators."""
    operators, steps = analysed["operators"], analysed["steps"]["count"]
    if not operators:
        return []
    names = [one["name"] for one in operators]
    device = Series("device", names, [one["device_ns"] / steps / 1e6 for one in operators])
    host = Series("host", names, [one["host_ns"] / steps / 1e6 for one in operators])
    chart = Chart(
        "operators",
        "bars",
        "The heaviest operators",
        (device, host),
        y=Axis("ms per step, recorded"),
        across=True,
    )
    columns = (
        Column("operator"),
        Column("calls", "per step", number=True),
        Column("kernels", "per step", number=True),
        Column("device", "ms per step", number=True),
        Column("share", number=True, percent=True),
        Column("host", "ms per step", number=True),
        Column("host alone", "ms per step", number=True),
    )
    rows = tuple(
        (
            one["name"],
            one["calls"] / steps,
            one["kernels"] / steps,
            one["device_ns"] / steps / 1e6,
            one["share"],
            one["host_ns"] / steps / 1e6,
            one["host_self_ns"] / steps / 1e6,
        )
        for one in operators
    )
    return [chart, Table("operators", columns, rows, "The heaviest operators")]
