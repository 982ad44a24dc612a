"""A search for a batch size, as a section of a report."""

from typing import Any

from stepscope.report.render.terminal.batch import failure_text, size_marks
from stepscope.report.story.blocks import (
    Axis,
    Block,
    Cell,
    Chart,
    Code,
    Column,
    Paragraph,
    Section,
    Series,
    Table,
)

Document = dict[str, Any]
_MIB = 2.0**-20


def batch_section(document: Document) -> Section:
    """The answer, the curve, and what another size does to training."""
    blocks: list[Block] = [Paragraph(document["verdict"], strong=True)]
    ran = [row for row in document["curve"] if row["status"] == "ok" and row["samples_per_s"]]
    if len(ran) > 1:
        blocks.append(_throughput(ran))
        if any(row["memory_bytes"] for row in ran):
            blocks.append(_memory(ran))
    blocks.append(_table(document))
    if document["stopped"] is not None:
        blocks.append(Paragraph(f"Sizes end there: {document['stopped']['words']}."))
    told = (*document["notes"], *document.get("training", ()))
    blocks += [Paragraph(f"{words[:1].upper()}{words[1:].rstrip('.')}.") for words in told if words]
    if document.get("command"):
        blocks.append(Code(document["command"], "sh"))
    return Section("batch", "Batch size", tuple(blocks))


def _throughput(rows: list[Document]) -> Chart:
    known = all(row["low"] is not None and row["high"] is not None for row in rows)
    series = Series(
        "samples per second",
        [f"{row['batch']:,}" for row in rows],
        [row["samples_per_s"] for row in rows],
        low=[row["low"] for row in rows] if known else (),
        high=[row["high"] for row in rows] if known else (),
    )
    title = "Throughput by batch size"
    axes = Axis("batch size"), Axis("samples per second")
    return Chart("batch-throughput", "line", title, (series,), *axes)


def _memory(rows: list[Document]) -> Chart:
    there = [row for row in rows if row["memory_bytes"]]
    amounts = [row["memory_bytes"] * _MIB for row in there]
    series = Series("peak memory", [f"{row['batch']:,}" for row in there], amounts)
    axes = Axis("batch size"), Axis("MiB")
    return Chart("batch-memory", "line", "Peak memory by batch size", (series,), *axes)


def _table(document: Document) -> Table:
    columns = (
        Column("batch", number=True, digits=9),
        Column("throughput", "samples/s", number=True, digits=4),
        Column("of the best", number=True, percent=True),
        Column("step", "ms", number=True),
        Column("peak memory", "MiB", number=True, digits=4),
        Column("processes", number=True),
        Column("what"),
    )
    return Table("batch-sizes", columns, tuple(_row(document, row) for row in document["curve"]))


def _row(document: Document, row: Document) -> tuple[Cell, ...]:
    memory = row["memory_bytes"] * _MIB if row["memory_bytes"] else None
    told = size_marks(document, row["batch"])
    if row["status"] != "ok":
        told = [failure_text(row), *told]
    figures = (row["samples_per_s"], row["of_best"], row["step_ms"], memory, row["processes"])
    return (row["batch"], *figures, ", ".join(told))
