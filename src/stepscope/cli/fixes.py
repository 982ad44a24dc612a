"""`stepscope fixes`: what can be changed in a program while it runs."""

import json
import sys
from itertools import groupby
from textwrap import wrap
from typing import IO, Any

import click
from rich.text import Text

from stepscope.report.render.terminal.console import console_for, print_lines

Document = dict[str, Any]
_GROUPS = ("data", "waiting", "arithmetic", "launch", "memory", "batch")
_KINDS = {
    "exact": "the same losses, bit for bit",
    "numeric": "other rounding or other random draws",
    "semantic": "training itself changes",
}
_WIDEST = 80


def _print_fixes(fixes: list[Document], stream: IO[str]) -> None:
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


def _print_fix(fix: Document, stream: IO[str]) -> None:
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
    print_lines(console, lines, width)


@click.command()
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def fixes(name: str | None, as_json: bool) -> None:
    """List the fixes for `run --fix`, or tell all about the one called NAME."""
    from stepscope.fixes.registry import all_fixes, fix_named

    chosen = [fix_named(name)] if name else all_fixes()
    documents = [_described(one) for one in chosen]
    if as_json:
        json.dump(documents[0] if name else documents, sys.stdout, indent=1)
        print()
    elif name:
        _print_fix(documents[0], sys.stdout)
    else:
        _print_fixes(documents, sys.stdout)


def _described(fix: Any) -> dict[str, Any]:
    value = fix.parse(fix.suggested[0]) if fix.suggested else None
    edit = fix.edit(value, "")
    return {
        "name": fix.name,
        "group": fix.group,
        "title": fix.title,
        "kind": str(fix.kind),
        "effort": fix.effort,
        "needs": fix.needs,
        "values": list(fix.values),
        "suggested": list(fix.suggested),
        "bad_with": list(fix.bad_with),
        "edit": edit.words,
    }
