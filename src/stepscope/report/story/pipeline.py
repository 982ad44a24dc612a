"""The data pipeline: what making a sample costs, by transform and by line."""

from typing import Any

from stepscope.report.story.blocks import (
    Axis,
    Block,
    Chart,
    Column,
    Missing,
    Say,
    Section,
    Series,
    Table,
)
from stepscope.report.story.places import run_again, shown_place
from stepscope.report.text import milliseconds

Document = dict[str, Any]
_CHARTS = 3
_PARTS = 12


def pipeline_section(document: Document) -> Section:
    """What datasets spent, and how the loaders were made."""
    sources, program = document["pipeline"], document["run"]["program"]
    blocks: list[Block] = []
    if not sources:
        blocks.append(_missing(document))
    for number, source in enumerate(sources):
        where = shown_place(source["file"], source["line"], program)
        blocks.append(Say(_told(source, where)))
        if number < _CHARTS:
            blocks.append(_chart(source, number))
    if sources:
        blocks.append(_parts(sources, program))
    blocks += _loaders(document["loaders"], program)
    return Section("data", "Data pipeline", tuple(blocks))


def _missing(document: Document) -> Missing:
    if document["loaders"]:
        return Missing(
            "No fetch of a dataset was timed: no batch was taken while the program was observed.",
            run_again(document, ""),
        )
    return Missing(
        "No DataLoader was seen: the program makes its batches itself.",
        f"Where its Python time goes instead: {run_again(document, '--python')}",
    )


def _told(source: Document, where: str) -> str:
    at = f" ({where})" if where else ""
    each = source["ms_per_sample"]
    per = "" if each is None else f", {milliseconds(each)} ms a sample"
    busy = source["processor_share"]
    cores = "" if busy is None else f"; a core works {busy:.0%} of that time and waits for the rest"
    batch = milliseconds(source["ms_per_batch"])
    makers = "one process" if source["processes"] == 1 else f"{source['processes']} processes"
    return f"{source['dataset']}{at}: {batch} ms a batch{per}, made in {makers}{cores}."


def _chart(source: Document, number: int) -> Chart:
    parts = source["parts"][:_PARTS]
    left = len(source["parts"]) - len(parts)
    series = Series(
        "",
        [part["name"] for part in parts],
        [100 * part["share"] for part in parts],
        text=[part["what"] for part in parts],
    )
    return Chart(
        f"pipeline-{number + 1}",
        "bars",
        f"Making a sample of {source['dataset']}",
        (series,),
        y=Axis("% of its time"),
        across=True,
        note=f"{left} smaller parts are in the table." if left else "",
    )


def _parts(sources: list[Document], program: str) -> Table:
    columns = (
        Column("dataset"),
        Column("part"),
        Column("what"),
        Column("share", number=True, percent=True),
        Column("time", "ms per sample", number=True),
        Column("where"),
    )
    rows = tuple(
        (
            source["dataset"],
            part["name"],
            part["what"],
            part["share"],
            part["ms_per_sample"],
            shown_place(part["file"], part["line"], program),
        )
        for source in sources
        for part in source["parts"]
    )
    return Table("pipeline", columns, rows, "By transform and line")


def _loaders(loaders: list[Document], program: str) -> list[Block]:
    names = ("num_workers", "pin_memory", "prefetch_factor", "persistent_workers", "drop_last")
    columns = (
        Column("dataset"),
        Column("samples", number=True, digits=9),
        Column("batch", number=True, digits=9),
        Column("shuffled"),
        *(Column(name.replace("_", " ")) for name in names),
        Column("made at"),
    )
    rows = tuple(
        (
            one.get("dataset"),
            one.get("samples"),
            one.get("batch_size"),
            one.get("shuffle"),
            *(one.get(name) for name in names),
            shown_place(one.get("file"), one.get("line"), program),
        )
        for one in loaders
    )
    return [Table("loaders", columns, rows, "DataLoaders")] if rows else []
