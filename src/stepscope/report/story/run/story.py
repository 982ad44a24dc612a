"""The story of a run: its step, its losses and every second from launch to end."""

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.record.privacy import MASK
from stepscope.record.units import format_duration
from stepscope.report.story.blocks import (
    Axis,
    Block,
    Chart,
    Column,
    Command,
    Facts,
    Missing,
    Paragraph,
    Section,
    Series,
    Story,
    Table,
    Tone,
    Weight,
    share_column,
    table_without_empty_columns,
)
from stepscope.report.story.findings import (
    answers_sections,
    findings_section,
    suggested_fixes,
)
from stepscope.report.story.phrases import (
    IDLE_CAUSES,
    NO_STEPS,
    PHASE_NAMES,
    PHASE_ROLES,
    RUN_PART_NAMES,
    command_line,
    costliest_place,
    display_location,
    display_path,
    rerun_command,
    run_reference,
    step_noun,
)
from stepscope.report.story.run.resources import (
    host_sections,
    machine_section,
    memory_lines,
    memory_section,
    pipeline_section,
    python_lines,
)
from stepscope.report.story.series import downsample_note, downsampled_indices, step_histogram
from stepscope.report.story.summary import (
    NO_BOTTLENECK,
    environment_section,
    findings_lead,
    remarks,
    run_subtitle,
    run_summary,
    run_verdict,
    run_with_fixes,
    summary_blocks,
)
from stepscope.report.story.trace.kernels import kernels_section
from stepscope.report.story.trace.recording import communication_sections, idle_blocks
from stepscope.report.story.trace.story import (
    WINDOW_AT_START,
    missing_window,
    quality_section,
    window_section,
)
from stepscope.results.load import LoadedResult, ResultDocument, Run, RunTables

Document = dict[str, Any]
_LOG_FROM = 20.0  # times the median: a first step that long hides all others on a plain axis


def run_step(document: Document, tables: RunTables | None) -> Section:
    """The section; `tables` None where they cannot be read."""
    if not document["steps"]["count"]:
        missing = Missing("No steps seen.", NO_STEPS)
        return Section("step", "The step", (missing,))
    blocks: list[Block] = [phases_chart(document)]
    if document["phases_seen_by"] == "device":
        blocks.append(Paragraph("GPU-bound: phase times are the device's."))
    if tables is not None and tables.steps is not None:
        blocks += _times(document, tables)
    blocks += [*_sinks(document), *_waits(document)]
    return Section("step", "The step", tuple(blocks), Weight.LEAD)


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
        Series(
            label,
            list(rows),
            [float(row.get(phase) or 0.0) for row in rows.values()],
            role=PHASE_ROLES[phase],
        )
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
    left_out = f"The mean leaves out warm-up and recorded {word}s."
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
            sink["detail"] or "",
        )
        for sink in document["sinks"]
    )
    columns = (
        Column("what"),
        Column("time", "ms", number=True),
        Column("share", number=True, percent=True),
        Column("where", priority=1),
        Column("details", priority=2),
    )
    title = "Where a step's time goes"
    return [table_without_empty_columns(Table("sinks", columns, rows, title))] if rows else []


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
    return [Table("waits", columns, rows, "Where the host waits for the device")] if rows else []


_DRAWN = 0.002  # of the run: what is shorter cannot be seen in a bar


def run_whole(document: Document) -> Section:
    """The section. A category that took no time is left out."""
    account: dict[str, float] = document["account_s"]
    total = sum(account.values())
    title = "The whole run"
    if not total:
        how = rerun_command(document, "")
        missing = Missing("Start and end of the program are unknown.", command=how)
        return Section("run", title, (missing,), Weight.DETAIL)
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
    blocks = (chart, _table(document, account, total))
    return Section("run", title, blocks, Weight.DETAIL)


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
        what = "No losses: backward() was not called on a scalar."
        if document["steps"]["what"] == "inference":
            what = "No losses: this is inference."
        how = "stepscope reads the loss that backward() is called on."
        return Section("losses", "Losses", (Missing(what, how),), Weight.DETAIL)
    at = downsampled_indices(losses)
    lost = len(losses) - known
    gaps = f"{lost:,} of {len(losses):,} steps have no finite loss." if lost else ""
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
    return Section("losses", "Losses", (chart,), Weight.DETAIL)


