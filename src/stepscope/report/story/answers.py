"""The usual questions of a baseline analysis, answered."""

from typing import Any

from stepscope.report.finding_words import answered
from stepscope.report.story.blocks import Facts, Section


def answers_sections(document: dict[str, Any]) -> list[Section]:
    """None where there were no steps to ask about."""
    pairs = tuple((one["question"], one["answer"]) for one in answered(document["baseline"]))
    return [Section("answers", "In short", (Facts(pairs),))] if pairs else []
