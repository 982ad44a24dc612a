"""What is to be written: the results, their story, and where."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepscope.record.errors import StepscopeError
from stepscope.report.story.blocks import Story
from stepscope.report.story.of import story_of
from stepscope.report.subject import Subject, open_subject


@dataclass(frozen=True, slots=True)
class Job:
    """`compared`: the document of a comparison of two; None of others, or where it cannot be."""

    whats: tuple[str, ...]
    """How the user named the results."""
    subjects: tuple[Subject, ...]
    story: Story
    compared: dict[str, Any] | None
    redact: bool
    folders: tuple[Path | None, ...]
    """Where each lies; None for a trace. Subjects that are redacted do not say."""


def job(whats: Sequence[str], redact: bool, cwd: Path) -> Job:
    """Read everything. Raises UsageError for what is no result."""
    found = [open_subject(what, cwd) for what in whats]
    folders = tuple(one.folder for one in found)
    if len(found) == 1:
        subject = _shown(found[0], redact)
        return Job(tuple(whats), (subject,), story_of(subject), None, redact, folders)
    from stepscope.report.story.several import story_of_several

    compared: dict[str, Any] | str | None = None
    if len(found) == 2:
        compared = _compared(found[0], found[1], redact)
    subjects = tuple(_shown(one, redact) for one in found)
    document = compared if isinstance(compared, dict) else None
    story = story_of_several(subjects, compared)
    return Job(tuple(whats), subjects, story, document, redact, folders)


def _shown(subject: Subject, redact: bool) -> Subject:
    if not redact:
        return subject
    from stepscope.report.redact import redacted

    return redacted(subject)


def _compared(before: Subject, after: Subject, redact: bool) -> dict[str, Any] | str:
    """The comparison, or why there is none."""
    from stepscope.compare.document import compare
    from stepscope.compare.floors import stored_floor
    from stepscope.report.compare_sides import side_of

    try:
        sides = [side_of(before)], [side_of(after)]
        document = compare(*sides, stored_floor((*sides[0], *sides[1])), None, False)
    except StepscopeError as problem:
        return str(problem)
    if redact:
        from stepscope.report.redact import redacted_document

        return redacted_document(document)
    return document
