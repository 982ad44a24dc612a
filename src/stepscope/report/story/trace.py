"""The story of a trace that some profiler recorded."""

from stepscope.report.names import STEPS_HOW
from stepscope.report.story.answers import answers_sections
from stepscope.report.story.blocks import Block, Facts, Missing, Say, Section, Story
from stepscope.report.story.cards import findings_section
from stepscope.report.story.communication import communication_sections
from stepscope.report.story.host import function_blocks
from stepscope.report.story.kernels import kernels_section
from stepscope.report.story.memory_window import window_memory
from stepscope.report.story.places import shown_file
from stepscope.report.story.quality import quality_section
from stepscope.report.story.run_summary import bottleneck
from stepscope.report.story.trace_step import trace_step
from stepscope.report.story.window import window_section
from stepscope.report.subject import Document, Subject
from stepscope.report.text import milliseconds, plural, size

_SHAPES = "Record with torch.profiler.profile(record_shapes=True), or use stepscope run."
_MEMORY = "Record with torch.profiler.profile(profile_memory=True), or use stepscope run --memory."


def story_of_trace(subject: Subject) -> Story:
    """Everything a trace tells: of the run around it, it knows nothing."""
    document, timeline = subject.document, subject.timeline()
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


def _count(document: Document) -> str:
    steps = document["steps"]
    if steps["how"] == "whole":
        return "no steps found"
    how = STEPS_HOW.get(steps["how"], "")
    return plural(steps["count"], "step") + (f" ({how})" if how else "")


def _subtitle(document: Document) -> str:
    source = document["source"]
    rank = f"rank {source['rank']}" if source["rank"] is not None else None
    of = f" of {source['world_size']}" if rank and source["world_size"] else ""
    parts = (_count(document), source["device"], rank + of if rank else None, source["tool"])
    return " · ".join(str(part) for part in parts if part)


def _summary(document: Document) -> Section:
    steps, parts, could = document["steps"], document["breakdown_ns"], document["headroom"]
    unit = "step" if steps["how"] != "whole" else "recording"
    pairs = [("steps", _count(document))]
    pairs.append((f"time per {unit}, recorded", f"{milliseconds(steps['mean_ms'])} ms"))
    if could:
        words = f"{milliseconds(could['step_ms'])} ms ({could['speedup']:.2f}×)"
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
            pairs.append(("peak GPU memory", size(use["peak_bytes"])))
            break
    note = Say("Times are as recorded: a profiler slows the host down.")
    return Section("summary", "At a glance", (Facts(tuple(pairs)), note))


def _host(document: Document) -> list[Section]:
    lines = (document["host"] or {}).get("lines") or []
    blocks = function_blocks(lines, document["steps"]["count"])
    return [Section("host", "Python on the host", tuple(blocks))] if blocks else []


def _memory(document: Document) -> Section:
    blocks: list[Block] = window_memory(document)
    if not blocks:
        blocks.append(Missing("Memory was not recorded.", _MEMORY))
    return Section("memory", "Memory", tuple(blocks))


def _source(document: Document) -> Section:
    source = document["source"]
    has = ", ".join(name for name, there in source["has"].items() if there)
    shown = (
        ("file", shown_file(str(source["file"]))),
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
