"""Memory of a run: over time, at its peak, and the lines that own it."""

from typing import Any

import numpy as np

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
from stepscope.report.story.memory_window import window_memory
from stepscope.report.story.overtime import clock, over_time
from stepscope.report.story.places import run_again, shown_place
from stepscope.report.story.units import memory_unit
from stepscope.report.subject import Tables
from stepscope.report.text import size

Document = dict[str, Any]


def memory_section(document: Document, tables: Tables | None) -> Section:
    """What was sampled, what was recorded, and what is missing of both."""
    memory = document["memory"]
    whose = "the GPU's" if memory["device"] == "cuda" else "the host's"
    blocks: list[Block] = []
    if memory["peak_bytes"]:
        blocks.append(Say(f"The peak is {size(memory['peak_bytes'])} of {whose} memory."))
    blocks += _sampled(document, tables)
    blocks += _owners(memory)
    analysed = document["timeline"]
    blocks += window_memory(analysed) if analysed is not None else []
    lines = memory["lines"]
    blocks += _lines(lines, document["run"]["program"]) if lines else []
    if not lines:
        what = "Which lines own the memory was not recorded."
        blocks.append(Missing(what, run_again(document, "--memory")))
    return Section("memory", "Memory", tuple(blocks))


def _sampled(document: Document, tables: Tables | None) -> list[Block]:
    columns = {"rss_bytes": "host (RSS)", "gpu_memory_bytes": "GPU, as the driver sees it"}
    samples = tables.samples if tables is not None else None
    if samples is None or not samples.size:
        return [Missing("Memory was not sampled: it ended too soon.", run_again(document, ""))]
    unit, name = memory_unit(float(np.fmax.reduce(samples[c], initial=0.0)) for c in columns)
    seconds = clock(document, samples)
    chart = over_time(
        "memory-time", "Memory over the run", samples, seconds, columns, name, 1 / unit
    )
    return [chart] if chart is not None else []


def _owners(memory: Document) -> list[Block]:
    known = {name: value for name, value in memory["owners"].items() if value}
    if not known:
        return []
    unit, name = memory_unit(known.values())
    ordered = sorted(known.items(), key=lambda item: -item[1])
    series = Series(
        "", [key.replace("_", " ") for key, _ in ordered], [value / unit for _, value in ordered]
    )
    title = "Who owns the peak" if memory["device"] == "cuda" else "What the model keeps"
    return [Chart("memory-owners", "bars", title, (series,), y=Axis(name), across=True)]


def _lines(lines: Document, program: str) -> list[Block]:
    columns = (Column("where"), Column("function"), Column("memory", "MiB", number=True))
    tables: list[Block] = []
    titles = {"at_peak": "Lines that own the peak", "growth": "Lines whose memory grew"}
    for key, title in titles.items():
        rows = tuple(
            (
                shown_place(one["file"], one["line"], program),
                one["function"],
                one["bytes"] / 2**20,
            )
            for one in lines[key]
        )
        if rows:
            tables.append(Table(f"memory-{key.replace('_', '-')}", columns, rows, title))
    return tables
