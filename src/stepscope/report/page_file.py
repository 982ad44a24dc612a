"""The HTML page of a result, with its timeline."""

from collections.abc import Sequence
from typing import Final

from stepscope.report.html.page import render
from stepscope.report.html.timeline_data import encode
from stepscope.report.story.blocks import Story, TimelineView
from stepscope.report.subject import Subject

_PERFETTO_BYTES: Final = 1_500_000
"""A larger trace stays a file of its own."""


def page(subjects: Sequence[Subject], story: Story) -> str:
    """The whole page. Raises MissingExtra where charts need a package."""
    return render(story, _timeline(subjects, story))


def _timeline(subjects: Sequence[Subject], story: Story) -> bytes | None:
    """The window for the page's canvas; None where nothing was recorded, or of several results."""
    blocks = (block for section in story.sections for block in section.blocks)
    if not any(isinstance(block, TimelineView) for block in blocks):
        return None
    timeline, trace = subjects[0].timeline(), subjects[0].trace
    if timeline is None:
        return None
    small = trace is not None and trace.stat().st_size <= _PERFETTO_BYTES
    return encode(timeline, trace=trace.read_bytes() if trace is not None and small else None)
