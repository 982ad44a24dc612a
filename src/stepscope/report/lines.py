"""Lines on a console: folded to its width, spelt in what its encoding can carry."""

from collections.abc import Iterable
from typing import IO

from rich.console import Console
from rich.text import Text

_ASCII = str.maketrans("✓✗·±→—█▉▊▋▌▍▎▏▕×µ…", "+x-~>-#######||xu~")


def console_for(stream: IO[str]) -> Console:
    """A console that writes there and nowhere else, also inside a notebook."""
    return Console(
        file=stream,
        highlight=False,
        soft_wrap=True,
        emoji=False,
        markup=False,
        force_jupyter=False,
    )


def show_lines(console: Console, lines: Iterable[Text], width: int) -> None:
    """Print lines; one that is too long goes on below itself, indented a little further."""
    ascii_only = not console.encoding.lower().startswith("utf")
    for line in lines:
        if ascii_only:
            line.plain = spelt_in_ascii(line.plain)
        for part in _folded(console, line, width):
            console.print(part)


def spelt_in_ascii(text: str) -> str:
    """Text for outputs that carry nothing else; what has no spelling becomes a question mark."""
    return text.translate(_ASCII).encode("ascii", "replace").decode()


def _folded(console: Console, line: Text, width: int) -> list[Text]:
    if line.cell_len <= width:
        return [line]
    indent = len(line.plain) - len(line.plain.lstrip()) + 2
    first, *rest = line.wrap(console, width)
    if not rest:
        return [first]
    remaining = Text(" ").join(rest)
    below = remaining.wrap(console, width - indent)
    return [first, *(Text.assemble(" " * indent, part) for part in below)]
