"""The story of a trace: its steps, the timeline, and how far to trust it."""

from typing import Any

from stepscope.report.story.blocks import (
    Axis,
    Block,
    Chart,
    Facts,
    Missing,
    Paragraph,
    Section,
    Series,
    Story,
    TimelineView,
)
from stepscope.report.story.findings import answers_sections, findings_section
from stepscope.report.story.phrases import (
    DEVICE_WORK_NAMES,
    NO_STEPS,
    STEP_SOURCES,
    display_path,
    rerun_command,
    step_noun,
)
from stepscope.report.story.series import MAX_POINTS
from stepscope.report.story.summary import bottleneck
from stepscope.report.story.trace.kernels import kernels_section
from stepscope.report.story.trace.recording import (
    communication_sections,
    function_blocks,
    idle_blocks,
    window_memory,
)
from stepscope.report.text import format_bytes, format_number, plural
from stepscope.results.load import LoadedResult, ResultDocument

_NOTICEABLE = 0.005  # of the device's or the recording's time


def quality_notes(document: dict[str, Any]) -> list[str]:
    """What a reader must know before believing the numbers; empty where there is nothing."""
    quality, wall = document["quality"], document["breakdown_ns"]["wall"] or 1
    notes = list(quality["notes"])
    for what, tally in (("repaired", quality["repaired"]), ("left out", quality["dropped"])):
        if tally:
            reasons = ", ".join(f"{count:,} {reason}" for reason, count in tally.items())
            notes.append(f"{what} of {quality['read']:,} events: {reasons}")
    if quality["graph_opaque_ns"] > _NOTICEABLE * wall:
        share = quality["graph_opaque_ns"] / sum(k["total_ns"] for k in document["kernels"])
        notes.append(
            f"{quality['graph_kernels']:,} kernels ({share:.0%} of device time) came out of CUDA"
            " graphs: no operator accounts for them"
        )
    if quality["skewed_launches"]:
        notes.append(
            f"{quality['skewed_launches']:,} launches seem to come after their work: the clocks of"
            " host and device differ a little"
        )
    if (quality["profiler_share"] or 0) > _NOTICEABLE:
        notes.append(f"the profiler's own work took {quality['profiler_share']:.1%} of the time")
    if document["steps"]["outside_ns"] > _NOTICEABLE * wall:
        outside = document["steps"]["outside_ns"] / 1e6
        notes.append(f"{outside:,.1f} ms of device work lie outside the steps, in no step's time")
    return notes


Document = dict[str, Any]


def quality_section(analysed: Document | None, problems: list[str]) -> Section:
    """Notes and problems, a sentence each. `analysed`: the recording; None where there is none."""
    notes = [*problems, *(quality_notes(analysed) if analysed is not None else ())]
    blocks: list[Block] = [Paragraph(_sentence(note)) for note in notes]
    if not notes:
        blocks.append(Paragraph("Nothing stands against these figures."))
    if analysed is not None:
        quality = analysed["quality"]
        pairs = (
            ("events in the recording", f"{quality['read']:,}"),
            ("of them shown", f"{quality['kept']:,}"),
        )
        blocks.append(Facts(pairs))
    return Section("quality", "How far to trust this", tuple(blocks))


def _sentence(note: str) -> str:
    text = note[:1].upper() + note[1:]
    return text if text.endswith((".", "!", "?")) else f"{text}."


WINDOW_AT_START = "--window-at 2"


def missing_window(document: Document, what: str) -> Missing:
    """Why a run has no window, and the command that records one."""
    run, count = document["run"], document["steps"]["count"]
    if not count:
        return Missing(f"{what}: no steps were seen.", NO_STEPS)
    if not run.get("window"):
        return Missing(f"{what}: recording was switched off.", rerun_command(document, ""))
    if run["under_way"]:
        how = f"stepscope report {run['id']}"
        return Missing(f"{what}: the window is still to come.", how)
    if document["windows"]:
        return Missing(
            f"{what}: the recording cannot be read.", rerun_command(document, WINDOW_AT_START)
        )
    words = f"{what}: the program ended after {count:,} {step_noun(document)}s, before the window."
    return Missing(words, rerun_command(document, WINDOW_AT_START))


def window_section(analysed: Document, trace: str | None, stretched: bool) -> Section:
    """The timeline. `stretched`: recording slowed the run down, whose own figures stand above."""
    events, steps = analysed["quality"]["kept"], analysed["steps"]
    whole = steps["how"] == "whole"
    words = "The whole recording" if whole else f"{steps['count']:,} recorded steps"
    blocks: list[Block] = []
    if stretched:
        blocks.append(Paragraph(f"{words}; recording stretches the host's times."))
    elif whole:
        blocks.append(Paragraph("No steps were found in the recording: it is shown as one."))
    blocks.append(TimelineView(events, trace))
    return Section("timeline", "Timeline", tuple(blocks))


_PARTS = DEVICE_WORK_NAMES | {"idle": "idle"}
_HOW = "Record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"


def trace_step(document: Document) -> Section:
    """The section of a trace's steps."""
    parts, count = document["breakdown_ns"], document["steps"]["count"]
    blocks: list[Block] = []
    if parts["idle"] is None:
        what = "No device is in this recording: what follows is the host's."
        blocks += [Missing(what, f"{_HOW}, or use stepscope run."), _lengths(document)]
        return Section("step", "The step", tuple(blocks))
    series = tuple(
        Series(label, ["step"], [parts[key] / count / 1e6])
        for key, label in _PARTS.items()
        if parts[key]
    )
    blocks.append(
        Chart(
            "breakdown",
            "stacked",
            "What the GPU does in a step",
            series,
            y=Axis("ms"),
            across=True,
        )
    )
    if count > 1:
        blocks.append(_each(document))
    return Section("step", "The step", (*blocks, *idle_blocks(document)))


