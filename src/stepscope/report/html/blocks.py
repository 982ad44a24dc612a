"""Each block of a story as HTML."""

from stepscope.report.html.card import card
from stepscope.report.html.code import copyable
from stepscope.report.html.escape import attribute, data, name, text
from stepscope.report.html.figure import figure, wide
from stepscope.report.html.table import table
from stepscope.report.story import blocks as story
from stepscope.report.text import plural

_TAKEN = ("main", "timeline", "top")


def anchor(block: story.Section) -> str:
    """A section's id in the page."""
    label = name(block.id)
    return f"{label}-section" if label in _TAKEN else label


def section(block: story.Section, *, timeline: bool) -> str:
    """A section with its anchor. `timeline`: the page holds one to lead to."""
    label = anchor(block)
    return (
        f'<section id="{label}" aria-labelledby="{label}-heading">'
        f'<h2 id="{label}-heading">{text(block.title)}</h2>'
        f"{_blocks(block.blocks, label, timeline)}</section>"
    )


def _blocks(blocks: tuple[story.Block, ...], label: str, timeline: bool) -> str:
    """In order; charts that follow each other share a row where there is room."""
    made: list[str] = []
    charts: list[str] = []
    cards = 0
    for block in blocks:
        if isinstance(block, story.Chart):
            if wide(block):
                made += [*_together(charts), *_together([_chart(block)])]
                charts = []
            else:
                charts.append(_chart(block))
            continue
        made += _together(charts)
        charts = []
        if isinstance(block, story.Card):
            cards += 1
            made.append(card(block, f"{label}-{cards}", timeline=timeline))
        else:
            made.append(_block(block, timeline))
    return "".join(made + _together(charts))


def _together(charts: list[str]) -> list[str]:
    return [f'<div class="charts">{"".join(charts)}</div>'] if charts else []


def _block(block: story.Block, timeline: bool) -> str:
    match block:
        case story.Say():
            return f"<p{' class=strong' if block.strong else ''}>{text(block.text)}</p>"
        case story.Missing():
            return _missing(block.what, block.how)
        case story.Code():
            return copyable(block)
        case story.Facts():
            return _facts(block)
        case story.Table():
            return table(block)
        case story.TimelineView():
            return _timeline(block, timeline)
    raise TypeError(f"no way to draw a {type(block).__name__} by itself")


def _missing(what: str, how: str) -> str:
    way = f" {_way(how)}" if how else ""
    return f'<p class="missing" role="note"><b>{text(what)}</b>{way}</p>'


def _way(how: str) -> str:
    """A command as such, a sentence as such."""
    return f"<code>{text(how)}</code>" if how.startswith("stepscope ") else text(how)


def _facts(block: story.Facts) -> str:
    pairs = "".join(
        f"<div><dt>{text(key)}</dt><dd>{text(value)}</dd></div>" for key, value in block.pairs
    )
    return f'<dl class="facts">{pairs}</dl>'


def _timeline(block: story.TimelineView, present: bool) -> str:
    """The canvas's place, or where to see the window instead."""
    if present:
        trace = f' data-trace="{attribute(block.trace)}"' if block.trace else ""
        return f'<div id="timeline" data-events="{block.events}"{trace}></div>'
    if block.trace is None:
        return _missing("No timeline.", "")
    words = f"{plural(block.events, 'event')} are in {block.trace}, which Perfetto opens."
    return _missing("The timeline is not in this page.", words)


def _chart(block: story.Chart) -> str:
    """Its title and note as text, its figure as data that the page's script draws."""
    label = f"chart-{name(block.id)}"
    note = f"<p>{text(block.note)}</p>" if block.note else ""
    made = figure(block)
    return (
        f'<figure class="chart" id="{label}" data-height="{made["layout"]["height"]}">'
        f"<figcaption><h3>{text(block.title)}</h3>{note}</figcaption>"
        f'<div class="plot" role="group" aria-label="{attribute(block.title)}"></div>'
        f'<script type="application/json">{data(made)}</script></figure>'
    )
