"""Each block of a story as HTML: paragraphs, code, tables, finding cards, charts."""

import math

from stepscope.record.units import plural
from stepscope.report.render.html.charts import is_wide, plotly_figure
from stepscope.report.render.html.escape import (
    escape_attribute,
    escape_code,
    escape_text,
    html_id,
    json_for_script,
)
from stepscope.report.story import blocks as story
from stepscope.report.story.blocks import Card, Cell, Code, Column, Excerpt, Table
from stepscope.report.text import UNKNOWN, exact_cell, format_cell


def _copyable(block: Code) -> str:
    """Code with a button that copies it."""
    language = f' data-language="{escape_attribute(block.language)}"' if block.language else ""
    return (
        f'<div class="code"{language}><pre tabindex="0"><code>'
        f"{escape_code(block.text)}</code></pre>"
        f"{_copy()}</div>"
    )


def _edited(before: str, after: tuple[str, ...]) -> str:
    """A line as it is and the lines as they would be; the button copies the latter."""
    old = f"<del>{escape_code(before) or ' '}</del>" if before else ""
    new = "".join(f"<ins>{escape_code(line) or ' '}</ins>" for line in after)
    lines = f'<pre tabindex="0"><code>{old}{new}</code></pre>'
    return f'<div class="code edit">{lines}{_copy()}</div>'


def _excerpt(block: Excerpt) -> str:
    """Numbered lines, the one that is meant marked."""
    lines = "".join(
        _line(number, line, number == block.line)
        for number, line in enumerate(block.lines, block.first)
    )
    return (
        f'<figure class="excerpt"><figcaption>{escape_text(block.file)}:{block.line}</figcaption>'
        f'<pre tabindex="0"><code>{lines}</code></pre></figure>'
    )


def _line(number: int, line: str, meant: bool) -> str:
    tag = "mark" if meant else "span"
    return f'<{tag} class="line"><b>{number}</b>{escape_code(line) or " "}</{tag}>'


def _copy() -> str:
    return '<button type="button" class="quiet" data-act="copy">Copy</button>'


_FILTERED_FROM = 9
"""Shorter tables are seen whole."""
_LONG = 40
"""Characters of a cell that gets room of its own."""
_LONG_NAME = 80
_LONG_TEXT = 400
"""Longer names and sentences open by a click."""
_LONG_WORD = 24
"""Characters of a word that only names have, as kernels' and paths."""


def render_table(block: Table) -> str:
    """The table with its tools. Rows beyond `shown` wait for a click."""
    label = block.title or block.id
    head = "".join(_heading(column) for column in block.columns)
    rows = _whole(block)
    body = "".join(_row(row, block.columns, at >= block.shown) for at, row in enumerate(rows))
    title = f"<h3>{escape_text(block.title)}</h3>" if block.title else ""
    return (
        f'<div class="table" id="table-{html_id(block.id)}" data-file="{html_id(block.id)}.csv"'
        f' data-shown="{block.shown}">'
        f'<div class="table-head">{title}{_tools(block, label)}</div>'
        '<div class="table-scroll" tabindex="0" role="region"'
        f' aria-label="{escape_attribute(label)}">'
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
        f'<input type="search" placeholder="Filter" aria-label="Filter {escape_attribute(label)}">'
        if len(block.rows) >= _FILTERED_FROM
        else ""
    )
    save = '<button type="button" class="quiet" data-act="csv">CSV</button>'
    return f'<div class="table-tools">{filtering}{save if block.rows else ""}</div>'


def _heading(column: Column) -> str:
    unit = f" <small>{escape_text(column.unit)}</small>" if column.unit else ""
    kind = ' class="number"' if column.number else ""
    # The name is repeated as an attribute: a script reads it without the unit and the arrow.
    label = escape_attribute(column.data_heading)
    return (
        f'<th scope="col"{kind} aria-sort="none" data-name="{label}">'
        f'<button type="button">{escape_text(column.name)}{unit}</button></th>'
    )


