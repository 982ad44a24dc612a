"""A story on a terminal: the title, each section's blocks, the commands worth running next."""

import math
import shlex
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import IO

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from stepscope.record.units import format_number, plural
from stepscope.report.render.terminal.console import console_for, fold, is_ascii, to_ascii
from stepscope.report.story import blocks as story
from stepscope.report.story.blocks import Card, Cell, Column, Command, Role, Section, Story, Tone
from stepscope.report.text import format_cell, safe

_TONES = {
    Tone.PLAIN: "",
    Tone.GOOD: "green",
    Tone.WARN: "yellow",
    Tone.BAD: "bold red",
    Tone.QUIET: "dim",
}
_ROLES = {
    Role.DATA: "red",
    Role.COPY: "yellow",
    Role.FORWARD: "green",
    Role.BACKWARD: "cyan",
    Role.OPTIMIZER: "blue",
    Role.COMPUTE: "green",
    Role.COMMUNICATION: "magenta",
    Role.IDLE: "red",
    Role.OTHER: "white",
}
_POSITIONS = ("cyan", "yellow", "green", "magenta", "blue", "red", "white")
_KINDS = {"exact": "green", "numeric": "yellow", "semantic": "magenta"}
_MARGIN = "  "
_CARD = "    "
_GAP = 2  # between the columns of a table
_GAIN = 9  # least columns for a card's gain
_KIND = 10  # and its kind
_TOP_CARDS = 5
_CARD_LINES = 2  # lines of a sentence on the default screen; more if few cards leave room
_MOST_BARS = 16
_BAR = 24  # columns of a bar inside a table
_SHRINKS_TO = 12  # least width of a text column that must shrink


def print_story(told: Story, stream: IO[str], detail: bool = False) -> None:
    """Print a story's default screen; with `detail`, everything."""
    _Screen(stream, detail).print(told if detail else told.short())


