"""The story of whatever a report is about."""

from collections.abc import Callable
from importlib import import_module

from stepscope.report.story.blocks import Story
from stepscope.report.subject import Subject


def story_of(subject: Subject) -> Story:
    """By its kind: `story_of_<kind>` in the module of that name."""
    module = import_module(f"stepscope.report.story.{subject.kind}")
    build: Callable[[Subject], Story] = getattr(module, f"story_of_{subject.kind}")
    return build(subject)