def _row(row: tuple[Cell, ...], columns: tuple[Column, ...], hidden: bool) -> str:
    cells = "".join(_cell(value, column) for value, column in zip(row, columns, strict=True))
    return f"<tr{' hidden' if hidden else ''}>{cells}</tr>"


def _cell(value: Cell, column: Column) -> str:
    written = format_cell(value, column)
    if written == UNKNOWN:
        kind = "number unknown" if column.number else "unknown"
        return f'<td class="{kind}" data-v="">{UNKNOWN}</td>'
    if column.number and not isinstance(value, str):
        share = ' data-share=""' if column.percent else ""
        return f'<td class="number" data-v="{exact_cell(value)}"{share}>{written}</td>'
    kind = ' class="number"' if column.number else ""
    if len(written) <= _LONG:
        return f"<td{kind}>{escape_text(written)}</td>"
    return f"<td{kind}>{_long(written)}</td>"


def _long(written: str) -> str:
    named = any(len(word) >= _LONG_WORD for word in written.split())
    if len(written) <= (_LONG_NAME if named else _LONG_TEXT):
        return f'<span class="long">{escape_text(written)}</span>'
    return (
        f'<span class="long very" title="{escape_attribute(written)}">{escape_text(written)}</span>'
    )


def _more(block: Table) -> str:
    if not block.rows:
        return '<p class="none">No rows.</p>'
    hidden = "" if len(block.rows) > block.shown else " hidden"
    rest = plural(len(block.rows) - block.shown, "row")
    return (
        f'<p class="table-more"{hidden}><span aria-live="polite">{rest} more</span>'
        '<button type="button" class="quiet" data-act="all">Show all</button></p>'
    )


KINDS = {
    "exact": "the same losses, bit for bit",
    "numeric": "the same model with other rounding or random draws",
    "semantic": "changes training itself",
    "none": "told, not changed",
}


def render_card(block: Card, label: str, *, timeline: bool) -> str:
    """`label` is its id; the way to its place is offered where the page has a timeline."""
    kind = block.kind if block.kind in KINDS else "none"
    meaning = escape_attribute(KINDS[kind])
    chip = f'<span class="chip" title="{meaning}">{escape_text(block.kind)}</span>'
    facts = " · ".join(map(escape_text, block.facts()))
    place = _seek(block) if timeline else ""
    return (
        f'<article class="card kind-{kind}" id="{label}" aria-labelledby="{label}-title">'
        f'<header><div><h3 id="{label}-title">{escape_text(block.title)}</h3>'
        f'<p class="card-facts">{chip} {facts}</p></div>{_gain(block)}</header>'
        f'<div class="card-body"><div class="card-words">{_words(block)}{place}</div>{_code(block)}'
        "</div></article>"
    )


def _gain(block: Card) -> str:
    lines = [f"<strong>{escape_text(block.gain)}</strong>"] if block.gain else []
    if block.predicted:
        lines.append(f"<span>predicted {escape_text(block.predicted)}</span>")
    if block.measured:
        lines.append(f'<span class="measured">measured {escape_text(block.measured)}</span>')
    return f'<p class="gain">{"".join(lines)}</p>' if lines else ""


def _words(block: Card) -> str:
    pairs = "".join(
        f"<dt>{escape_text(key)}</dt><dd>{escape_text(value)}</dd>" for key, value in block.evidence
    )
    return (
        (f"<p>{escape_text(block.why)}</p>" if block.why else "")
        + (f'<dl class="evidence">{pairs}</dl>' if pairs else "")
        + (f'<p class="advice">{escape_text(block.advice)}</p>' if block.advice else "")
    )


def _code(block: Card) -> str:
    parts = [
        _excerpt(block.excerpt) if block.excerpt else "",
        _edited(block.before, block.edit) if block.edit else "",
        _copyable(Code(block.command, "sh")) if block.command else "",
    ]
    return f'<div class="card-code">{"".join(parts)}</div>' if any(parts) else ""


