"""The story of a run: its step, its losses and every second from launch to end."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from stepscope.record.facts import AutoStop
from stepscope.record.units import format_duration, format_number
from stepscope.report.story import summary
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
)
from stepscope.report.story.findings import (
    answers_sections,
    findings_section,
    fixes_to_run,
    suggested_fixes,
)
from stepscope.report.story.phrases import (
    DRIFTING,
    IDLE_CAUSES,
    NO_BOTTLENECK,
    NO_STEPS,
    PHASE_NAMES,
    PHASE_ROLES,
    RUN_PART_NAMES,
    busy_machine,
    command_line,
    costliest_place,
    display_path,
    fix_options,
    location_of,
    rerun_command,
    run_reference,
    run_remarks,
    runnable,
    shown_program,
    step_noun,
)
from stepscope.report.story.run import resources
from stepscope.report.story.run.ranks import rank_blocks, rank_notes, ranks_section
from stepscope.report.story.series import downsample_note, downsampled_indices, step_histogram
from stepscope.report.story.trace.kernels import kernels_section
from stepscope.report.story.trace.recording import communication_sections, idle_blocks
from stepscope.report.story.trace.story import (
    WINDOW_AT_START,
    missing_window,
    quality_section,
    window_section,
)
from stepscope.results.load import LoadedResult, Run, RunTables

Document = dict[str, Any]
_NEARLY_ALL = 0.9
_LOG_FROM = 20.0  # times the median: a first step that long hides all others on a plain axis


def _step(document: Document, tables: RunTables | None) -> Section:
    """`tables` None: they cannot be read."""
    if not document["steps"]["count"]:
        return Section("step", "The step", (Missing("No steps seen.", NO_STEPS),))
    blocks = _phases(document)
    if document["phases_seen_by"] == "device":
        blocks.append(Paragraph("GPU-bound: phase times are the device's."))
    if tables is not None and tables.steps is not None:
        blocks += _times(document, tables)
    blocks += [*_sinks(document), *_waits(document, document["syncs"])]
    return Section("step", "The step", tuple(blocks), Weight.LEAD)


def _phases(document: Document) -> list[Block]:
    """The mean step as a bar; below it what host and device each saw, where both are known."""
    word = step_noun(document)
    rows = {word: document["phases_ms"]}
    if document["phases_device_ms"] is not None:
        # Time in no phase on the device is mostly idle time, which "other" would hide.
        device = dict(document["phases_device_ms"])
        device["idle"] = device.pop("other", 0.0)
        rows |= {"host": document["phases_host_ms"], "GPU": device}
    labels = PHASE_NAMES | {"wait": "waits for the GPU", "idle": "idle or in no phase"}
    series = []
    for phase, label in labels.items():
        times = [float(row.get(phase) or 0.0) for row in rows.values()]
        if any(times):
            series.append(Series(label, list(rows), times, role=PHASE_ROLES[phase]))
    chart = Chart.stacked("phases", f"Where a {word}'s time goes", series, "ms")
    measured, clocked = document["steps"]["measured_steps"], document["steps"].get("clocked_steps")
    if clocked is None or clocked >= _NEARLY_ALL * measured:
        return [chart]
    return [chart, Paragraph(f"Phases from {clocked:,} of {measured:,} {word}s.", tone=Tone.QUIET)]


def _times(document: Document, tables: RunTables) -> list[Block]:
    steps, word = tables.steps, step_noun(document)
    times = steps.done() / 1e6
    early = (np.arange(len(times)) < tables.warmup) & ~steps.in_window
    measured = ~early & ~steps.in_window
    series = []
    for name, which in (("measured", measured), ("warm-up", early), ("recorded", steps.in_window)):
        if which.any():
            at = np.flatnonzero(which)
            at = at[downsampled_indices(times[at])]
            series.append(Series(name, (at + 1).tolist(), times[at].tolist()))
    mean = document["steps"]["mean_ms"]
    series.append(Series("mean", [1, len(times)], [mean, mean], line=True))
    log = bool(times.max() > _LOG_FROM * np.median(times) and times.min() > 0)
    title, axes = f"Each {word} over the run", (Axis(word), Axis("ms", log=log))
    left_out = f"The mean leaves out warm-up and recorded {word}s."
    note = f"{left_out} {downsample_note(len(times), f'{word}s')}".rstrip()
    chart = Chart("step-times", "scatter", title, tuple(series), *axes, note=note)
    used = times[measured] if measured.any() else times
    return [chart, *([step_histogram(used, word)] if len(used) > 1 else [])]


def _sinks(document: Document) -> list[Table]:
    program = shown_program(document["run"])
    return Table.known(
        "sinks",
        "Where a step's time goes",
        document["sinks"],
        (Column("what"), lambda sink: sink["title"]),
        (Column.numeric("time", "ms"), lambda sink: sink["ms"]),
        (Column.share("share"), lambda sink: sink["share"]),
        (Column("where", priority=1), lambda sink: location_of(sink, program)),
        (Column("details", priority=2), lambda sink: sink["detail"] or ""),
    )


def _waits(document: Document, syncs: list[Document]) -> list[Table]:
    steps, program = document["steps"]["count"], shown_program(document["run"])
    return Table.known(
        "waits",
        "Where the host waits for the device",
        syncs,
        (Column("what"), lambda sync: sync["what"]),
        (Column("where"), lambda sync: location_of(sync, program)),
        (Column.numeric("times", digits=6), lambda sync: sync["count"]),
        (Column.numeric("waited", "ms per step"), lambda sync: sync["lost_ms"] / steps),
        empty_columns=True,
    )


_DRAWN = 0.002  # of the run: shorter parts are invisible in a bar


def _whole_run(document: Document) -> Section:
    """Parts that took no time are left out."""
    account: dict[str, float] = document["account_s"]
    total = sum(account.values())
    if not total:
        what = "Start and end of the program are unknown."
        missing = Missing(what, command=rerun_command(document, ""))
        return Section("run", "The whole run", (missing,), Weight.DETAIL)
    series = [
        Series(RUN_PART_NAMES.get(name, name), ["run"], [value])
        for name, value in account.items()
        if value >= _DRAWN * total
    ]
    chart = Chart.stacked("account", f"All {format_duration(total)} of it", series, "s")
    tables = _account_table(document, account, total, "By part")
    return Section("run", "The whole run", (chart, *tables), Weight.DETAIL)


def _account_table(
    document: Document, account: dict[str, float], total: float, title: str
) -> list[Table]:
    places, program = document["account_places"], shown_program(document["run"])

    def where(category: str) -> str:
        at = places.get(category, {})
        if category == "imports" and at:
            return f"{at['module']} {format_duration(at['seconds'])}"
        return location_of(at, program)

    return Table.known(
        "account",
        title,
        sorted(((name, s) for name, s in account.items() if s > 0), key=lambda one: -one[1]),
        (Column("part"), lambda one: RUN_PART_NAMES.get(one[0], one[0])),
        (Column.numeric("time", "s"), lambda one: one[1]),
        (Column.share("share"), lambda one: one[1] / total),
        (Column("where"), lambda one: where(one[0])),
        empty_columns=True,
    )


def _losses_section(document: Document) -> Section:
    """The mean of the scalars backpropagated in each step."""
    losses = np.array([np.nan if loss is None else loss for loss in document["losses"]], float)
    lost = int(np.count_nonzero(~np.isfinite(losses)))
    if lost == len(losses):
        inference = document["steps"]["what"] == "inference"
        why = "this is inference" if inference else "backward() was not called on a scalar"
        how = "stepscope reads the loss that backward() is called on."
        missing = Missing(f"No losses: {why}.", how)
        return Section("losses", "Losses", (missing,), Weight.DETAIL)
    at = downsampled_indices(losses)
    gaps = f"{lost:,} of {len(losses):,} steps have no finite loss." if lost else ""
    note = f"{gaps} {downsample_note(len(losses), 'steps')}".strip()
    series = Series("", (at + 1).tolist(), losses[at].tolist())
    word = step_noun(document)
    chart = Chart.lines("losses", "Loss by step", series, x=word, y="loss", note=note)
    return Section("losses", "Losses", (chart,), Weight.DETAIL)


def auto_blocks(document: Document) -> list[Block]:
    """What `--auto` kept, and its contests; empty without it."""
    auto = document.get("auto")
    if auto is None:
        return []
    why = next((one.words for one in AutoStop if one == auto["stopped"]), "")
    who = "in this trial tune" if auto.get("for_tune") else "--auto"
    if auto["kept"]:
        before, after = (format_number(auto[key]) for key in ("before_ms", "after_ms"))
        times = f"{auto['before_ms'] / auto['after_ms']:.2f}× faster, {before} → {after} ms"
        lead = Paragraph(f"{who} kept {' + '.join(auto['kept'])}: {times}", tone=Tone.GOOD)
    else:
        lead = Paragraph(f"{who} kept nothing: {why or 'the program ended first'}")
    table = Table.known(
        "contests",
        "Fixes tried as it ran",
        auto["contests"],
        (Column("fix"), lambda one: " + ".join(one["candidate"])),
        (Column("kept"), lambda one: "yes" if one["kept"] else "no"),
        (Column.numeric("speedup"), lambda one: one["ratio"]),
        (Column("range"), lambda one: f"{one['low']:.2f}–{one['high']:.2f}"),
        (Column.numeric("steps", digits=6), lambda one: one["steps"]),
        (Column.numeric("time", "s"), lambda one: one["seconds"]),
    )
    return [lead, *table]


def story_of_run(subject: LoadedResult) -> Story:
    """The full story of a run, with how to get what is missing."""
    document, tables = subject.document, subject.tables
    analysed = document["timeline"]
    timeline = subject.timeline if analysed is not None else None
    sources = subject.sources if isinstance(subject, Run) and subject.folder else {}
    trace = subject.trace.name if subject.trace is not None else None
    no_window = missing_window(document, "No timeline")
    no_kernels = missing_window(document, "No kernels recorded")
    at_start = rerun_command(document, WINDOW_AT_START)
    undiagnosed = None
    if not document["steps"]["count"]:
        undiagnosed = Missing("Nothing to diagnose: no steps seen.", NO_STEPS)
    elif analysed is None:
        undiagnosed = missing_window(document, "Kernels could not be diagnosed")
    idle: list[Block] = [*idle_blocks(analysed)] if analysed is not None else []
    if idle:
        idle.append(Paragraph("In the recorded steps; recording slows the host down."))
    auto, ranks = auto_blocks(document), ranks_section(document)
    program = shown_program(document["run"])
    sections = [
        summary.run_summary(document),
        *([ranks] if ranks is not None else []),
        _step(document, tables),
        *([Section("auto", "Fixes tried as it ran", tuple(auto))] if auto else []),
        summary.findings_lead(document, findings_section(document, timeline, sources, undiagnosed)),
        *([Section("idle", "Why the GPU is idle", tuple(idle), Weight.DETAIL)] if idle else []),
        _whole_run(document),
        window_section(analysed, trace, stretched=True)
        if analysed is not None
        else Section("timeline", "Timeline", (no_window,), Weight.DETAIL),
        kernels_section(analysed, timeline, no_kernels, at_start),
        *(communication_sections(analysed) if analysed is not None else ()),
        resources.host_section(document),
        resources.pipeline_section(document),
        resources.memory_section(document, tables),
        resources.machine_section(document, tables),
        _losses_section(document),
        *answers_sections(document),
        summary.environment_section(document),
        quality_section(analysed, document["problems"]),
    ]
    return Story(
        title=display_path(program, program),
        verdict=summary.run_verdict(document),
        subtitle=summary.run_subtitle(document),
        sections=tuple(sections),
        kind="run",
        next=_next_commands(document),
        more=f"stepscope show {run_reference(document['run'])} --all",
    )


_NOTICEABLE = 0.05  # share of the run, or of the device's idle time
_FEW = 5  # rows of a table on the default screen


def run_screen(subject: LoadedResult) -> Story:
    """The short form, from the document alone: what `run` and `show` print."""
    document = subject.document
    found, steps = document.get("findings"), document["steps"]["count"]
    top: list[Block] = [Paragraph(f"note: {one}", tone=Tone.WARN) for one in document["problems"]]
    top += rank_notes(document)
    top += [one for one in summary.summary_blocks(document) if steps or not isinstance(one, Facts)]
    lead = _phases(document) if steps else []
    if steps and found == []:
        steady = not busy_machine(document) and abs(document["steps"]["drift"] or 0.0) <= DRIFTING
        again = "" if steady else " Times were not steady: measure again on a quiet machine."
        lead.append(Paragraph(NO_BOTTLENECK + again, tone=Tone.GOOD if steady else Tone.WARN))
    sections = [Section("summary", "", tuple(top)), Section("step", "", tuple(lead))]
    sections.append(Section("ranks", "", tuple(rank_blocks(document, short=True))))
    if found:
        cards = findings_section(document, None, {}, None)
        sections.append(summary.findings_lead(document, cards, short=True))
    elif steps:
        waits = [one for one in document["syncs"] if one["lost_ms"] > 0.02 * steps][:3]
        rest = (*_sinks(document), *_waits(document, waits), *_idle_causes(document))
        sections.append(Section("step", "", rest))
    sections.append(Section("auto", "", tuple(auto_blocks(document))))
    whole = [*run_remarks(document), *_account(document, short=bool(found))]
    sections.append(Section("run", "", tuple(whole)))
    tables = [*resources.python_lines(document), *resources.memory_lines(document)]
    few = tuple(replace(one, rows=one.rows[:_FEW]) for one in tables)
    sections.append(Section("lines", "", few))
    return Story(
        subtitle=summary.run_subtitle(document, dated=False),
        sections=tuple(replace(part, weight=Weight.LEAD) for part in sections),
        kind="run",
        next=_next_commands(document),
        more=f"stepscope show {run_reference(document['run'])} --all",
    )


def _next_commands(document: Document) -> tuple[Command, ...]:
    """Commands to prove the fixes, apply them, and open the report."""
    run = document["run"]
    if not document["steps"]["count"]:
        how = "with stepscope.step() in its loop" if document["problems"] else "once it runs"
        rerun = run["torch"] and not run.get("here")
        return (Command(rerun_command(document, ""), how),) if rerun else ()
    commands: list[Command] = []
    fixes = suggested_fixes(document)
    options = fix_options(fixes_to_run(document, fixes))
    if fixes and run.get("here"):
        commands.append(Command(f"stepscope run {options} PROGRAM", "apply them"))
    elif fixes:
        program = runnable(command_line(run))
        if not document.get("ranks"):  # tune runs programs of one process
            commands.append(Command(f"stepscope tune {program}", "measure and prove these"))
        commands.append(Command(rerun_command(document, options), _covered(document)))
    elif run.get("window") and not document["windows"] and not run["under_way"]:
        how = rerun_command(document, WINDOW_AT_START)
        commands.append(Command(how, "record kernels: the run was too short"))
    commands.append(Command(f"stepscope report {run_reference(run)} --open", "full report"))
    return tuple(commands)


def _covered(document: Document) -> str:
    """How many findings of the headroom `--fix` removes."""
    by = (document.get("headroom") or {}).get("by") or ()
    done = sum(one["fix"] is not None for one in document["findings"] if one["id"] in by)
    if done == len(by):
        return "apply them now"
    return f"apply {done} of {len(by)} now" if done else ""


def _idle_causes(document: Document) -> list[Block]:
    """Idle causes as shares only, since recording stretches times."""
    timeline = document["timeline"]
    total = (timeline["breakdown_ns"]["idle"] or 0) if timeline is not None else 0
    if not total or total < _NOTICEABLE * timeline["breakdown_ns"]["wall"]:
        return []
    places = (document["timeline_stacks"] or {}).get("idle_places", {})
    shares = ((ns / total, cause) for cause, ns in timeline["idle_ns"].items())
    rows = tuple(
        (IDLE_CAUSES[cause], share, costliest_place(places.get(cause, [])))
        for share, cause in sorted(shares, reverse=True)[:3]
        if share >= _NOTICEABLE
    )
    columns = (Column("cause"), Column.share("of idle time"), Column("the host was in", clip=True))
    return [Table("idle", columns, rows, "Why the GPU is idle, in the recorded steps")]


def _account(document: Document, short: bool) -> Sequence[Block]:
    """The whole run, in one line if findings need the space; else its larger parts."""
    account = document["account_s"]
    total = sum(account.values())
    if not total:
        return []
    title = f"Whole run, {format_duration(total)}"
    least = (_NOTICEABLE if short else 0.02) * total
    parts = {name: value for name, value in account.items() if value >= least}
    if not short:
        return _account_table(document, parts, total, title)
    told = [
        f"{RUN_PART_NAMES.get(name, name)} {value / total:.0%}"
        for name, value in sorted(parts.items(), key=lambda item: -item[1])
    ]
    return [Paragraph(f"{title}: {', '.join(told)}")]
