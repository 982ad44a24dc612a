"""The story of a trace: its steps, the timeline, and how far to trust it."""

import shlex
from dataclasses import replace
from typing import Any

from stepscope.record.units import capitalized, format_bytes, format_number, plural
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
    TimelineView,
    Tone,
    Weight,
)
from stepscope.report.story.findings import answers_sections, findings_section
from stepscope.report.story.phrases import (
    DEVICE_WORK,
    NO_BOTTLENECK,
    NO_STEPS,
    STEP_SOURCES,
    display_path,
    joined,
    path_from_here,
    rerun_command,
    step_noun,
)
from stepscope.report.story.series import MAX_POINTS
from stepscope.report.story.summary import bottleneck, findings_lead
from stepscope.report.story.trace import recording
from stepscope.report.story.trace.kernels import heaviest_table, kernels_section, trace_remarks
from stepscope.results.load import LoadedResult, ResultDocument

Document = dict[str, Any]
_NOTICEABLE = 0.005  # of the device's or the recording's time


def quality_notes(document: dict[str, Any]) -> list[str]:
    """Caveats about the numbers; empty if there are none."""
    quality, wall = document["quality"], document["breakdown_ns"]["wall"] or 1
    notes = list(quality["notes"])
    for what, tally in (("repaired", quality["repaired"]), ("left out", quality["dropped"])):
        if tally:
            reasons = ", ".join(f"{count:,} {reason}" for reason, count in tally.items())
            notes.append(f"{what} of {quality['read']:,} events: {reasons}")
    if quality["graph_opaque_ns"] > _NOTICEABLE * wall:
        share = quality["graph_opaque_ns"] / sum(k["total_ns"] for k in document["kernels"])
        notes.append(
            f"{quality['graph_kernels']:,} kernels ({share:.0%} of device time) ran in CUDA graphs"
            " and have no operator"
        )
    if quality["skewed_launches"]:
        notes.append(
            f"{quality['skewed_launches']:,} launches appear after their kernels: the clocks of"
            " host and device are skewed"
        )
    if (quality["profiler_share"] or 0) > _NOTICEABLE:
        notes.append(f"the profiler itself took {quality['profiler_share']:.1%} of the time")
    if document["steps"]["outside_ns"] > _NOTICEABLE * wall:
        outside = document["steps"]["outside_ns"] / 1e6
        notes.append(f"{outside:,.1f} ms of device work lie outside the steps and are not counted")
    return notes


def quality_section(analysed: Document | None, problems: list[str]) -> Section:
    """Notes and problems, one sentence each. `analysed`: the recording, or None."""
    blocks: list[Block] = []
    for note in [*problems, *(quality_notes(analysed) if analysed is not None else ())]:
        end = "" if note.endswith((".", "!", "?")) else "."
        blocks.append(Paragraph(f"{capitalized(note)}{end}", tone=Tone.WARN))
    if not blocks:
        blocks.append(Paragraph("No data-quality issues."))
    if analysed is not None:
        read, kept = analysed["quality"]["read"], analysed["quality"]["kept"]
        blocks.append(Facts((("events in the recording", f"{read:,}"), ("used", f"{kept:,}"))))
    return Section("quality", "Data quality", tuple(blocks), Weight.DETAIL)


WINDOW_AT_START = "--window-at 2"


def missing_window(document: Document, what: str) -> Missing:
    """Why a run has no window, and the command that records one."""
    run, count = document["run"], document["steps"]["count"]
    if not count:
        return Missing(f"{what}: no steps seen.", NO_STEPS)
    if not run.get("window"):
        return Missing(f"{what}: recording was off.", command=rerun_command(document, ""))
    if run["under_way"]:
        again = f"stepscope report {run['id']}"
        return Missing(f"{what}: the window has not been recorded yet.", command=again)
    why = f"the program ended after {count:,} {step_noun(document)}s, before the window"
    why = "the recording cannot be read" if document["windows"] else why
    return Missing(f"{what}: {why}.", command=rerun_command(document, WINDOW_AT_START))


def window_section(analysed: Document, trace: str | None, stretched: bool) -> Section:
    """The timeline. `stretched`: recording slowed the run, whose own numbers are above."""
    events, steps = analysed["quality"]["kept"], analysed["steps"]
    whole = steps["how"] == "whole"
    words = "The whole recording" if whole else f"{steps['count']:,} recorded steps"
    blocks: list[Block] = []
    if stretched:
        blocks.append(Paragraph(f"{words}; recording slows the host down."))
    elif whole:
        blocks.append(Paragraph("No steps found: the recording is shown as one."))
    blocks.append(TimelineView(events, trace))
    return Section("timeline", "Timeline", tuple(blocks), Weight.DETAIL)


