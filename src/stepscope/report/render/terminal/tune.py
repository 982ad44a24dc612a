"""A tune and a comparison on a terminal."""

from typing import IO, Any, Final

from rich.text import Text

from stepscope.report.render.terminal.console import console_for, print_lines
from stepscope.report.render.terminal.story import print_story
from stepscope.report.story import compare as words
from stepscope.report.story.tune.story import tune_story
from stepscope.report.text import format_number, keep_end, safe
from stepscope.tune.document import Tune, read_tune

Document = dict[str, Any]


def print_tune(tune: Tune | Document, stream: IO[str]) -> None:
    """The screen `tune` ends with."""
    print_story(tune_story(read_tune(tune)), stream)


_VERDICT_COLOURS: Final = {"FASTER": "bold green", "SLOWER": "bold red", "UNCLEAR": "bold yellow"}
_WIDEST: Final = 80
_MOST_ITEMS: Final = 12
_MOST_DIFFERENCES: Final = 8
_AROUND: Final = 15  # columns between the cells of a point, and for its verdict


def print_comparison(document: Document, stream: IO[str]) -> None:
    """The screen of `stepscope compare`."""
    console = console_for(stream)
    width = min(console.width if stream.isatty() else _WIDEST, _WIDEST)
    several = len(document["items"]) > 1
    lines = [_verdict(document, width)]
    lines += _items(document, width) if several else _item(document)
    lines += [Text(f"  {safe(text)}") for text in document["why"]]
    lines += _joined(words.short_facts(document))
    lines += _differences(document)
    lines += [Text(f"  note: {safe(note)}", "dim") for note in document["notes"]]
    if advice := words.how_to_settle(document):
        lines.append(Text(f"  {advice}", "yellow"))
    print_lines(console, lines, width)


def _verdict(document: Document, width: int) -> Text:
    verdict = document["verdict"]
    line = Text.assemble(
        (verdict, _VERDICT_COLOURS.get(verdict, "bold")), "  ", words.headline(document)
    )
    right = words.exit_code_reason(document)
    gap = width - line.cell_len - len(right)
    red = "red" if document["exit_code"] else "dim"
    return line.append(" " * max(2, gap)).append(right, red)


def _item(document: Document) -> list[Text]:
    (item,) = document["items"]
    return [Text(f"  {words.speed_change(item)}")]


def _items(document: Document, width: int) -> list[Text]:
    """One line a point, slowest first."""
    items = sorted(document["items"], key=lambda item: -float(item["change"]))
    shown = items[:_MOST_ITEMS]
    cells = [
        (
            f"{format_number(item['base_ms'])} → {format_number(item['other_ms'])} ms",
            f"{words.change_percent(item)} ({words.interval_percent(item)})",
        )
        for item in shown
    ]
    wide = [max(len(cell[place]) for cell in cells) for place in (0, 1)]
    most = width - sum(wide) - _AROUND
    longest = min(most, max(len(safe(item["label"])) for item in shown))
    lines = []
    for item, (speeds, told) in zip(shown, cells, strict=True):
        label = keep_end(safe(item["label"]), longest)
        line = Text(f"  {label:<{longest}}  {speeds:>{wide[0]}}  {told:<{wide[1]}}  ")
        lines.append(line.append(item["verdict"], _VERDICT_COLOURS.get(item["verdict"], "")))
    rest = len(items) - len(shown)
    lines += [Text(f"  … and {rest} more in --json")] if rest else []
    alone = document["left_out"]
    named = ", ".join(safe(label) for label in alone[:3])
    lines += [Text(f"  only on one side: {named}{' …' if len(alone) > 3 else ''}")] if alone else []
    return lines


def _joined(parts: list[str]) -> list[Text]:
    return [Text(f"  {safe(' · '.join(parts))}")] if parts else []


def _differences(document: Document) -> list[Text]:
    told = words.setting_changes([*document["configuration"], *document["environment"]])
    if not told:
        return []
    rest = len(told) - _MOST_DIFFERENCES
    parts = [keep_end(one, 70) for one in told[:_MOST_DIFFERENCES]]
    parts += [f"{rest} more in --json"] if rest > 0 else []
    return [Text(f"  changed: {safe(' · '.join(parts))}")]
