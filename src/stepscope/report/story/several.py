"""One story of several results: the versions side by side, two against each other, then each."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from stepscope.report.deliverables import versions_table
from stepscope.report.story.blocks import (
    Block,
    Card,
    Chart,
    Missing,
    Section,
    Story,
    Table,
    TimelineView,
)
from stepscope.report.story.compare import comparison_story
from stepscope.report.story.of import story_of
from stepscope.report.subject import Subject

Document = dict[str, Any]


def story_of_several(subjects: Sequence[Subject], compared: Document | str | None) -> Story:
    """`compared`: the comparison of two, why there is none, or None of more than two."""
    stories = [story_of(subject) for subject in subjects]
    head = [Section("versions", "Version by version", (versions_table(subjects),))]
    verdict = " · ".join(f"{story.title}: {story.verdict}" for story in stories)
    if isinstance(compared, str):
        missing = Missing("The two are not compared.", compared)
        head.append(Section("against", "Before and after", (missing,)))
    elif compared is not None:
        against = comparison_story(compared)
        verdict = against.verdict
        head += [_numbered(part, "against", against.title) for part in against.sections]
    parts = [
        _numbered(part, str(number), _title(story, subject, stories))
        for number, (story, subject) in enumerate(zip(stories, subjects, strict=True), start=1)
        for part in story.sections
    ]
    return Story(
        title=" and ".join(_title(*one, stories) for one in zip(stories, subjects, strict=True)),
        verdict=verdict,
        subtitle=" | ".join(story.subtitle for story in stories),
        sections=(*head, *parts),
        kind="comparison",
    )


def _title(story: Story, subject: Subject, stories: Sequence[Story]) -> str:
    """What it is called; by its id where several are called the same."""
    alike = [one.title for one in stories].count(story.title) > 1
    return subject.name if alike else story.title


def _numbered(section: Section, number: str, title: str) -> Section:
    """With ids of its own, so that sections of several stories do not meet."""
    blocks = tuple(_block(block, number) for block in section.blocks)
    return Section(f"{number}-{section.id}", f"{section.title} — {title}", blocks)


def _block(block: Block, number: str) -> Block:
    if isinstance(block, Table | Chart):
        return replace(block, id=f"{number}-{block.id}")
    if isinstance(block, Card):
        return replace(block, id=f"{number}-{block.id}", at_ns=None, search="")
    if isinstance(block, TimelineView):
        what = "The timeline is left out of a report of several results."
        return Missing(what, "stepscope report of this one alone draws it.")
    return block
