"""A table: sorted, filtered and saved by the page's script, readable without it."""

import math

from stepscope.report.html.escape import attribute, name, text
from stepscope.report.html.numbers import UNKNOWN, shown, sortable
from stepscope.report.story.blocks import Cell, Column, Table
from stepscope.report.text import plural

_FILTERED_FROM = 9
"""Shorter tables are seen whole."""
_LONG = 40
"""Characters of a cell that gets room of its own."""
_LONG_NAME = 80
_LONG_TEXT = 400
"""Longer names and sentences open by a click."""
_LONG_WORD = 24
"""Characters of a word that only names have, as kernels' and paths."""


def table(block: Table) -> str:
    """The table with its tools. Rows beyond `shown` wait for a click."""
    label = block.title or block.id
    head = "".join(_heading(column) for column in block.columns)
    rows = _whole(block)
    body = "".join(_row(row, block.columns, at >= block.shown) for at, row in enumerate(rows))
    title = f"<h3>{text(block.title)}</h3>" if block.title else ""
    return (
        f'<div class="table" id="table-{name(block.id)}" data-file="{name(block.id)}.csv"'
        f' data-shown="{block.shown}">'
        f'<div class="table-head">{title}{_tools(block, label)}</div>'
        f'<div class="table-scroll" tabindex="0" role="region" aria-label="{attribute(label)}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
        f"{_more(block)}</div>"
    )


def _whole(block: Table) -> list[tuple[Cell, ...]]:
    """The rows; columns in which every number is whole have them as whole ones."""
    columns = zip(*block.rows, strict=True) if block.rows else ()
    changed = [
        [int(v) if isinstance(v, float) and math.isfinite(v) else v for v in values]
        if column.number and not column.percent and all(map(_is_whole, values))
        else values
        for column, values in zip(block.columns, columns, strict=bool(block.rows))
    ]
    return list(zip(*changed, strict=True))


def _is_whole(value: Cell) -> bool:
    """Also of what is no number."""
    return not isinstance(value, float) or not math.isfinite(value) or value.is_integer()


def _tools(block: Table, label: str) -> str:
    filtering = (
        f'<input type="search" placeholder="Filter" aria-label="Filter {attribute(label)}">'
        if len(block.rows) >= _FILTERED_FROM
        else ""
    )
    save = '<button type="button" class="quiet" data-act="csv">CSV</button>'
    return f'<div class="table-tools">{filtering}{save if block.rows else ""}</div>'


def _heading(column: Column) -> str:
    unit = f" <small>{text(column.unit)}</small>" if column.unit else ""
    kind = ' class="number"' if column.number else ""
    # The name is repeated as an attribute: a script reads it without the unit and the arrow.
    label = attribute(f"{column.name} [{column.unit}]" if column.unit else column.name)
    return (
        f'<th scope="col"{kind} aria-sort="none" data-name="{label}">'
        f'<button type="button">{text(column.name)}{unit}</button></th>'
    )


def _row(row: tuple[Cell, ...], columns: tuple[Column, ...], hidden: bool) -> str:
    cells = "".join(_cell(value, column) for value, column in zip(row, columns, strict=True))
    return f"<tr{' hidden' if hidden else ''}>{cells}</tr>"


def _cell(value: Cell, column: Column) -> str:
    written = shown(value, column)
    if written == UNKNOWN:
        kind = "number unknown" if column.number else "unknown"
        return f'<td class="{kind}" data-v="">{UNKNOWN}</td>'
    if column.number and not isinstance(value, str):
        share = ' data-share=""' if column.percent else ""
        return f'<td class="number" data-v="{sortable(value)}"{share}>{written}</td>'
    kind = ' class="number"' if column.number else ""
    if len(written) <= _LONG:
        return f"<td{kind}>{text(written)}</td>"
    return f"<td{kind}>{_long(written)}</td>"


def _long(written: str) -> str:
    named = any(len(word) >= _LONG_WORD for word in written.split())
    if len(written) <= (_LONG_NAME if named else _LONG_TEXT):
        return f'<span class="long">{text(written)}</span>'
    return f'<span class="long very" title="{attribute(written)}">{text(written)}</span>'


def _more(block: Table) -> str:
    if not block.rows:
        return '<p class="none">No rows.</p>'
    hidden = "" if len(block.rows) > block.shown else " hidden"
    rest = plural(len(block.rows) - block.shown, "row")
    return (
        f'<p class="table-more"{hidden}><span aria-live="polite">{rest} more</span>'
        '<button type="button" class="quiet" data-act="all">Show all</button></p>'
    )
