"""A story as Markdown for a pull request: what matters in sight, the rest folded."""

import re
from collections.abc import Iterable

from stepscope.report.bench_markdown import code, row
from stepscope.report.html.numbers import shown
from stepscope.report.notebook_markdown import block as plain_block
from stepscope.report.notebook_markdown import cell, text
from stepscope.report.story.blocks import Block, Card, Chart, Column, Section, Story, Table
from stepscope.report.text import plural

_OPEN = (
    "summary",
    "ladder",
    "findings",
    "step",
    "verdict",
    "proof",
    "keep",
    "versions",
    "techniques",
    "devices",
    "grid",
)
"""Sections that are not folded."""
_OF_SEVERAL = re.compile(r"^(?:\d+|against)-")
_MOST_BARS = 16


def markdown(story: Story) -> str:
    """The whole page; ends with a line feed."""
    parts = [f"# {text(story.title)}", f"**{text(story.verdict)}**", text(story.subtitle)]
    for section in story.sections:
        if words := section_text(section):
            parts += _framed(section, words)
    return "\n\n".join(part for part in parts if part) + "\n"


def _framed(section: Section, words: list[str]) -> list[str]:
    name = _OF_SEVERAL.sub("", section.id)
    if name in _OPEN or name.startswith("points-"):
        return [f"## {text(section.title)}", *words]
    summary = f"<details>\n<summary>{text(section.title)}</summary>"
    return [summary, *words, "</details>"]


def section_text(section: Section) -> list[str]:
    """Its blocks, a text each; charts only where no table of the section has their numbers."""
    has_table = any(isinstance(one, Table) for one in section.blocks)
    made = [_cards([one for one in section.blocks if isinstance(one, Card)])]
    placed = False
    words: list[str] = []
    for one in section.blocks:
        if isinstance(one, Card):
            words += [] if placed else made
            placed = True
        else:
            words.append(_block(one, has_table))
    return [part for part in words if part]


def _block(one: Block, has_table: bool) -> str:
    if isinstance(one, Table):
        return table_text(one)
    if isinstance(one, Chart):
        return "" if has_table else _bars(one)
    return plain_block(one)


def table_text(table: Table) -> str:
    """A table with its title; rows beyond `shown` are counted, not written."""
    heads = [_heading(column) for column in table.columns]
    rows = [
        [cell(shown(value, column)) for value, column in zip(line, table.columns, strict=True)]
        for line in table.rows[: table.shown]
    ]
    left = len(table.rows) - len(rows)
    parts = [f"**{text(table.title)}**"] if table.title else []
    parts.append(grid(heads, [column.number for column in table.columns], rows))
    parts += [f"*… and {plural(left, 'row')} more*"] if left > 0 else []
    return "\n\n".join(parts)


def grid(heads: Iterable[str], numbers: Iterable[bool], rows: Iterable[list[str]]) -> str:
    """The lines of a table; its cells are escaped already."""
    rule = row("--:" if number else "---" for number in numbers)
    return "\n".join([row(heads), rule, *(row(cells) for cells in rows)])


def _heading(column: Column) -> str:
    unit = f" ({column.unit})" if column.unit else ""
    return cell(f"{column.name}{unit}")


def _cards(cards: list[Card]) -> str:
    """Findings as a table: why, what to do, what it saves."""
    heads = ["", "finding", "saves", "kind", "predicted", "measured", "what to do"]
    rows = []
    for number, card in enumerate(cards, start=1):
        told = f"**{cell(card.title)}**" + (f"<br>{cell(card.why)}" if card.why else "")
        ways = [cell(card.advice), code(card.command)]
        cells = (card.gain, card.kind, card.predicted, card.measured)
        way = "<br>".join(part for part in ways if part)
        rows.append([str(number), told, *map(cell, cells), way])
    kept = [at for at in range(len(heads)) if at < 3 or any(cells[at] for cells in rows)]
    chosen = [[cells[at] for at in kept] for cells in rows]
    return grid([heads[at] for at in kept], [at in (0, 2) for at in kept], chosen) if rows else ""


def _bars(chart: Chart) -> str:
    """A chart of few bars as a table; others need a format with pictures."""
    labels = list(dict.fromkeys(str(x) for series in chart.series for x in series.x))
    if chart.kind not in ("bars", "stacked") or len(labels) > _MOST_BARS:
        return ""
    unit = f" ({chart.y.title})" if chart.y.title else ""
    column = Column("", number=True)
    title = f"**{text(chart.title)}{text(unit)}**"
    if len(labels) == 1 and len(chart.series) > 1:
        rows = [[cell(one.name), *(shown(y, column) for y in one.y[:1])] for one in chart.series]
        return f"{title}\n\n{grid(['', ''], [False, True], rows)}"
    values = [{str(x): y for x, y in zip(s.x, s.y, strict=True)} for s in chart.series]
    rows = [[cell(label), *(shown(v.get(label), column) for v in values)] for label in labels]
    heads = ["", *(cell(series.name) for series in chart.series)]
    return f"{title}\n\n{grid(heads, [False, *[True] * len(values)], rows)}"
