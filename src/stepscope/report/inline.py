"""A report inside a notebook: what matters as a small page, or all of it."""

from dataclasses import replace

from stepscope.report.frame import framed
from stepscope.report.html.page import render
from stepscope.report.page_file import page
from stepscope.report.story.blocks import Block, Chart, Say, Section, Story, TimelineView
from stepscope.report.subject import Subject

_LEADING = 2
_KEPT = ("findings", "ladder")
"""Sections that tell most; of others, the first ones."""
_HEIGHT = 460


def compact(story: Story) -> str:
    """The sections that tell most, without charts: those cost megabytes in the notebook's file."""
    chosen = [part for at, part in enumerate(story.sections) if at < _LEADING or part.id in _KEPT]
    parts = tuple(made for part in chosen if (made := _without_charts(part)).blocks)
    more = Say("Charts, tables and the timeline: .report()")
    end = Section("more", "More", (more,))
    return framed(render(replace(story, sections=(*parts, end))), _HEIGHT)


def inline_page(subject: Subject, story: Story) -> str:
    """The whole report, but for the trace itself: an output should not hold megabytes more."""
    return page([replace(subject, trace=None)], story)


def _without_charts(section: Section) -> Section:
    return replace(section, blocks=tuple(block for block in section.blocks if _plain(block)))


def _plain(block: Block) -> bool:
    return not isinstance(block, Chart | TimelineView)