def story_of_run(subject: LoadedResult) -> Story:
    """Everything a run tells, and what it does not with the way to get it."""
    document, tables = subject.document, subject.tables
    analysed = document["timeline"]
    timeline = subject.timeline if analysed is not None else None
    sources = subject.sources if isinstance(subject, Run) and subject.folder else {}
    trace = subject.trace.name if subject.trace is not None else None
    sections = [
        run_summary(document),
        run_step(document, tables),
        findings_lead(
            document, findings_section(document, timeline, sources, _undiagnosed(document))
        ),
        *_idle(document),
        run_whole(document),
        _window(document, trace),
        kernels_section(
            analysed,
            timeline,
            missing_window(document, "No kernels recorded"),
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
        next=next_commands(document),
        more=_more(document),
    )


_NOTICEABLE = 0.05  # of the run, or of the device's idle time
_FEW = 5  # rows of a table on the default screen


def run_screen(subject: LoadedResult) -> Story:
    """The short form, from the document alone: what `run` ends with and `show` prints."""
    document = subject.document
    found = document.get("findings")
    lead: list[Block] = []
    if document["steps"]["count"]:
        lead.append(phases_chart(document))
        if found == []:
            lead.append(Paragraph(NO_BOTTLENECK, tone=Tone.GOOD))
    sections = [
        Section("summary", "", tuple(_top(document))),
        Section("step", "", tuple(lead)),
    ]
    if found:
        cards = findings_section(document, None, {}, None)
        sections.append(findings_lead(document, cards, short=True))
    elif document["steps"]["count"]:
        rest = (*_sinks(document), *_costly_waits(document), *_idle_causes(document))
        sections.append(Section("step", "", rest))
    whole = [*remarks(document), *_account(document, short=bool(found))]
    sections.append(Section("run", "", tuple(whole)))
    lines = document["memory"]["lines"]
    program = document["run"]["program"]
    code = document["host_code"]
    tables = [python_lines(code, program)] if code and code["lines"] else []
    tables += memory_lines(lines, program) if lines else []
    sections.append(
        Section("lines", "", tuple(replace(one, rows=one.rows[:_FEW]) for one in tables))
    )
    return Story(
        title="",
        verdict="",
        subtitle=run_subtitle(document, dated=False),
        sections=tuple(replace(part, weight=Weight.LEAD) for part in sections),
        kind="run",
        next=next_commands(document),
        more=_more(document),
    )


def _top(document: Document) -> list[Block]:
    """The summary with what qualifies the numbers above them."""
    notes: list[Block] = [
        Paragraph(f"note: {problem}", tone=Tone.WARN) for problem in document["problems"]
    ]
    blocks = [*notes, *summary_blocks(document)]
    if document["steps"]["count"]:
        return blocks
    return [one for one in blocks if not isinstance(one, Facts)]


def _more(document: Document) -> str:
    return f"stepscope show {run_reference(document['run'])} --all"


def next_commands(document: Document) -> tuple[Command, ...]:
    """Prove the fixes, apply them, look at the whole report."""
    run = document["run"]
    if not document["steps"]["count"]:
        return (Command("stepscope run --help"),)
    commands: list[Command] = []
    fixes = suggested_fixes(document)
    if fixes and run.get("here"):
        words = " ".join(f"--fix {name}" for name in fixes)
        commands.append(Command(f"stepscope run {words} PROGRAM", "apply them"))
    elif fixes:
        program = command_line(run)
        program = "…" if MASK in program else program
        commands.append(Command(f"stepscope tune {program}", "measure and prove these"))
        commands.append(Command(run_with_fixes(document, fixes), "apply them now"))
    elif run.get("window") and not document["windows"] and not run["under_way"]:
        how = rerun_command(document, WINDOW_AT_START)
        commands.append(Command(how, "record kernels: the run was too short"))
    commands.append(Command(f"stepscope report {run_reference(run)} --open", "full report"))
    return tuple(commands)


def _costly_waits(document: Document) -> list[Block]:
    """Places where the host waits noticeably for the device."""
    steps = document["steps"]["count"]
    worst = [one for one in document["syncs"] if one["lost_ms"] > 0.02 * steps][:3]
    return _waits({**document, "syncs": worst})


def _idle_causes(document: Document) -> list[Block]:
    """Shares only: recording stretches the times."""
    timeline = document["timeline"]
    if timeline is None or not timeline["breakdown_ns"]["idle"]:
        return []
    total = timeline["breakdown_ns"]["idle"]
    if total < _NOTICEABLE * timeline["breakdown_ns"]["wall"]:
        return []
    places = (document["timeline_stacks"] or {}).get("idle_places", {})
    causes = sorted(
        ((ns / total, cause) for cause, ns in timeline["idle_ns"].items()), reverse=True
    )
    rows = tuple(
        (IDLE_CAUSES[cause], share, costliest_place(places.get(cause, [])))
        for share, cause in causes[:3]
        if share >= _NOTICEABLE
    )
    columns = (Column("cause"), share_column("of idle time"), Column("the host was in", clip=True))
    return [Table("idle", columns, rows, "Why the GPU is idle, in the recorded steps")]


def _account(document: Document, short: bool) -> list[Block]:
    """The whole run in a line where findings need the room; else its larger parts."""
    account = document["account_s"]
    total = sum(account.values())
    if not total:
        return []
    if short:
        parts = [
            f"{RUN_PART_NAMES.get(name, name)} {value / total:.0%}"
            for name, value in sorted(account.items(), key=lambda item: -item[1])
            if value >= _NOTICEABLE * total
        ]
        return [Paragraph(f"Whole run, {format_duration(total)}: {', '.join(parts)}")]
    noticeable = {name: value for name, value in account.items() if value >= 0.02 * total}
    table = _table(document, noticeable, total)
    return [replace(table, title=f"Whole run, {format_duration(total)}")]


def _idle(document: ResultDocument) -> list[Section]:
    """Only where a device was recorded: without one, kernels say what is missing."""
    analysed = document["timeline"]
    blocks = idle_blocks(analysed) if analysed is not None else []
    if not blocks:
        return []
    note = Paragraph("In the recorded steps; recording slows the host down.")
    return [Section("idle", "Why the GPU is idle", (*blocks, note), Weight.DETAIL)]


def _window(document: ResultDocument, trace: str | None) -> Section:
    if document["timeline"] is None:
        missing = missing_window(document, "No timeline")
        return Section("timeline", "Timeline", (missing,), Weight.DETAIL)
    return window_section(document["timeline"], trace, stretched=True)


def _undiagnosed(document: ResultDocument) -> Missing | None:
    """What findings could not rest on."""
    if not document["steps"]["count"]:
        return Missing("Nothing to diagnose: no steps seen.", NO_STEPS)
    if document["timeline"] is None:
        return missing_window(document, "Kernels could not be diagnosed")
    return None
