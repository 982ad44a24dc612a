"""A story as Markdown: escaped text, blocks, and the page for a pull request."""

import re
from collections.abc import Iterable
from math import nan

from stepscope.record.units import plural
from stepscope.report.story import blocks as story
from stepscope.report.story.blocks import Card, Chart, Column, Section, Story, Table, Weight
from stepscope.report.story.phrases import joined
from stepscope.report.text import format_cell, safe, table_cells

_SPECIAL = re.compile(r"([\\`*\[\]|~<>])")
_LINKING = re.compile(r"(://|(?<!\w)www\.|@(?=\w)|(?<![^\s(\[{])#(?=\d))")
"""What Markdown sites turn into links and mentions on their own."""


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
    """A table cell, without formulas or emphasis."""
    return _ALSO.sub(r"\\\1", escape_markdown(value))


def sentence(value: str) -> str:
    """A sentence that cannot start a list or heading or contain a formula."""

    def spelt(found: re.Match[str]) -> str:
        return found[1] + "".join(f"&#{ord(one)};" for one in found[2])

    return _LEADING.sub(spelt, _table_cell(value))


def fenced(value: str, language: str = "") -> str:
    """Lines of code, in a fence that they cannot close."""
    lines = "\n".join(safe(line.expandtabs(4)) for line in value.splitlines())
    longest = max((len(found) for found in _TICKS.findall(lines)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{lines}\n{fence}"


def text_block(one: story.Block) -> str:
    """The Markdown of a block; "" for charts and tables."""
    match one:
        case story.Paragraph():
            return f"**{sentence(one.text)}**" if one.strong else sentence(one.text)
        case story.Missing():
            parts = (f"**{sentence(one.what)}**", sentence(one.how), code_span(one.command))
            return f"> {joined(*parts, by=' ')}"
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
    gain = f"**{sentence(card.gain)}**" if card.gain else ""
    about = [*card.gains(), card.kind if card.kind != "none" else "", *card.facts()]
    found = card.excerpt
    edit = [*([f"- {card.before}"] if card.before else []), *(f"+ {line}" for line in card.edit)]
    return joined(
        f"### {sentence(card.title)}",
        joined(gain, *map(sentence, about)),
        sentence(card.why),
        _pairs(card.evidence) if card.evidence else "",
        code_span(f"{found.file}:{found.line}") if found else "",
        fenced(found.numbered("→")) if found else "",
        f"→ {sentence(card.advice)}" if card.advice else "",
        fenced("\n".join(edit), "diff") if card.edit else "",
        fenced(card.command, "sh") if card.command else "",
        by="\n\n",
    )


def _pairs(pairs: tuple[tuple[str, str], ...]) -> str:
    rows = [table_row((_table_cell(name), _table_cell(value))) for name, value in pairs]
    return "\n".join([table_row(("", "")), table_row((":--", ":--")), *rows])


_MOST_BARS = 16


def markdown(story: Story) -> str:
    """The whole page; ends with a line feed."""
    parts = [f"# {sentence(story.title)}", f"**{sentence(story.verdict)}**"]
    parts.append(sentence(story.subtitle))
    for section in story.sections:
        words, title = section_text(section), sentence(section.title)
        if words and section.weight is Weight.DETAIL:
            parts += [f"<details>\n<summary>{title}</summary>", *words, "</details>"]
        elif words:
            parts += [f"## {title}" if section.title else "", *words]
    return joined(*parts, by="\n\n") + "\n"


def section_text(section: Section) -> list[str]:
    """One text per block; charts only if no table in the section has their numbers."""
    has_table = any(isinstance(one, Table) for one in section.blocks)
    cards = [one for one in section.blocks if isinstance(one, Card)]
    words: list[str] = []
    for one in section.blocks:
        if isinstance(one, Card):
            words += [_cards(cards)] if one is cards[0] else []
        elif isinstance(one, Table):
            words.append(table_text(one))
        elif isinstance(one, Chart):
            words += [] if has_table else [_bars(one)]
        else:
            words.append(text_block(one))
    return [part for part in words if part]


def table_text(table: Table) -> str:
    """A table with its title; rows beyond `shown` are only counted."""
    heads = [_table_cell(column.heading) for column in table.columns]
    rows = [list(map(_table_cell, line)) for line in table_cells(table, table.shown)]
    left = len(table.rows) - len(rows)
    parts = [f"**{sentence(table.title)}**"] if table.title else []
    parts.append(_grid(heads, [column.number for column in table.columns], rows))
    parts += [f"*… and {plural(left, 'row')} more*"] if left > 0 else []
    return "\n\n".join(parts)


def _grid(heads: Iterable[str], numbers: Iterable[bool], rows: Iterable[list[str]]) -> str:
    """The lines of a table whose cells are already escaped."""
    rule = table_row("--:" if number else "---" for number in numbers)
    return "\n".join([table_row(heads), rule, *(table_row(cells) for cells in rows)])


def _cards(cards: list[Card]) -> str:
    """Findings as a table: cause, advice, gain."""
    heads = ["", "finding", "saves", "kind", "predicted", "measured", "what to do"]
    rows = []
    for number, card in enumerate(cards, start=1):
        told = joined(f"**{_table_cell(card.title)}**", _table_cell(card.why), by="<br>")
        way = joined(_table_cell(card.advice), code_span(card.command), by="<br>")
        cells = (card.gain, card.kind, card.predicted, card.measured)
        rows.append([str(number), told, *map(_table_cell, cells), way])
    kept = [at for at in range(len(heads)) if at < 3 or any(cells[at] for cells in rows)]
    chosen = [[cells[at] for at in kept] for cells in rows]
    return _grid([heads[at] for at in kept], [at in (0, 2) for at in kept], chosen)


def _bars(chart: Chart) -> str:
    """A chart with few bars as a table; others need a format with pictures."""
    labels = list(dict.fromkeys(str(x) for series in chart.series for x in series.x))
    if chart.kind not in ("bars", "stacked") or len(labels) > _MOST_BARS:
        return ""
    unit = f" ({chart.y.title})" if chart.y.title else ""
    column = Column("", number=True)
    heads = ["", ""]
    if len(labels) == 1 and len(chart.series) > 1:
        values = [(series.name, series.y[:1]) for series in chart.series]
    else:
        heads = ["", *(_table_cell(series.name) for series in chart.series)]
        known = [{str(x): y for x, y in zip(s.x, s.y, strict=True)} for s in chart.series]
        values = [(label, [one.get(label, nan) for one in known]) for label in labels]
    rows = [[_table_cell(name), *(format_cell(y, column) for y in ys)] for name, ys in values]
    numbers = [at > 0 for at in range(len(heads))]
    return f"**{sentence(chart.title)}{sentence(unit)}**\n\n{_grid(heads, numbers, rows)}"