def _names(document: Document) -> list[str]:
    """Of the steps; numbered where the recording names several alike."""
    names = [str(step["name"]) for step in document["steps"]["each"][:MAX_POINTS]]
    if len(set(names)) == len(names):
        return names
    return [f"{number}: {name}" for number, name in enumerate(names, start=1)]


def _each(document: Document) -> Chart:
    device = max(
        document["devices"],
        key=lambda one: one["breakdown_ns"]["wall"] - one["breakdown_ns"]["idle"],
    )
    steps = device["steps"][:MAX_POINTS]
    series = tuple(
        Series(label, _names(document)[: len(steps)], [step[key] / 1e6 for step in steps])
        for key, label in _PARTS.items()
        if any(step[key] for step in steps)
    )
    return Chart("steps", "stacked", "Each step", series, y=Axis("ms"), note=_left(document))


def _lengths(document: Document) -> Chart:
    times = [
        (step["end_ns"] - step["start_ns"]) / 1e6 for step in document["steps"]["each"][:MAX_POINTS]
    ]
    series = Series("", _names(document), times)
    return Chart("steps", "bars", "Each step", (series,), y=Axis("ms"), note=_left(document))


def _left(document: Document) -> str:
    count = document["steps"]["count"]
    return f"The first {MAX_POINTS:,} of {count:,}." if count > MAX_POINTS else ""


_SHAPES = "Record with torch.profiler.profile(record_shapes=True), or use stepscope run."
_MEMORY = "Record with torch.profiler.profile(profile_memory=True), or use stepscope run --memory."


def story_of_trace(subject: LoadedResult) -> Story:
    """Everything a trace tells: of the run around it, it knows nothing."""
    document, timeline = subject.document, subject.timeline
    trace = subject.trace.name if subject.trace is not None else None
    sections = [
        _summary(document),
        trace_step(document),
        findings_section(document, timeline, {}, None),
        window_section(document, trace, stretched=False),
        kernels_section(document, timeline, None, _SHAPES),
        *communication_sections(document),
        *_host(document),
        _memory(document),
        *answers_sections(document),
        _source(document),
        quality_section(document, document.get("problems", [])),
    ]
    return Story(
        title=subject.name,
        verdict=bottleneck(document),
        subtitle=_subtitle(document),
        sections=tuple(sections),
        kind="trace",
    )


def _count(document: ResultDocument) -> str:
    steps = document["steps"]
    if steps["how"] == "whole":
        return "no steps found"
    how = STEP_SOURCES.get(steps["how"], "")
    return plural(steps["count"], "step") + (f" ({how})" if how else "")


def _subtitle(document: ResultDocument) -> str:
    source = document["source"]
    rank = f"rank {source['rank']}" if source["rank"] is not None else None
    of = f" of {source['world_size']}" if rank and source["world_size"] else ""
    parts = (_count(document), source["device"], rank + of if rank else None, source["tool"])
    return " · ".join(str(part) for part in parts if part)


def _summary(document: ResultDocument) -> Section:
    steps, parts, could = document["steps"], document["breakdown_ns"], document["headroom"]
    unit = "step" if steps["how"] != "whole" else "recording"
    pairs = [("steps", _count(document))]
    pairs.append((f"time per {unit}, recorded", f"{format_number(steps['mean_ms'])} ms"))
    if could:
        words = f"{format_number(could['step_ms'])} ms ({could['speedup']:.2f}×)"
        pairs.append(("could take", words))
    if parts["idle"] is not None and parts["wall"]:
        pairs.append(("GPU busy", f"{1 - parts['idle'] / parts['wall']:.0%}"))
        kernels = document["launch"]["kernels"] / steps["count"]
        pairs.append((f"kernels per {unit}", f"{kernels:,.0f}"))
    roofline = document["roofline"]
    if roofline and roofline["step"]["mfu"] is not None:
        pairs.append(("MFU", f"{roofline['step']['mfu']:.1%}"))
    for use in document["memory"] or ():
        if use["device"] is not None:
            pairs.append(("peak GPU memory", format_bytes(use["peak_bytes"])))
            break
    note = Paragraph("Times are as recorded: a profiler slows the host down.")
    return Section("summary", "At a glance", (Facts(tuple(pairs)), note))


def _host(document: ResultDocument) -> list[Section]:
    lines = (document["host"] or {}).get("lines") or []
    blocks = function_blocks(lines, document["steps"]["count"])
    return [Section("host", "Python on the host", tuple(blocks))] if blocks else []


def _memory(document: ResultDocument) -> Section:
    blocks: list[Block] = window_memory(document)
    if not blocks:
        blocks.append(Missing("Memory was not recorded.", _MEMORY))
    return Section("memory", "Memory", tuple(blocks))


def _source(document: ResultDocument) -> Section:
    source = document["source"]
    has = ", ".join(name for name, there in source["has"].items() if there)
    shown = (
        ("file", display_path(str(source["file"]))),
        ("recorded by", source["tool"]),
        ("device", source["device"]),
        ("rank", source["rank"]),
        ("ranks", source["world_size"]),
        ("communication by", source["backend"]),
        ("length", f"{source['span_ns'] / 1e6:,.1f} ms"),
        ("holds", has or "nothing that is known"),
    )
    pairs = tuple((name, str(value)) for name, value in shown if value is not None)
    return Section("environment", "Environment", (Facts(pairs),))
