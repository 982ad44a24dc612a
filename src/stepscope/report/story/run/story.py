"""The story of a run: its step, its losses and every second from launch to end."""

from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.report.story.blocks import (
    Axis,
    Block,
    Chart,
    Column,
    Missing,
    Paragraph,
    Section,
    Series,
    Story,
    Table,
)
from stepscope.report.story.blocks import Table as Rows
from stepscope.report.story.findings import answers_sections, findings_section
from stepscope.report.story.phrases import (
    NO_STEPS,
    PHASE_NAMES,
    RUN_PART_NAMES,
    display_location,
    display_path,
    rerun_command,
    step_noun,
)
from stepscope.report.story.run.resources import (
    host_sections,
    machine_section,
    memory_section,
    pipeline_section,
)
from stepscope.report.story.series import downsample_note, downsampled_indices, step_histogram
from stepscope.report.story.summary import (
    environment_section,
    run_subtitle,
    run_summary,
    run_verdict,
)
from stepscope.report.story.trace.kernels import kernels_section
from stepscope.report.story.trace.recording import communication_sections, idle_blocks
from stepscope.report.story.trace.story import (
    WINDOW_AT_START,
    missing_window,
    quality_section,
    window_section,
)
from stepscope.report.text import format_duration
from stepscope.results.load import LoadedResult, ResultDocument, Run, RunTables

Document = dict[str, Any]
_LOG_FROM = 20.0  # times the median: a first step that long hides all others on a plain axis


def run_step(document: Document, tables: RunTables | None) -> Section:
    """The section; `tables` None where they cannot be read."""
    if not document["steps"]["count"]:
        missing = Missing("No steps were seen, so there is none to take apart.", NO_STEPS)
        return Section("step", "The step", (missing,))
    blocks: list[Block] = [phases_chart(document)]
    if document["phases_seen_by"] == "device":
        blocks.append(Paragraph("The GPU sets the pace: the step's phases are the device's own."))
    if tables is not None and tables.steps is not None:
        blocks += _times(document, tables)
    blocks += [*_sinks(document), *_waits(document)]
    return Section("step", "The step", tuple(blocks))


def phases_chart(document: Document) -> Chart:
    """The mean step as a bar; below it what host and device each saw, where both are known."""
    word = step_noun(document)
    rows = {word: document["phases_ms"]}
    if document["phases_device_ms"] is not None:
        # What lies in no phase on the device is mostly its idle time, which "other" would hide.
        device = dict(document["phases_device_ms"])
        device["idle"] = device.pop("other", 0.0)
        rows |= {"host": document["phases_host_ms"], "GPU": device}
    labels = PHASE_NAMES | {"wait": "waits for the GPU", "idle": "idle or in no phase"}
    series = tuple(
        Series(label, list(rows), [float(row.get(phase) or 0.0) for row in rows.values()])
        for phase, label in labels.items()
        if any(row.get(phase) for row in rows.values())
    )
    title = f"Where a {word}'s time goes"
    return Chart("phases", "stacked", title, series, y=Axis("ms"), across=True)


def _times(document: Document, tables: RunTables) -> list[Block]:
    steps, word = tables.steps, step_noun(document)
    times = steps.done() / 1e6
    early = (np.arange(len(times)) < tables.warmup) & ~steps.in_window
    measured = ~early & ~steps.in_window
    parts = {"measured": measured, "warm-up": early, "recorded": steps.in_window}
    series = [_scatter(name, times, which) for name, which in parts.items() if which.any()]
    mean = document["steps"]["mean_ms"]
    series.append(Series("mean", [1, len(times)], [mean, mean], line=True))
    log = bool(times.max() > _LOG_FROM * np.median(times) and times.min() > 0)
    left_out = "Warm-up and recorded ones are left out of the mean."
    note = " ".join(part for part in (left_out, downsample_note(len(times), f"{word}s")) if part)
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
    at = at[downsampled_indices(times[at])]
    return Series(name, (at + 1).tolist(), times[at].tolist())


