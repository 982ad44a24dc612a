"""A console on a stream: its width, ASCII if the encoding needs it, clean text."""

import os
from typing import IO

from rich.console import Console
from rich.text import Text

_ASCII = str.maketrans("✓✗·±→←—–−█▉▊▋▌▍▎▏▕×µ…∞≥≤", "+x-~><---#######||xu~~><")
WIDEST = 80
_NARROWEST = 30


def screen_width(stream: IO[str]) -> int:
    """At most 80 columns; fewer on a narrow terminal or if COLUMNS says so."""
    told = os.environ.get("COLUMNS", "")
    width = int(told) if told.isdigit() else 0
    if not width and stream.isatty():
        try:
            width = os.get_terminal_size(stream.fileno()).columns
        except (OSError, ValueError):
            width = 0
    return max(_NARROWEST, min(width or WIDEST, WIDEST))


def console_for(stream: IO[str]) -> Console:
    """A console that writes only to `stream`, even inside a notebook."""
    return Console(
        file=stream,
        width=screen_width(stream),
        highlight=False,
        soft_wrap=True,
        emoji=False,
        markup=False,
        force_jupyter=False,
    )


def is_ascii(console: Console) -> bool:
    """Whether the output is limited to ASCII."""
    return not console.encoding.lower().startswith("utf")


def to_ascii(text: str) -> str:
    """Text in ASCII; characters without a spelling become question marks."""
    return text.translate(_ASCII).encode("ascii", "replace").decode()


def fold(console: Console, line: Text, width: int, hanging: int = 2) -> list[Text]:
    """Lines of at most `width`; later ones are indented `hanging` further than the first."""
    if line.cell_len <= width:
        return [line]
    indent = len(line.plain) - len(line.plain.lstrip()) + hanging
    first, *rest = line.wrap(console, width)
    first.rstrip()
    if not rest:
        return [first]
    below = Text(" ").join(rest).wrap(console, width - indent)
    for part in below:
        part.rstrip()
    return [first, *(Text.assemble(" " * indent, part) for part in below)]
