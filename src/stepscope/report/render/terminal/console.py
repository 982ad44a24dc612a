"""A console on a stream: its width, ASCII where the encoding carries nothing else, clean text."""

import os
from collections.abc import Iterable
from typing import IO

from rich.console import Console
from rich.text import Text

_ASCII = str.maketrans("✓✗·±→←—–−█▉▊▋▌▍▎▏▕×µ…∞≥≤", "+x-~><---#######||xu~~><")
WIDEST = 80
_NARROWEST = 30


def screen_width(stream: IO[str]) -> int:
    """80 columns at most; fewer on a narrow terminal, or where COLUMNS says so."""
    told = os.environ.get("COLUMNS", "")
    width = int(told) if told.isdigit() else 0
    if not width and stream.isatty():
        try:
            width = os.get_terminal_size(stream.fileno()).columns
        except (OSError, ValueError):
            width = 0
    return max(_NARROWEST, min(width or WIDEST, WIDEST))


def console_for(stream: IO[str]) -> Console:
    """A console that writes there and nowhere else, also inside a notebook."""
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
    """Whether the output carries ASCII only."""
    return not console.encoding.lower().startswith("utf")


def to_ascii(text: str) -> str:
    """Text for outputs that carry nothing else; what has no spelling becomes a question mark."""
    return text.translate(_ASCII).encode("ascii", "replace").decode()


def print_lines(console: Console, lines: Iterable[Text], width: int) -> None:
    """Print lines; one that is too long goes on below itself, indented a little further."""
    ascii_only = is_ascii(console)
    for line in lines:
        if ascii_only:
            line.plain = to_ascii(line.plain)
        for part in fold(console, line, width):
            console.print(part)


def fold(console: Console, line: Text, width: int, hanging: int = 2) -> list[Text]:
    """Lines of at most that width, the later ones indented `hanging` further than the first."""
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


_TITLE = "stepscope"


def title_lines(parts: list[str], width: int) -> list[Text]:
    """`stepscope  first · second · …`, on as many lines as it takes."""
    rows = [f"{_TITLE}  {parts[0]}"]
    for part in parts[1:]:
        if len(rows[-1]) + len(part) + 3 > width:
            rows.append(" " * len(_TITLE) + f"  {part}")
        else:
            rows[-1] += f" · {part}"
    return [Text.assemble((rows[0][: len(_TITLE)], "bold"), rows[0][len(_TITLE) :])] + [
        Text(row) for row in rows[1:]
    ]