def _step(document: Document) -> Section:
    each, count = document["steps"]["each"][:MAX_POINTS], document["steps"]["count"]
    names = [str(step["name"]) for step in each]
    if len(set(names)) < len(names):
        names = [f"{number}: {name}" for number, name in enumerate(names, start=1)]
    note = f"The first {MAX_POINTS:,} of {count:,}." if count > MAX_POINTS else ""
    if document["breakdown_ns"]["idle"] is None:
        how = "Record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"
        missing = Missing(_NO_DEVICE, f"{how}, or use stepscope run.")
        times = [(step["end_ns"] - step["start_ns"]) / 1e6 for step in each]
        whole = Series("", names, times)
        chart = Chart("steps", "bars", "Each step", (whole,), y=Axis("ms"), note=note)
        return Section("step", "The step", (missing, chart))
    blocks: list[Block] = [_breakdown(document)]
    if count > 1:
        steps = recording.busiest_device(document)["steps"][:MAX_POINTS]
        series = tuple(
            Series(label, names[: len(steps)], [step[key] / 1e6 for step in steps], role=role)
            for key, (label, role) in DEVICE_WORK.items()
            if any(step[key] for step in steps)
        )
        blocks.append(Chart("steps", "stacked", "Each step", series, y=Axis("ms"), note=note))
    return Section("step", "The step", (*blocks, *recording.idle_blocks(document)), Weight.LEAD)


_NO_DEVICE = "No device in this recording: times are host times."


def _breakdown(document: Document) -> Chart:
    parts, count = document["breakdown_ns"], document["steps"]["count"]
    series = (
        Series(label, ["step"], [parts[key] / count / 1e6], role=role)
        for key, (label, role) in DEVICE_WORK.items()
        if parts[key]
    )
    return Chart.stacked("breakdown", "What the GPU does in a step", series, "ms")


def story_of_trace(subject: LoadedResult) -> Story:
    """The full story of a trace, which knows nothing about the run around it."""
    document, timeline = subject.document, subject.timeline
    trace = subject.trace.name if subject.trace is not None else None
    record = "Record with torch.profiler.profile({}=True), or use stepscope run{}."
    lines = (document["host"] or {}).get("lines") or []
    host = tuple(recording.function_blocks(lines, document["steps"]["count"]))
    no_memory = Missing("Memory was not recorded.", record.format("profile_memory", " --memory"))
    memory = tuple(recording.window_memory(document)) or (no_memory,)
    sections = [
        _summary(document),
        _step(document),
        findings_lead(document, findings_section(document, timeline, {}, None)),
        window_section(document, trace, stretched=False),
        kernels_section(document, timeline, None, record.format("record_shapes", "")),
        *recording.communication_sections(document),
        *([Section("host", "Python on the host", host, Weight.DETAIL)] if host else []),
        Section("memory", "Memory", memory, Weight.DETAIL),
        *answers_sections(document),
        Section("environment", "Environment", (_source(document),), Weight.DETAIL),
        quality_section(document, document.get("problems", [])),
    ]
    return Story(
        title=subject.name,
        verdict=bottleneck(document),
        subtitle=_subtitle(document),
        sections=tuple(sections),
        kind="trace",
        next=_next_commands(document),
    )


def _source(document: Document) -> Facts:
    source = document["source"]
    has = ", ".join(name for name, there in source["has"].items() if there)
    return Facts.known(
        ("file", display_path(str(source["file"]))),
        ("recorded by", source["tool"]),
        ("device", source["device"]),
        ("rank", source["rank"]),
        ("ranks", source["world_size"]),
        ("communication by", source["backend"]),
        ("length", f"{source['span_ns'] / 1e6:,.1f} ms"),
        ("holds", has or "unknown"),
    )


def trace_screen(subject: LoadedResult) -> Story:
    """The short form, from the document alone: what `analyze` prints."""
    document = subject.document
    found = document.get("findings")
    summary = _summary(document).blocks[:1]
    no_device = document["breakdown_ns"]["idle"] is None
    step = Paragraph(_NO_DEVICE, tone=Tone.QUIET) if no_device else _breakdown(document)
    sections = [Section("summary", "", summary), Section("step", "", (step,))]
    if found:
        cards = findings_section(document, None, {}, None)
        sections.append(findings_lead(document, cards, short=True))
    rest: list[Block] = [*recording.idle_causes_table(document)]
    if found == []:
        rest = [Paragraph(NO_BOTTLENECK, tone=Tone.GOOD), *rest]
    if not found:
        rest += heaviest_table(document)
        rest += [Paragraph(f"{capitalized(text)}.") for text in trace_remarks(document)]
    notes = [*quality_notes(document), *document.get("problems", ())]
    rest += [Paragraph(f"note: {note}", tone=Tone.WARN) for note in notes]
    sections.append(Section("rest", "", tuple(rest)))
    return Story(
        title=display_path(str(document["source"]["file"])),
        subtitle=_subtitle(document),
        sections=tuple(replace(part, weight=Weight.LEAD) for part in sections),
        kind="trace",
        next=_next_commands(document),
        more="add --all",
    )


