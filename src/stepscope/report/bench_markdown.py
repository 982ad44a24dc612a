"""Strangers' text made fit for Markdown: nothing in it becomes a tag, a link or a column."""

import re
from collections.abc import Iterable

from stepscope.report.text import safe

_SPECIAL = re.compile(r"([\\`*\[\]|~<>])")
_LINKING = re.compile(r"(://|(?<!\w)www\.|@(?=\w)|(?<![^\s(\[{])#(?=\d))")
"""What sites that show Markdown turn into links and mentions of people by themselves."""


def text(value: str) -> str:
    """Plain text, for a cell or a sentence."""
    plain = _SPECIAL.sub(r"\\\1", safe(value).replace("&", "&amp;"))
    return _LINKING.sub(lambda found: f"{found[1][0]}<!-- -->{found[1][1:]}", plain)


def code(value: str) -> str:
    """A code span, for a cell or a sentence."""
    plain = safe(value).replace("`", "'").replace("|", "\\|")
    return f"`{plain}`" if plain else ""


def row(cells: Iterable[str]) -> str:
    """A line of a table."""
    return "| " + " | ".join(cells) + " |"