def _sinks(document: Document) -> list[Block]:
    program = document["run"]["program"]
    rows = tuple(
        (
            sink["title"],
            sink["ms"],
            sink["share"],
            display_location(sink["file"], sink["line"], program),
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
            display_location(sync["file"], sync["line"], program),
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


_DRAWN = 0.002  # of the run: what is shorter cannot be seen in a bar


def run_whole(document: Document) -> Section:
    """The section. A category that took no time is left out."""
    account: dict[str, float] = document["account_s"]
    total = sum(account.values())
    title = "The whole run"
    if not total:
        how = rerun_command(document, "")
        missing = Missing("When the program began and ended is not known.", how)
        return Section("run", title, (missing,))
    series = tuple(
        Series(RUN_PART_NAMES.get(name, name), ["run"], [value])
        for name, value in account.items()
        if value >= _DRAWN * total
    )
    chart = Chart(
        "account",
        "stacked",
        f"All {format_duration(total)} of it",
        series,
        y=Axis("s"),
        across=True,
    )
    return Section("run", title, (chart, _table(document, account, total)))


def _table(document: Document, account: dict[str, float], total: float) -> Table:
    columns = (
        Column("part"),
        Column("time", "s", number=True),
        Column("share", number=True, percent=True),
        Column("where"),
    )
    rows = tuple(
        (RUN_PART_NAMES.get(name, name), value, value / total, _where(document, name))
        for name, value in sorted(account.items(), key=lambda item: -item[1])
        if value > 0
    )
    return Table("account", columns, rows, "By part")


def _where(document: Document, category: str) -> str:
    at = document["account_places"].get(category, {})
    if category == "imports" and at:
        return f"{at['module']} {format_duration(at['seconds'])}"
    return display_location(at.get("file"), at.get("line"), document["run"]["program"])


def _losses_section(document: Document) -> Section:
    """The mean of the scalars backpropagated in each step."""
    losses = np.array([np.nan if loss is None else loss for loss in document["losses"]], float)
    known = int(np.count_nonzero(np.isfinite(losses)))
    if not known:
        what = "No losses: nothing scalar was backpropagated."
        if document["steps"]["what"] == "inference":
            what = "No losses: the program infers and does not train."
        how = "A loss is read where the program calls backward() on it."
        return Section("losses", "Losses", (Missing(what, how),))
    at = downsampled_indices(losses)
    lost = len(losses) - known
    gaps = (
        f"{lost:,} of {len(losses):,} steps have none, or one that is not finite." if lost else ""
    )
    note = " ".join(part for part in (gaps, downsample_note(len(losses), "steps")) if part)
    series = Series("", (at + 1).tolist(), losses[at].tolist())
    chart = Chart(
        "losses",
        "line",
        "Loss by step",
        (series,),
        x=Axis(step_noun(document)),
        y=Axis("loss"),
        note=note,
    )
    return Section("losses", "Losses", (chart,))


def story_of_run(subject: LoadedResult) -> Story:
    """Everything a run tells, and what it does not with the way to get it."""
    document, tables = subject.document, subject.tables
    analysed = document["timeline"]
    timeline = subject.timeline if analysed is not None else None
    sources = subject.sources if isinstance(subject, Run) else {}
    sections = [
        run_summary(document),
        run_step(document, tables),
        *_idle(document),
        run_whole(document),
        findings_section(document, timeline, sources, _undiagnosed(document)),
        _window(subject),
        kernels_section(
            analysed,
            timeline,
            missing_window(document, "No kernels were recorded"),
            rerun_command(document, WINDOW_AT_START),
        ),
        *(communication_sections(analysed) if analysed is not None else ()),
        *host_sections(document),
        pipeline_section(document),
        memory_section(document, tables),
        machine_section(document, tables),
        _losses_section(document),
        *answers_sections(document),
        environment_section(document),
        quality_section(analysed, document["problems"]),
    ]
    return Story(
        title=display_path(document["run"]["program"], document["run"]["program"]),
        verdict=run_verdict(document),
        subtitle=run_subtitle(document),
        sections=tuple(sections),
        kind="run",
    )


def _idle(document: ResultDocument) -> list[Section]:
    """Only where a device was recorded: without one, kernels say what is missing."""
    analysed = document["timeline"]
    blocks = idle_blocks(analysed) if analysed is not None else []
    if not blocks:
        return []
    note = Paragraph("Of the recorded steps: recording stretches the host's times.")
    return [Section("idle", "Why the GPU is idle", (*blocks, note))]


def _window(subject: LoadedResult) -> Section:
    document = subject.document
    if document["timeline"] is None:
        missing = missing_window(document, "There is no timeline")
        return Section("timeline", "Timeline", (missing,))
    trace = subject.trace.name if subject.trace is not None else None
    return window_section(document["timeline"], trace, stretched=True)


def _undiagnosed(document: ResultDocument) -> Missing | None:
    """What findings could not rest on."""
    if not document["steps"]["count"]:
        return Missing("Nothing could be diagnosed: no steps were seen.", NO_STEPS)
    if document["timeline"] is None:
        return missing_window(document, "What runs inside a step could not be diagnosed")
    return None
