"""The memory study: what each technique saves, and what batch it makes room for."""

from math import nan
from typing import Any

from stepscope.report.bench_study_memory import explanations
from stepscope.report.story.blocks import Axis, Chart, Column, Say, Section, Series, Table

Document = dict[str, Any]


def memory_sections(study: Document) -> list[Section]:
    """Charts of memory and of the largest batch, and the table."""
    rows = study["rows"]
    names = [one["technique"] for one in rows]
    used = [
        one["peak_memory_bytes"] * 2.0**-20 if one["peak_memory_bytes"] else nan for one in rows
    ]
    largest = [one["largest_batch"] or nan for one in rows]
    charts = (
        Chart("memory", "bars", f"Peak memory at batch {study['batch']:,}",
              (Series("", names, used),), y=Axis("MiB"), across=True),
        Chart("largest", "bars", "Largest batch", (Series("", names, largest),),
              y=Axis("samples"), across=True),
    )  # fmt: skip
    told = tuple(Say(f"{words[:1].upper()}{words[1:]}.") for words in explanations(study))
    return [Section("techniques", "What each technique saves", (*charts, _table(study), *told))]


def _table(study: Document) -> Table:
    columns = (
        Column("technique"), Column("fixes"), Column("peak memory", "MiB", number=True, digits=4),
        Column("of fp32", number=True, percent=True), Column("samples/s", number=True, digits=4),
        Column("largest batch", number=True), Column("calls a step", number=True),
        Column("samples/s there", number=True, digits=4), Column("limited by"), Column("outcome"),
    )  # fmt: skip
    rows = tuple(
        (
            one["technique"], ",".join(one["fixes"]),
            one["peak_memory_bytes"] * 2.0**-20 if one["peak_memory_bytes"] else None,
            one["of_first"], one["samples_per_s"], one["largest_batch"], one["accumulate"],
            one["largest_samples_per_s"], one["bound"], _outcome(one),
        )
        for one in study["rows"]
    )  # fmt: skip
    return Table("techniques", columns, rows)


def _outcome(one: Document) -> str:
    state = str(one["status"]).replace("_", " ")
    return f"{state}: {one['why']}" if one["why"] else state
