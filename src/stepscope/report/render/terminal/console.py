"""Lines on a console: title, bars, folding to the width, and spelling for ASCII-only outputs."""

from collections.abc import Iterable
from typing import IO

from rich.console import Console
from rich.text import Text

from stepscope.report.text import format_number

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


def print_lines(console: Console, lines: Iterable[Text], width: int) -> None:
    """Print lines; one that is too long goes on below itself, indented a little further."""
    ascii_only = not console.encoding.lower().startswith("utf")
    for line in lines:
        if ascii_only:
            line.plain = to_ascii(line.plain)
        for part in _folded(console, line, width):
            console.print(part)


def to_ascii(text: str) -> str:
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


def bar_line(label: str, ms: float, total_ms: float, colour: str, width: int) -> Text:
    """One part of a step as a bar; labels of one screen are padded alike by the caller."""
    room = max(10, width - 21 - len(label))
    share = ms / total_ms if total_ms else 0.0
    filled = round(min(share, 1.0) * room * 8)
    blocks = "█" * (filled // 8) + ("▏▎▍▌▋▊▉"[filled % 8 - 1] if filled % 8 else "")
    return Text.assemble(
        f"  {label} {format_number(ms):>6} ▕", (blocks.ljust(room), colour), f"▏ {share:>4.0%}"
    )
