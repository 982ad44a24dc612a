"""Strangers' text made fit for Markdown: nothing in it becomes a tag, a link or a column."""

import re
from collections.abc import Iterable

from stepscope.report.text import safe

_SPECIAL = re.compile(r"([\\`*\[\]|~<>])")


def text(value: str) -> str:
    """Plain text, for a cell or a sentence."""
    return _SPECIAL.sub(r"\\\1", safe(value).replace("&", "&amp;"))


def code(value: str) -> str:
    """A code span, for a cell or a sentence."""
    plain = safe(value).replace("`", "'").replace("|", "\\|")
    return f"`{plain}`" if plain else ""


def row(cells: Iterable[str]) -> str:
    """A line of a table."""
    return "| " + " | ".join(cells) + " |"
