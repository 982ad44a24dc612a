"""The heaviest operators and kernels of a model, against the ceilings."""

from typing import Any

from stepscope.report.story.bench_heads import number, share
from stepscope.report.story.blocks import (
    Axis,
    Block,
    Cell,
    Chart,
    Column,
    Missing,
    Section,
    Series,
    Table,
)
from stepscope.report.text import milliseconds

Document = dict[str, Any]
_HEAVIEST = 12


def kernels_verdict(found: Document) -> str:
    """The heaviest, and how near it is to what it could do."""
    if not found["operators"]:
        return "No operators were recorded."
    top = found["operators"][0]
    words = f"{top['name']} takes {top['share']:.0%} of {milliseconds(found['work_ms'])} ms a step"
    if top["bound"] and top["ceiling_share"] is not None:
        words += f", {min(top['ceiling_share'], 1.0):.0%} of the {top['bound']} ceiling"
    return f"{words}."


def kernels_sections(found: Document) -> list[Section]:
    """Operators, then the kernels under them."""
    blocks: list[Block] = [_chart(found), _operators(found)] if found["operators"] else []
    if found["ceilings"] is None:
        blocks.append(Missing("Ceilings are not known here.", "stepscope doctor measures them."))
    made = [Section("operators", "Operators", tuple(blocks))]
    if found["kernels"]:
        made.append(Section("kernels", "Kernels", (_kernels(found),)))
    return made


def _chart(found: Document) -> Chart:
    rows = found["operators"][:_HEAVIEST]
    names = [f"{one['name']}{' ' + one['dtype'] if one['dtype'] else ''}" for one in rows]
    series = Series("", names, [one["time_ms"] for one in rows])
    return Chart(
        "operator-time", "bars", "The heaviest operators", (series,), y=Axis("ms a step"),
        across=True,
    )  # fmt: skip


def _operators(found: Document) -> Table:
    columns = (
        Column("operator"), Column("type"), Column("category"), number("calls"),
        number("time", "ms"), share("share"),
        number("model", "GFLOP"), number("model", "MB"),
        number("reached", "TFLOP/s"), number("reached", "GB/s"),
        Column("bound"), share("of ceiling"),
        number("counted", "GFLOP"), number("counted", "MB"),
    )  # fmt: skip
    rows = tuple(_operator(one) for one in found["operators"])
    return Table("operators", columns, rows)


def _operator(one: Document) -> tuple[Cell, ...]:
    counted = one["counted"] or {}
    return (
        one["name"], one["dtype"], one["category"], one["calls"], one["time_ms"], one["share"],
        _in(one["flops"], 1e9), _in(one["bytes"], 1e6), _in(one["flops_per_s"], 1e12),
        _in(one["bytes_per_s"], 1e9), one["bound"], one["ceiling_share"],
        _in(counted.get("flops"), 1e9), _in(counted.get("bytes"), 1e6),
    )  # fmt: skip


def _kernels(found: Document) -> Table:
    columns = (
        Column("kernel"), Column("operator"), number("time", "ms"),
        share("share"), number("counted", "TFLOP/s"),
        number("counted", "TB/s"),
    )  # fmt: skip
    rows = tuple(
        (
            one["name"], one["operator"], one["time_ms"], one["share"],
            _in((one["counted"] or {}).get("flops_per_s"), 1e12),
            _in((one["counted"] or {}).get("bytes_per_s"), 1e12),
        )
        for one in found["kernels"]
    )  # fmt: skip
    return Table("kernels", columns, rows)


def _in(value: float | None, unit: float) -> float | None:
    return None if value is None else value / unit