class _Screen:
    """One story on one stream. All texts of a story are cleaned here and nowhere else."""

    def __init__(self, stream: IO[str], detail: bool) -> None:
        self._console: Console = console_for(stream)
        self._width = self._console.width
        self._ascii = is_ascii(self._console)
        self._detail = detail
        self._more = ""

    def print(self, told: Story) -> None:
        self._more = told.more
        if told.title or told.subtitle:
            self._line(Text())
            self._title(told)
        if told.verdict:
            self._line(Text())
            self._text(told.verdict, "bold", _MARGIN)
        for number, section in enumerate(told.sections):
            self._section(section, first=number == 0)
        for label, commands in groupby(told.next, key=lambda one: one.label):
            self._line(Text())
            self._commands(label, list(commands))

    def _line(self, line: Text) -> None:
        if self._ascii:
            line.plain = to_ascii(line.plain)
        elif not line.plain.isascii():  # half a character, from damaged text, cannot be printed
            line.plain = line.plain.encode("utf-8", "replace").decode()
        line.rstrip()
        self._console.print(line)

    def _text(self, text: str, style: str = "", indent: str = _MARGIN, most: int = 0) -> None:
        """A wrapped paragraph, of at most `most` lines unless that is 0."""
        lines = Text(safe(text), style).wrap(self._console, self._width - len(indent))
        if most and len(lines) > most:
            last = lines[most - 1]
            last.rstrip()
            while last.cell_len > self._width - len(indent) - 2 and " " in last.plain:
                last.right_crop(len(last.plain) - last.plain.rindex(" "))
            last.append(" …")
        for line in lines[: most or None]:
            line.rstrip()
            self._line(Text.assemble(indent, line))

    def _title(self, told: Story) -> None:
        parts = told.subtitle.split(" · ") if told.subtitle else []
        if told.title and (not parts or parts[0] != told.title):
            parts = [told.title, *parts]
        room, start = self._width - 11, "stepscope  "
        short = (
            part if cell_len(part) <= room else f"…{part[1 - room :]}" for part in map(safe, parts)
        )
        for row in _packed(short, " · ", room):
            self._line(Text.assemble((start, "bold"), row))
            start = " " * 11

    def _section(self, section: Section, first: bool) -> None:
        blocks = [one for one in section.blocks if _is_drawn(one)]
        if not blocks:
            return
        bare = first and not self._detail and isinstance(blocks[0], story.Facts)
        if section.title and not bare:
            self._line(Text())
            self._text(section.title, "bold", "")
        cards = [one for one in blocks if isinstance(one, Card)]
        before: story.Block | None = None
        for one in blocks:
            if isinstance(one, Card):
                if one is cards[0]:
                    self._cards(cards)
            else:
                if not (isinstance(one, story.Paragraph) and isinstance(before, story.Paragraph)):
                    self._line(Text())
                self._block(one)
            before = one

    def _block(self, one: story.Block) -> None:
        match one:
            case story.Paragraph():
                bold = "bold " if one.strong else ""
                self._text(one.text, f"{bold}{_TONES[one.tone]}".strip())
            case story.Missing():
                self._text(one.what, "yellow")
                if one.how:
                    self._text(one.how, "dim", _MARGIN * 2)
                if one.command:
                    self._command(one.command, _MARGIN * 2, "dim")
            case story.Code(language="sh"):
                self._command(one.text, _MARGIN, "cyan")
            case story.Code():
                for line in one.text.splitlines():
                    row = Text(_MARGIN + safe(line.expandtabs(4)), "cyan")
                    for part in fold(self._console, row, self._width):
                        self._line(part)
            case story.Facts():
                self._facts(one)
            case story.Table():
                self._table(one)
            case story.Chart():
                self._chart(one)
            case story.TimelineView():
                where = f", in {one.trace}" if one.trace else ""
                self._text(f"{plural(one.events, 'event')}{where}: the HTML report draws them.")

    def _facts(self, facts: story.Facts) -> None:
        if facts.brief and not self._detail:
            for text in _packed(map(safe, facts.brief), "   ", self._width - len(_MARGIN)):
                self._line(Text(_MARGIN + text, "bold"))
            return
        pairs = [(safe(name), safe(value)) for name, value in facts.pairs]
        widest = max((cell_len(name) for name, _ in pairs), default=0)
        for name, value in pairs:
            if widest > self._width // 2:
                self._text(name, "dim")
                self._text(value, "", _MARGIN * 2)
                continue
            row = Text.assemble(_MARGIN, (f"{name:<{widest}}", "dim"), "  ", value)
            for line in fold(self._console, row, self._width, hanging=widest + 2):
                self._line(line)

    def _table(self, table: story.Table) -> None:
        if table.title:
            self._text(table.title, "bold")
        rows = [
            [_cell(value, column) for value, column in zip(row, table.columns, strict=True)]
            for row in table.rows[: table.shown]
        ]
        heads = [safe(column.heading) for column in table.columns]
        kept = self._kept_columns(table.columns, heads, rows)
        grid = Grid(box=None, show_edge=False, pad_edge=False, padding=(0, _GAP, 0, 0))
        widths = {at: _widest(heads, rows, at) for at in kept}
        self._shrink(widths, table.columns)
        for at in kept:
            column = table.columns[at]
            grid.add_column(
                Text(heads[at], "bold"),
                justify="right" if column.number else "left",
                no_wrap=column.clip,
                overflow="ellipsis" if column.clip else "fold",
                width=widths[at],
            )
        tones = table.tones or (Tone.PLAIN,) * len(rows)
        for row, tone in zip(rows, tones, strict=False):
            grid.add_row(*(Text(row[at]) for at in kept), style=_TONES[tone] or None)
        # rich does the layout; every line still goes through `_line`.
        options = self._console.options.update(width=self._width - len(_MARGIN), no_wrap=False)
        for segments in self._console.render_lines(grid, options, pad=False):
            self._line(Text.assemble(_MARGIN, *((one.text, one.style or "") for one in segments)))
        left = len(table.rows) - len(rows)
        if left > 0:
            self._text(f"… {plural(left, 'row')} more", "dim")

    def _kept_columns(
        self, columns: Sequence[Column], heads: Sequence[str], rows: Sequence[Sequence[str]]
    ) -> list[int]:
        """The columns that fit: the least important are dropped first, from the right."""
        kept = list(range(len(columns)))

        def least(at: int) -> int:
            widest = _widest(heads, rows, at)
            return widest if columns[at].number else min(widest, _SHRINKS_TO)

        while len(kept) > 1 and sum(map(least, kept)) + _GAP * len(kept) > self._width:
            kept.remove(max(kept[1:], key=lambda at: (columns[at].priority, at)))
        return kept

    def _shrink(self, widths: dict[int, int], columns: Sequence[Column]) -> None:
        """Shrink the widest text columns, the first column last."""
        room = self._width - len(_MARGIN) - _GAP * (len(widths) - 1)
        first, *later = widths
        texts = [at for at in later if not columns[at].number]
        while sum(widths.values()) > room:
            widest = max(texts, key=widths.__getitem__, default=first)
            if widths[widest] <= _SHRINKS_TO < widths[first]:
                widest = first
            if widths[widest] <= 1:
                break
            widths[widest] -= 1

    def _chart(self, chart: story.Chart) -> None:
        rows = chart_bars(chart)
        unit = f" ({chart.y.title})" if chart.y.title else ""
        if self._detail and chart.title:
            self._text(f"{chart.title}{unit}", "bold")
        stacked = chart.kind == "stacked"
        whole = sum(row[1] for row in rows) if stacked else max(row[1] for row in rows)
        widest = min(max(cell_len(row[0]) for row in rows), self._width // 3)
        numbers = [format_number(value) for _, value, _ in rows]
        digits = max(map(len, numbers))
        room = max(8, self._width - len(_MARGIN) - widest - digits - (10 if stacked else 4))
        for (label, value, colour), number in zip(rows, numbers, strict=True):
            share = value / whole if whole else 0.0
            name = label if cell_len(label) <= widest else f"{label[: widest - 1]}…"
            bar = (_bar(share, room).ljust(room), colour)
            head, end = f"{_MARGIN}{name:<{widest}} {number:>{digits}} ▕", "▏"
            end += f" {share:>4.0%}" if stacked else ""
            self._line(Text.assemble(head, bar, end))

    def _cards(self, cards: Sequence[Card]) -> None:
        shown = cards if self._detail else cards[:_TOP_CARDS]
        gain = max(_GAIN, *(cell_len(safe(card.gain)) for card in shown))
        room = self._width - len(_CARD) - gain - _KIND
        room = min(max(cell_len(safe(card.title)) for card in shown) + 2, room)
        most = 0 if self._detail else max(_CARD_LINES, _TOP_CARDS - len(shown) + 1)
        self._line(Text())
        for number, card in enumerate(shown, start=1):
            if self._detail and number > 1:
                self._line(Text())
            self._card(number, card, room, gain, most)
        left = len(cards) - len(shown)
        if self._more and not self._detail:
            rest = plural(left, "more finding") if left else "details"
            self._text(f"{rest}: {self._more}", "dim", _CARD)

    def _card(self, number: int, card: Card, room: int, gain: int, most: int) -> None:
        title = safe(card.title)
        title = title if cell_len(title) <= room else f"{title[: room - 1]}…"
        kind = "" if card.kind == "none" else safe(card.kind)
        name, worth = (f"{title:<{room}}", "bold"), f"{safe(card.gain):>{gain}}  "
        self._line(Text.assemble(f"{number:>2}  ", name, worth, (kind, _KINDS.get(kind, ""))))
        self._text(f"{card.where}  {card.why}" if card.where else card.why, "", _CARD, most)
        # The changed line if it is short and replaces one; else the advice.
        changed = "; ".join(line.strip() for line in card.edit)
        short = card.before and 0 < cell_len(changed) <= self._width - len(_CARD) - 5
        remedy = changed if short and not self._detail else card.advice
        self._text(f"fix: {remedy}", "cyan", _CARD, most)
        if self._detail:
            self._details(card)

    def _details(self, card: Card) -> None:
        evidence = " · ".join(" ".join(pair) for pair in card.evidence)
        for text, style in (
            (f"measured {card.measured}" if card.measured else "", "green"),
            (f"predicted {card.predicted}" if card.predicted else "", "dim"),
            (f"- {card.before.strip()}" if card.before else "", "red"),
            *((f"+ {line.strip()}", "green") for line in card.edit),
        ):
            if text:
                self._text(text, style, _CARD)
        if card.command:
            self._command(card.command, _CARD, "dim")
        if evidence:
            self._text(evidence, "dim", _CARD)
        self._text(", ".join(card.facts()), "dim", _CARD)

    def _commands(self, label: str, commands: Sequence[Command]) -> None:
        """`Next: command purpose`, with purposes aligned in one column if they fit."""
        indent = f"{label}:  "
        room = self._width - len(indent)
        widest = max((len(one.purpose) for one in commands), default=0) + 4
        at = max((len(one.text) for one in commands if len(one.text) + widest <= room), default=0)
        for one in commands:
            if one.purpose and len(one.text) + len(one.purpose) + 4 <= room:
                text = f"{safe(one.text):<{at}}    "
                self._line(Text.assemble(indent, text, (safe(one.purpose), "dim")))
            else:
                self._command(one.text, indent)
            indent = " " * len(indent)

    def _command(self, text: str, indent: str, style: str = "") -> None:
        """A command that can be pasted into a shell, over several lines if necessary."""
        for line in folded_command(safe(text), self._width - len(indent)):
            self._line(Text.assemble(indent, (line, style)))
            indent = " " * len(indent)


def _is_drawn(block: story.Block) -> bool:
    """Whether a terminal can show it: among charts, only those with few bars."""
    if isinstance(block, story.Chart):
        return bool(chart_bars(block))
    if isinstance(block, story.Facts):
        return bool(block.pairs)
    return not isinstance(block, story.Table) or bool(block.rows)


def _packed(parts: Iterable[str], between: str, room: int) -> Iterator[str]:
    """As many parts per row as fit."""
    row = ""
    for part in parts:
        if row and cell_len(row) + cell_len(part) + len(between) > room:
            yield row
            row = part
        else:
            row = f"{row}{between}{part}" if row else part
    yield row


def _cell(value: Cell, column: Column) -> str:
    if column.bar:
        return _bar(float(value), _BAR) if value else ""
    return safe(format_cell(value, column))


def _bar(share: float, room: int) -> str:
    """A bar filling this share of the space, to an eighth of a column."""
    filled = round(min(max(share, 0.0), 1.0) * room * 8)
    return "█" * (filled // 8) + ("▏▎▍▌▋▊▉"[filled % 8 - 1] if filled % 8 else "")


def _widest(heads: Sequence[str], rows: Iterable[Sequence[str]], at: int) -> int:
    return max(cell_len(heads[at]), *(cell_len(row[at]) for row in rows), 0)


def chart_bars(chart: story.Chart) -> list[tuple[str, float, str]]:
    """A chart as label, value and colour of each bar; empty unless it has few bars.

    Of stacked bars, the first is split into its parts; several series are not drawn.
    """
    parts: list[tuple[str, float, str]] = []
    for at, series in enumerate(chart.series):
        role = series.role
        colour = _ROLES[role] if role is not None else _POSITIONS[at % len(_POSITIONS)]
        if chart.kind == "stacked" and chart.across and len(series.y) and series.y[0]:
            parts.append((safe(series.name), float(series.y[0]), colour))
        elif chart.kind == "bars" and len(chart.series) == 1:
            pairs = zip(series.x, series.y, strict=True)
            parts += [(safe(str(x)), float(y), colour) for x, y in pairs]
    parts = [part for part in parts if math.isfinite(part[1])]
    return parts if len(parts) <= _MOST_BARS else []


def folded_command(text: str, width: int) -> Iterator[str]:
    """Lines ending in a backslash, broken between words; an option stays with its value."""
    if cell_len(text) <= width:
        yield text
        return
    row = ""
    for whole in _words(text):
        word = whole if cell_len(whole) <= width - 6 else "…"
        if row and cell_len(row) + cell_len(word) + 3 > width:
            yield f"{row} \\"
            row = f"    {word}"
        else:
            row = f"{row} {word}" if row else word
    yield row


def _words(text: str) -> list[str]:
    """Shell words as written, `--fix name` as one."""
    try:
        parts = [shlex.quote(part) for part in shlex.split(text)]
    except ValueError:
        parts = text.split()
    if " ".join(parts) != text:
        parts = text.split(" ")
    found: list[str] = []
    for part in parts:
        if found and found[-1].startswith("-") and " " not in found[-1] and part[:1] != "-":
            found[-1] += f" {part}"
        else:
            found.append(part)
    return found
