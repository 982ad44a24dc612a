"""The story of a run."""

from stepscope.report.story.answers import answers_sections
from stepscope.report.story.blocks import Missing, Say, Section, Story
from stepscope.report.story.cards import findings_section
from stepscope.report.story.communication import communication_sections
from stepscope.report.story.environment import environment_section
from stepscope.report.story.idle import idle_blocks
from stepscope.report.story.kernels import kernels_section
from stepscope.report.story.losses import losses_section
from stepscope.report.story.machine import machine_section
from stepscope.report.story.memory import memory_section
from stepscope.report.story.pipeline import pipeline_section
from stepscope.report.story.places import NO_STEPS, run_again, shown_file
from stepscope.report.story.quality import quality_section
from stepscope.report.story.run_host import host_sections
from stepscope.report.story.run_step import run_step
from stepscope.report.story.run_summary import run_subtitle, run_summary, run_verdict
from stepscope.report.story.run_whole import run_whole
from stepscope.report.story.window import EARLY, no_window, window_section
from stepscope.report.subject import Document, Subject
from stepscope.store.source import read_sources


def story_of_run(subject: Subject) -> Story:
    """Everything a run tells, and what it does not with the way to get it."""
    document, tables = subject.document, subject.tables()
    analysed = document["timeline"]
    timeline = subject.timeline() if analysed is not None else None
    sources = read_sources(subject.folder) if subject.folder is not None else {}
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
            no_window(document, "No kernels were recorded"),
            run_again(document, EARLY),
        ),
        *(communication_sections(analysed) if analysed is not None else ()),
        *host_sections(document),
        pipeline_section(document),
        memory_section(document, tables),
        machine_section(document, tables),
        losses_section(document),
        *answers_sections(document),
        environment_section(document),
        quality_section(analysed, document["problems"]),
    ]
    return Story(
        title=shown_file(document["run"]["program"], document["run"]["program"]),
        verdict=run_verdict(document),
        subtitle=run_subtitle(document),
        sections=tuple(sections),
        kind="run",
    )


def _idle(document: Document) -> list[Section]:
    """Only where a device was recorded: without one, kernels say what is missing."""
    analysed = document["timeline"]
    blocks = idle_blocks(analysed) if analysed is not None else []
    if not blocks:
        return []
    note = Say("Of the recorded steps: recording stretches the host's times.")
    return [Section("idle", "Why the GPU is idle", (*blocks, note))]


def _window(subject: Subject) -> Section:
    document = subject.document
    if document["timeline"] is None:
        missing = no_window(document, "There is no timeline")
        return Section("timeline", "Timeline", (missing,))
    trace = subject.trace.name if subject.trace is not None else None
    return window_section(document["timeline"], trace, stretched=True)


def _undiagnosed(document: Document) -> Missing | None:
    """What findings could not rest on."""
    if not document["steps"]["count"]:
        return Missing("Nothing could be diagnosed: no steps were seen.", NO_STEPS)
    if document["timeline"] is None:
        return no_window(document, "What runs inside a step could not be diagnosed")
    return None
