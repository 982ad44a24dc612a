"""A story as Markdown: escaped text, blocks, and the page for a pull request."""

import re
from collections.abc import Iterable

from stepscope.record.units import plural
from stepscope.report.story import blocks as story
from stepscope.report.story.blocks import Block, Card, Chart, Column, Section, Story, Table, Weight
from stepscope.report.text import format_cell, safe, table_cells

_SPECIAL = re.compile(r"([\\`*\[\]|~<>])")
_LINKING = re.compile(r"(://|(?<!\w)www\.|@(?=\w)|(?<![^\s(\[{])#(?=\d))")
"""What sites that show Markdown turn into links and mentions of people by themselves."""


def escape_markdown(value: str) -> str:
    """Plain text, for a cell or a sentence."""
    plain = _SPECIAL.sub(r"\\\1", safe(value).replace("&", "&amp;"))
    return _LINKING.sub(lambda found: f"{found[1][0]}<!-- -->{found[1][1:]}", plain)


def code_span(value: str) -> str:
    """A code span, for a cell or a sentence."""
    plain = safe(value).replace("`", "'").replace("|", "\\|")
    return f"`{plain}`" if plain else ""


def table_row(cells: Iterable[str]) -> str:
    """A line of a table."""
    return "| " + " | ".join(cells) + " |"


_ALSO = re.compile(r"([$_])")
_LEADING = re.compile(r"^(\s*)([-+=#]|\d+(?=[.)](?:\s|$)))")
_TICKS = re.compile(r"`+")


def _table_cell(value: str) -> str:
    """A cell of a table. Nothing in it is a formula or emphasis."""
    return _ALSO.sub(r"\\\1", escape_markdown(value))


def sentence(value: str) -> str:
    """A sentence. Nothing in it begins a list or a heading, nor is a formula."""
    escaped = _table_cell(value)
    return _LEADING.sub(lambda found: f"{found[1]}{_entities(found[2])}", escaped)


def fenced(value: str, language: str = "") -> str:
    """Lines of code, in a fence that nothing in them ends."""
    lines = "\n".join(safe(line.expandtabs(4)) for line in value.splitlines())
    longest = max((len(found) for found in _TICKS.findall(lines)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{lines}\n{fence}"


def text_block(one: story.Block) -> str:
    """What stands in a text cell of a block that is neither a chart nor a table; "" of those."""
    match one:
        case story.Paragraph():
            return f"**{sentence(one.text)}**" if one.strong else sentence(one.text)
        case story.Missing():
            parts = (f"**{sentence(one.what)}**", sentence(one.how), code_span(one.command))
            return f"> {' '.join(part for part in parts if part)}"
        case story.Code():
            return fenced(one.text, one.language)
        case story.Facts():
            return _pairs(one.pairs)
        case story.Card():
            return _card(one)
        case story.TimelineView():
            return sentence(one.sentence) if one.trace else "> **No timeline.**"
    return ""


def _card(card: story.Card) -> str:
    about = [card.kind if card.kind != "none" else "", *card.facts()]
    gains = [f"**{sentence(card.gain)}**"] if card.gain else []
    parts = [
        f"### {sentence(card.title)}",
        " · ".join([*gains, *(sentence(one) for one in [*card.gains(), *about] if one)]),
        sentence(card.why),
    ]
    parts += [_pairs(card.evidence)] if card.evidence else []
    if found := card.excerpt:
        parts += [code_span(f"{found.file}:{found.line}"), fenced(found.numbered("→"))]
    parts += [f"→ {sentence(card.advice)}"] if card.advice else []
    edit = [f"- {card.before}"] if card.before else []
    edit += [f"+ {line}" for line in card.edit]
    parts += [fenced("\n".join(edit), "diff")] if card.edit else []
    parts += [fenced(card.command, "sh")] if card.command else []
    return "\n\n".join(part for part in parts if part)


def _pairs(pairs: tuple[tuple[str, str], ...]) -> str:
    rows = [table_row((_table_cell(name), _table_cell(value))) for name, value in pairs]
    return "\n".join([table_row(("", "")), table_row((":--", ":--")), *rows])


def _entities(value: str) -> str:
    return "".join(f"&#{ord(one)};" for one in value)


_MOST_BARS = 16


def markdown(story: Story) -> str:
    """The whole page; ends with a line feed."""
    parts = [
        f"# {sentence(story.title)}",
        f"**{sentence(story.verdict)}**",
        sentence(story.subtitle),
    ]
    for section in story.sections:
        if words := section_text(section):
            parts += _framed(section, words)
    return "\n\n".join(part for part in parts if part) + "\n"


def _framed(section: Section, words: list[str]) -> list[str]:
    if section.weight is not Weight.DETAIL:
        return [f"## {sentence(section.title)}", *words] if section.title else words
    summary = f"<details>\n<summary>{sentence(section.title)}</summary>"
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
    return text_block(one)


def table_text(table: Table) -> str:
    """A table with its title; rows beyond `shown` are counted, not written."""
    heads = [_table_cell(column.heading) for column in table.columns]
    rows = [list(map(_table_cell, line)) for line in table_cells(table, table.shown)]
    left = len(table.rows) - len(rows)
    parts = [f"**{sentence(table.title)}**"] if table.title else []
    parts.append(grid(heads, [column.number for column in table.columns], rows))
    parts += [f"*… and {plural(left, 'row')} more*"] if left > 0 else []
    return "\n\n".join(parts)


def grid(heads: Iterable[str], numbers: Iterable[bool], rows: Iterable[list[str]]) -> str:
    """The lines of a table; its cells are escaped already."""
    rule = table_row("--:" if number else "---" for number in numbers)
    return "\n".join([table_row(heads), rule, *(table_row(cells) for cells in rows)])


def _cards(cards: list[Card]) -> str:
    """Findings as a table: why, what to do, what it saves."""
    heads = ["", "finding", "saves", "kind", "predicted", "measured", "what to do"]
    rows = []
    for number, card in enumerate(cards, start=1):
        told = f"**{_table_cell(card.title)}**" + (
            f"<br>{_table_cell(card.why)}" if card.why else ""
        )
        ways = [_table_cell(card.advice), code_span(card.command)]
        cells = (card.gain, card.kind, card.predicted, card.measured)
        way = "<br>".join(part for part in ways if part)
        rows.append([str(number), told, *map(_table_cell, cells), way])
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
    title = f"**{sentence(chart.title)}{sentence(unit)}**"
    if len(labels) == 1 and len(chart.series) > 1:
        rows = [
            [_table_cell(one.name), *(format_cell(y, column) for y in one.y[:1])]
            for one in chart.series
        ]
        return f"{title}\n\n{grid(['', ''], [False, True], rows)}"
    values = [{str(x): y for x, y in zip(s.x, s.y, strict=True)} for s in chart.series]
    rows = [
        [_table_cell(label), *(format_cell(v.get(label), column) for v in values)]
        for label in labels
    ]
    heads = ["", *(_table_cell(series.name) for series in chart.series)]
    return f"{title}\n\n{grid(heads, [False, *[True] * len(values)], rows)}"