def _next_commands(document: Document) -> tuple[Command, ...]:
    file = shlex.quote(path_from_here(str(document["source"]["file"])))
    return (
        Command(f"stepscope report {file} --open", "full report with timeline"),
        Command(f"stepscope analyze {file} --export events.parquet", "every event"),
    )


def story_of_ranks(subject: LoadedResult) -> Story:
    """Several ranks side by side: which compute, which communicate, which are late."""
    ranks, comparison = subject.document["ranks"], subject.document["comparison"]
    of = f" of {comparison['world_size']}" if comparison["world_size"] else ""
    device = next((one["source"]["device"] for one in ranks if one["source"]["device"]), None)
    notes = [str(note) for note in comparison["notes"]]
    for one in ranks:
        name = display_path(str(one["source"]["file"]))
        notes += [f"{name}: {note}" for note in quality_notes(one)]
    blocks: list[Block] = [
        *Table.known(
            "ranks",
            "",
            comparison["rows"],
            (Column.numeric("rank"), lambda row: row["rank"]),
            (Column.numeric("steps", digits=6, priority=1), lambda row: row["steps"]),
            (Column.numeric("step", "ms"), lambda row: row["step_mean_ns"] / 1e6),
            (Column.share("busy"), lambda row: row["busy_share"]),
            (Column.share("compute"), lambda row: row["compute_share"]),
            (Column.share("comm"), lambda row: row["communication_share"]),
            (Column.share("exposed", priority=2), lambda row: row["exposed_communication_share"]),
            (Column.share("idle"), lambda row: row["idle_share"]),
        ),
        # Which ranks reach collectives last, and how long the others wait.
        *Table.known(
            "late",
            "Late to collectives",
            [one for one in comparison["lateness"] if one["caused_ns"]][:4],
            (Column.numeric("rank"), lambda one: one["rank"]),
            (Column("last to arrive"), lambda one: f"{one['last']:,} of {comparison['matched']:,}"),
            (Column.numeric("others waited", "ms"), lambda one: one["caused_ns"] / 1e6),
        ),
        *(Paragraph(f"note: {note}", tone=Tone.WARN) for note in notes),
    ]
    return Story(
        title=plural(len(ranks), "rank") + of,
        subtitle=str(device) if device else "",
        sections=(Section("ranks", "", tuple(blocks), Weight.LEAD),),
        kind="ranks",
        next=(Command("stepscope analyze FILE", "one of them, in full"),),
    )


def _count(document: ResultDocument) -> str:
    steps = document["steps"]
    if steps["how"] == "whole":
        return "no steps found"
    how = STEP_SOURCES.get(steps["how"], "")
    return plural(steps["count"], "step") + (f" ({how})" if how else "")


def _subtitle(document: ResultDocument) -> str:
    source = document["source"]
    rank = f"rank {source['rank']}" if source["rank"] is not None else ""
    rank += f" of {source['world_size']}" if rank and source["world_size"] else ""
    return joined(_count(document), source["device"], rank, source["tool"])


def _summary(document: ResultDocument) -> Section:
    steps, parts, could = document["steps"], document["breakdown_ns"], document.get("headroom")
    unit, mean = "recording" if steps["how"] == "whole" else "step", format_number(steps["mean_ms"])
    shown = [("steps", _count(document), "")]
    shown.append((f"time per {unit}, recorded", f"{mean} ms", f"{mean} ms per {unit}"))
    if could:
        reach = f"{format_number(could['step_ms'])} ms ({could['speedup']:.2f}×)"
        shown.append(("in reach", reach, ""))
    if parts["idle"] is not None and parts["wall"]:
        busy = f"{1 - parts['idle'] / parts['wall']:.0%}"
        kernels = round(document["launch"]["kernels"] / steps["count"])
        shown.append(("GPU busy", busy, f"GPU busy {busy}"))
        shown.append((f"kernels per {unit}", f"{kernels:,}", plural(kernels, "kernel")))
    mfu = document["roofline"]["step"]["mfu"] if document["roofline"] else None
    if mfu is not None:
        shown.append(("MFU", f"{mfu:.1%}", f"MFU {mfu:.0%}"))
    for use in [one for one in document["memory"] or () if one["device"] is not None][:1]:
        peak = format_bytes(use["peak_bytes"])
        shown.append(("peak GPU memory", peak, f"peak {peak}"))
    note = Paragraph("Times as recorded: the profiler slows the host down.")
    return Section("summary", "At a glance", (Facts.headline(*shown), note), Weight.LEAD)
