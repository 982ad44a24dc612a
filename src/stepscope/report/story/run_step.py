"""A step of a run: its phases, how long each took, where the time goes."""

from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.report.names import PHASES
from stepscope.report.run_words import noun
from stepscope.report.story.blocks import Axis, Block, Chart, Column, Missing, Say, Section, Series
from stepscope.report.story.blocks import Table as Rows
from stepscope.report.story.histogram import step_histogram
from stepscope.report.story.places import NO_STEPS, shown_place
from stepscope.report.story.thin import extremes, thinned
from stepscope.report.subject import Tables

Document = dict[str, Any]
_LOG_FROM = 20.0  # times the median: a first step that long hides all others on a plain axis


def run_step(document: Document, tables: Tables | None) -> Section:
    """The section; `tables` None where they cannot be read."""
    if not document["steps"]["count"]:
        missing = Missing("No steps were seen, so there is none to take apart.", NO_STEPS)
        return Section("step", "The step", (missing,))
    blocks: list[Block] = [phases_chart(document)]
    if document["phases_seen_by"] == "device":
        blocks.append(Say("The GPU sets the pace: the step's phases are the device's own."))
    if tables is not None and tables.steps is not None:
        blocks += _times(document, tables)
    blocks += [*_sinks(document), *_waits(document)]
    return Section("step", "The step", tuple(blocks))


def phases_chart(document: Document) -> Chart:
    """The mean step as a bar; below it what host and device each saw, where both are known."""
    word = noun(document)
    rows = {word: document["phases_ms"]}
    if document["phases_device_ms"] is not None:
        # What lies in no phase on the device is mostly its idle time, which "other" would hide.
        device = dict(document["phases_device_ms"])
        device["idle"] = device.pop("other", 0.0)
        rows |= {"host": document["phases_host_ms"], "GPU": device}
    labels = PHASES | {"wait": "waits for the GPU", "idle": "idle or in no phase"}
    series = tuple(
        Series(label, list(rows), [float(row.get(phase) or 0.0) for row in rows.values()])
        for phase, label in labels.items()
        if any(row.get(phase) for row in rows.values())
    )
    title = f"Where a {word}'s time goes"
    return Chart("phases", "stacked", title, series, y=Axis("ms"), across=True)


def _times(document: Document, tables: Tables) -> list[Block]:
    steps, word = tables.steps, noun(document)
    times = steps.done() / 1e6
    early = (np.arange(len(times)) < tables.warmup) & ~steps.in_window
    measured = ~early & ~steps.in_window
    parts = {"measured": measured, "warm-up": early, "recorded": steps.in_window}
    series = [_scatter(name, times, which) for name, which in parts.items() if which.any()]
    mean = document["steps"]["mean_ms"]
    series.append(Series("mean", [1, len(times)], [mean, mean], line=True))
    log = bool(times.max() > _LOG_FROM * np.median(times) and times.min() > 0)
    left_out = "Warm-up and recorded ones are left out of the mean."
    note = " ".join(part for part in (left_out, thinned(len(times), f"{word}s")) if part)
    chart = Chart(
        "step-times",
        "scatter",
        f"Each {word} over the run",
        tuple(series),
        x=Axis(word),
        y=Axis("ms", log=log),
        note=note,
    )
    used = times[measured] if measured.any() else times
    return [chart, *([step_histogram(used, word)] if len(used) > 1 else [])]


def _scatter(name: str, times: npt.NDArray[Any], which: npt.NDArray[np.bool_]) -> Series:
    at = np.flatnonzero(which)
    at = at[extremes(times[at])]
    return Series(name, (at + 1).tolist(), times[at].tolist())


def _sinks(document: Document) -> list[Block]:
    program = document["run"]["program"]
    rows = tuple(
        (
            sink["title"],
            sink["ms"],
            sink["share"],
            shown_place(sink["file"], sink["line"], program),
            sink["detail"],
        )
        for sink in document["sinks"]
    )
    columns = (
        Column("what"),
        Column("time", "ms", number=True),
        Column("share", number=True, percent=True),
        Column("where"),
        Column("more"),
    )
    return [Rows("sinks", columns, rows, "The largest parts")] if rows else []


def _waits(document: Document) -> list[Block]:
    steps, program = document["steps"]["count"], document["run"]["program"]
    rows = tuple(
        (
            sync["what"],
            shown_place(sync["file"], sync["line"], program),
            sync["count"],
            sync["lost_ms"] / steps,
        )
        for sync in document["syncs"]
    )
    columns = (
        Column("what"),
        Column("where"),
        Column("times", number=True, digits=6),
        Column("waited", "ms per step", number=True),
    )
    return [Rows("waits", columns, rows, "Where the host waits for the device")] if rows else []