def _seek(block: Card) -> str:
    if block.at_ns is None and not block.search:
        return ""
    start, end = block.at_ns or ("", "")
    return (
        f'<button type="button" data-act="seek" data-from="{start}" data-to="{end}"'
        f' data-search="{escape_attribute(block.search)}">Show in timeline</button>'
    )


_TAKEN = ("main", "timeline", "top")


def section_anchor(block: story.Section) -> str:
    """A section's id in the page."""
    label = html_id(block.id)
    return f"{label}-section" if label in _TAKEN else label


def render_section(block: story.Section, *, timeline: bool) -> str:
    """A section with its anchor. `timeline`: the page holds one to lead to."""
    label = section_anchor(block)
    blocks = _blocks(block.blocks, label, timeline)
    if not block.title:
        return f'<section id="{label}">{blocks}</section>'
    return (
        f'<section id="{label}" aria-labelledby="{label}-heading">'
        f'<h2 id="{label}-heading">{escape_text(block.title)}</h2>{blocks}</section>'
    )


def _blocks(blocks: tuple[story.Block, ...], label: str, timeline: bool) -> str:
    """In order; charts that follow each other share a row where there is room."""
    made: list[str] = []
    charts: list[str] = []
    cards = 0
    for block in blocks:
        if isinstance(block, story.Chart):
            if is_wide(block):
                made += [*_together(charts), *_together([_chart(block)])]
                charts = []
            else:
                charts.append(_chart(block))
            continue
        made += _together(charts)
        charts = []
        if isinstance(block, story.Card):
            cards += 1
            made.append(render_card(block, f"{label}-{cards}", timeline=timeline))
        else:
            made.append(_block(block, timeline))
    return "".join(made + _together(charts))


def _together(charts: list[str]) -> list[str]:
    return [f'<div class="charts">{"".join(charts)}</div>'] if charts else []


def _block(block: story.Block, timeline: bool) -> str:
    match block:
        case story.Paragraph():
            return f"<p{' class=strong' if block.strong else ''}>{escape_text(block.text)}</p>"
        case story.Missing():
            return _missing(block)
        case story.Code():
            return _copyable(block)
        case story.Facts():
            return _facts(block)
        case story.Table():
            return render_table(block)
        case story.TimelineView():
            return _timeline(block, timeline)
    raise TypeError(f"no way to draw a {type(block).__name__} by itself")


def _missing(block: story.Missing) -> str:
    way = f" {escape_text(block.how)}" if block.how else ""
    way += f" <code>{escape_text(block.command)}</code>" if block.command else ""
    return f'<p class="missing" role="note"><b>{escape_text(block.what)}</b>{way}</p>'


def _facts(block: story.Facts) -> str:
    pairs = "".join(
        f"<div><dt>{escape_text(key)}</dt><dd>{escape_text(value)}</dd></div>"
        for key, value in block.pairs
    )
    return f'<dl class="facts">{pairs}</dl>'


def _timeline(block: story.TimelineView, present: bool) -> str:
    """The canvas's place, or where to see the window instead."""
    if present:
        trace = f' data-trace="{escape_attribute(block.trace)}"' if block.trace else ""
        return f'<div id="timeline" data-events="{block.events}"{trace}></div>'
    if block.trace is None:
        return _missing(story.Missing("No timeline.", ""))
    words = f"{plural(block.events, 'event')} are in {block.trace}, which Perfetto opens."
    return _missing(story.Missing("The timeline is not in this page.", words))


def _chart(block: story.Chart) -> str:
    """Its title and note as text, its figure as data that the page's script draws."""
    label = f"chart-{html_id(block.id)}"
    note = f"<p>{escape_text(block.note)}</p>" if block.note else ""
    made = plotly_figure(block)
    return (
        f'<figure class="chart" id="{label}" data-height="{made["layout"]["height"]}">'
        f"<figcaption><h3>{escape_text(block.title)}</h3>{note}</figcaption>"
        f'<div class="plot" role="group" aria-label="{escape_attribute(block.title)}"></div>'
        f'<script type="application/json">{json_for_script(made)}</script></figure>'
    )
