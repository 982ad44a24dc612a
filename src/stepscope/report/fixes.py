"""The fixes on a terminal."""

from itertools import groupby
from textwrap import wrap
from typing import IO, Any

from rich.text import Text

from stepscope.report.lines import console_for, show_lines

Document = dict[str, Any]
_GROUPS = ("data", "waiting", "arithmetic", "launch", "memory", "batch")
_KINDS = {
    "exact": "the same losses, bit for bit",
    "numeric": "other rounding or other random draws",
    "semantic": "training itself changes",
}
_WIDEST = 80


def print_fixes(fixes: list[Document], stream: IO[str]) -> None:
    """All of them, by group."""
    lines = []
    ordered = sorted(fixes, key=lambda fix: _GROUPS.index(fix["group"]))
    for group, members in groupby(ordered, key=lambda fix: str(fix["group"])):
        lines += [Text(), Text(group, "bold")]
        lines += [line for fix in members for line in _rows(fix)]
    lines += [Text()]
    lines += [Text(f"  {kind:<9} {meaning}", "dim") for kind, meaning in _KINDS.items()]
    lines += [Text(), Text("Next:  stepscope run --fix NAME[=VALUE] program.py")]
    _show(lines, stream)


def print_fix(fix: Document, stream: IO[str]) -> None:
    """One of them, in full."""
    lines = [
        Text.assemble((fix["name"], "bold"), f": {fix['title']}"),
        Text(f"  {fix['kind']}: {_KINDS[fix['kind']]}"),
        Text(f"  in the source ({fix['effort']}): {fix['edit']}"),
    ]
    if fix["needs"]:
        lines.append(Text(f"  needs a {fix['needs'].upper()} device"))
    if fix["values"]:
        lines.append(Text(f"  values: {', '.join(fix['values'])}"))
    if fix["suggested"]:
        lines.append(Text(f"  worth trying: {', '.join(fix['suggested'])}"))
    if fix["bad_with"]:
        lines.append(Text(f"  not together with: {', '.join(fix['bad_with'])}"))
    value = f"={fix['suggested'][0]}" if fix["suggested"] else ""
    lines += [Text(), Text(f"Next:  stepscope run --fix {fix['name']}{value} program.py")]
    _show([Text(), *lines], stream)


def _rows(fix: Document) -> list[Text]:
    """Name, kind and title; a long title goes on below itself."""
    name = f"{fix['name']}{'=…' if fix['values'] else ''}"
    head = f"  {name:<20} {fix['kind']:<9} "
    first, *rest = wrap(fix["title"], _WIDEST - len(head))
    return [Text(head + first), *(Text(" " * len(head) + line) for line in rest)]


def _show(lines: list[Text], stream: IO[str]) -> None:
    console = console_for(stream)
    width = min(console.width if stream.isatty() else _WIDEST, _WIDEST)
    show_lines(console, lines, width)
