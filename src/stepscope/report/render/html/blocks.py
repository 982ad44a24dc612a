"""Each block of a story as HTML: paragraphs, code, tables, finding cards, charts."""

import math
from collections.abc import Iterable, Sequence

from stepscope.record.units import plural
from stepscope.report.render.html.charts import is_wide, plotly_figure
from stepscope.report.render.html.escape import (
    escape_attribute,
    escape_code,
    escape_text,
    json_for_script,
)
from stepscope.report.story import blocks as story
from stepscope.report.story.blocks import Card, Cell, Code, Column, Excerpt, Table
from stepscope.report.story.fixes import KINDS
from stepscope.report.text import UNKNOWN, exact_cell, format_cell, slug

_COPY = '<button type="button" class="quiet" data-act="copy">Copy</button>'


def _copyable(block: Code) -> str:
    language = f' data-language="{escape_attribute(block.language)}"' if block.language else ""
    lines = f'<pre tabindex="0"><code>{escape_code(block.text)}</code></pre>'
    return f'<div class="code"{language}>{lines}{_COPY}</div>'


def _edited(before: str, after: tuple[str, ...]) -> str:
    """A line before and its edit after; the button copies the latter."""
    old = f"<del>{escape_code(before) or ' '}</del>" if before else ""
    new = "".join(f"<ins>{escape_code(line) or ' '}</ins>" for line in after)
    lines = f'<pre tabindex="0"><code>{old}{new}</code></pre>'
    return f'<div class="code edit">{lines}{_COPY}</div>'


def _excerpt(block: Excerpt) -> str:
    """Numbered lines with the relevant one marked."""
    lines = ""
    for number, line in enumerate(block.lines, block.first):
        tag = "mark" if number == block.line else "span"
        lines += f'<{tag} class="line"><b>{number}</b>{escape_code(line) or " "}</{tag}>'
    return (
        f'<figure class="excerpt"><figcaption>{escape_text(block.file)}:{block.line}</figcaption>'
        f'<pre tabindex="0"><code>{lines}</code></pre></figure>'
    )


_FILTERED_FROM = 9
"""Rows; shorter tables need no filter."""
_LONG = 40
"""Characters; longer cells get their own space."""
_LONG_NAME = 80
_LONG_TEXT = 400
"""Characters; longer cells open on click."""
_LONG_WORD = 24
"""Characters of a word found only in names such as kernels and paths."""


def render_table(block: Table) -> str:
    """The table with its tools. Rows beyond `shown` appear on click."""
    label = escape_attribute(block.title or block.id)
    title = f"<h3>{escape_text(block.title)}</h3>" if block.title else ""
    tools = ""
    if len(block.rows) >= _FILTERED_FROM:
        tools = f'<input type="search" placeholder="Filter" aria-label="Filter {label}">'
    if block.rows:
        tools += '<button type="button" class="quiet" data-act="csv">CSV</button>'
    head = "".join(map(_heading, block.columns))
    body = ""
    for at, row in enumerate(_whole(block)):
        cells = "".join(_cell(value, one) for value, one in zip(row, block.columns, strict=True))
        body += f"<tr{' hidden' if at >= block.shown else ''}>{cells}</tr>"
    more = '<p class="none">No rows.</p>'
    if block.rows:
        left = len(block.rows) - block.shown
        more = (
            f'<p class="table-more"{"" if left > 0 else " hidden"}>'
            f'<span aria-live="polite">{plural(left, "row")} more</span>'
            '<button type="button" class="quiet" data-act="all">Show all</button></p>'
        )
    return (
        f'<div class="table" id="table-{slug(block.id)}" data-file="{slug(block.id)}.csv"'
        f' data-shown="{block.shown}">'
        f'<div class="table-head">{title}<div class="table-tools">{tools}</div></div>'
        f'<div class="table-scroll" tabindex="0" role="region" aria-label="{label}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{more}</div>"
    )


def _whole(block: Table) -> list[tuple[Cell, ...]]:
    """The rows, with integers in columns where every number is whole."""
    made: list[Sequence[Cell]] = []
    for at, column in enumerate(block.columns):
        values = [row[at] for row in block.rows]
        numbers = [v for v in values if isinstance(v, float) and math.isfinite(v)]
        if column.number and not column.percent and all(v.is_integer() for v in numbers):
            values = [int(v) if isinstance(v, float) and math.isfinite(v) else v for v in values]
        made.append(values)
    return list(zip(*made, strict=True))


def _heading(column: Column) -> str:
    unit = f" <small>{escape_text(column.unit)}</small>" if column.unit else ""
    kind = ' class="number"' if column.number else ""
    # The name is repeated as an attribute: a script reads it without the unit and the arrow.
    label = escape_attribute(column.data_heading)
    return (
        f'<th scope="col"{kind} aria-sort="none" data-name="{label}">'
        f'<button type="button">{escape_text(column.name)}{unit}</button></th>'
    )


def _cell(value: Cell, column: Column) -> str:
    written = format_cell(value, column)
    if written == UNKNOWN:
        kind = "number unknown" if column.number else "unknown"
        return f'<td class="{kind}" data-v="">{UNKNOWN}</td>'
    if column.number and not isinstance(value, str):
        share = ' data-share=""' if column.percent else ""
        return f'<td class="number" data-v="{exact_cell(value)}"{share}>{written}</td>'
    shown = escape_text(written)
    if len(written) > _LONG:
        named = any(len(word) >= _LONG_WORD for word in written.split())
        very = len(written) > (_LONG_NAME if named else _LONG_TEXT)
        title = f' title="{escape_attribute(written)}"' if very else ""
        shown = f'<span class="long{" very" if very else ""}"{title}>{shown}</span>'
    kind = ' class="number"' if column.number else ""
    return f"<td{kind}>{shown}</td>"


def render_card(block: Card, label: str, *, timeline: bool) -> str:
    """`label` is its id; with a `timeline` in the page it links to its place there."""
    kind = block.kind if block.kind in KINDS else "none"
    meaning = escape_attribute(KINDS.get(kind, "advice only"))
    chip = f'<span class="chip" title="{meaning}">{escape_text(block.kind)}</span>'
    facts = " · ".join(map(escape_text, block.facts()))
    gain = f"<strong>{escape_text(block.gain)}</strong>" if block.gain else ""
    if block.predicted:
        gain += f"<span>predicted {escape_text(block.predicted)}</span>"
    if block.measured:
        gain += f'<span class="measured">measured {escape_text(block.measured)}</span>'
    gain = f'<p class="gain">{gain}</p>' if gain else ""
    words = f"<p>{escape_text(block.why)}</p>" if block.why else ""
    if block.evidence:
        words += f'<dl class="evidence">{_pairs(block.evidence)}</dl>'
    if block.advice:
        words += f'<p class="advice">{escape_text(block.advice)}</p>'
    if timeline and (block.at_ns is not None or block.search):
        start, end = block.at_ns or ("", "")
        words += (
            f'<button type="button" data-act="seek" data-from="{start}" data-to="{end}"'
            f' data-search="{escape_attribute(block.search)}">Show in timeline</button>'
        )
    code = _excerpt(block.excerpt) if block.excerpt else ""
    code += _edited(block.before, block.edit) if block.edit else ""
    code += _copyable(Code(block.command, "sh")) if block.command else ""
    code = f'<div class="card-code">{code}</div>' if code else ""
    return (
        f'<article class="card kind-{kind}" id="{label}" aria-labelledby="{label}-title">'
        f'<header><div><h3 id="{label}-title">{escape_text(block.title)}</h3>'
        f'<p class="card-facts">{chip} {facts}</p></div>{gain}</header>'
        f'<div class="card-body"><div class="card-words">{words}</div>{code}</div></article>'
    )


def _pairs(pairs: Iterable[tuple[str, str]]) -> str:
    return "".join(f"<dt>{escape_text(k)}</dt><dd>{escape_text(v)}</dd>" for k, v in pairs)


def section_anchor(block: story.Section) -> str:
    """A section's id in the page."""
    label = slug(block.id)
    return f"{label}-section" if label in ("main", "timeline", "top") else label


def render_section(block: story.Section, *, timeline: bool) -> str:
    """A section with its anchor. `timeline`: whether the page has one to link to."""
    label = section_anchor(block)
    blocks = _blocks(block.blocks, label, timeline)
    if not block.title:
        return f'<section id="{label}">{blocks}</section>'
    return (
        f'<section id="{label}" aria-labelledby="{label}-heading">'
        f'<h2 id="{label}-heading">{escape_text(block.title)}</h2>{blocks}</section>'
    )


def _blocks(blocks: tuple[story.Block, ...], label: str, timeline: bool) -> str:
    """Blocks in order; adjacent charts share a row if there is room."""
    made, charts, cards = "", "", 0
    for block in blocks:
        if isinstance(block, story.Chart) and not is_wide(block):
            charts += _chart(block)
            continue
        made, charts = made + _together(charts), ""
        if isinstance(block, story.Chart):
            made += _together(_chart(block))
        elif isinstance(block, story.Card):
            cards += 1
            made += render_card(block, f"{label}-{cards}", timeline=timeline)
        else:
            made += _block(block, timeline)
    return made + _together(charts)


def _together(charts: str) -> str:
    return f'<div class="charts">{charts}</div>' if charts else ""


def _block(block: story.Block, timeline: bool) -> str:
    match block:
        case story.Paragraph():
            return f"<p{' class=strong' if block.strong else ''}>{escape_text(block.text)}</p>"
        case story.Missing():
            return _missing(block)
        case story.Code():
            return _copyable(block)
        case story.Facts():
            pairs = "".join(f"<div>{_pairs([pair])}</div>" for pair in block.pairs)
            return f'<dl class="facts">{pairs}</dl>'
        case story.Table():
            return render_table(block)
        case story.TimelineView() if timeline:
            trace = f' data-trace="{escape_attribute(block.trace)}"' if block.trace else ""
            return f'<div id="timeline" data-events="{block.events}"{trace}></div>'
        case story.TimelineView(trace=None):
            return _missing(story.Missing("No timeline."))
        case story.TimelineView():
            return _missing(story.Missing("The timeline is not in this page.", block.sentence))
    raise TypeError(f"cannot draw a {type(block).__name__}")


def _missing(block: story.Missing) -> str:
    way = f" {escape_text(block.how)}" if block.how else ""
    way += f" <code>{escape_text(block.command)}</code>" if block.command else ""
    return f'<p class="missing" role="note"><b>{escape_text(block.what)}</b>{way}</p>'


def _chart(block: story.Chart) -> str:
    """Title and note as text, the figure as data for the page's script."""
    label = f"chart-{slug(block.id)}"
    note = f"<p>{escape_text(block.note)}</p>" if block.note else ""
    made = plotly_figure(block)
    return (
        f'<figure class="chart" id="{label}" data-height="{made["layout"]["height"]}">'
        f"<figcaption><h3>{escape_text(block.title)}</h3>{note}</figcaption>"
        f'<div class="plot" role="group" aria-label="{escape_attribute(block.title)}"></div>'
        f'<script type="application/json">{json_for_script(made)}</script></figure>'
    )
