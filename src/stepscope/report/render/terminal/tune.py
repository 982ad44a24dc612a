"""A tune and a comparison on a terminal."""

from typing import IO, Any, Final

from rich.text import Text

from stepscope.report.render.terminal.console import console_for, print_lines, title_lines
from stepscope.report.story import compare as words
from stepscope.report.story.tune.words import (
    RESOURCE_COLUMNS,
    SPEED_COLUMNS,
    LadderColumn,
    claim,
    coverage_sentences,
    known_columns,
    next_step_lines,
    not_tried_lines,
    rejected_lines,
    row_cells,
    stop_reason,
)
from stepscope.report.text import format_duration, format_number, keep_end, plural, safe

Document = dict[str, Any]
_NARROW, _WIDE = 80, 120
_NAME = 20
_PROOF_COLOURS = {"identical": "green", "matches": "green", "unclear": "yellow", "differs": "red"}


def print_tune(document: Document, stream: IO[str]) -> None:
    """The screen `tune` ends with."""
    console = console_for(stream)
    most = min(console.width, _WIDE) if stream.isatty() else _NARROW
    width = max(_NARROW, most)
    lines = [*_title(document, min(width, _NARROW)), Text(), *_ladder(document, width)]
    lines += [Text(), *_claim(document)]
    lines += [Text(f"    {text}") for text in coverage_sentences(document)]
    lines += [Text(f"    {text}", "dim") for text in not_tried_lines(document["rejected"])]
    lines += [Text(f"note: {safe(note)}", "yellow") for note in document["notes"]]
    if text := stop_reason(document):
        lines.append(Text(f"note: {text}", "yellow"))
    lines += [Text(), *(Text(text) for text in next_step_lines(document))]
    print_lines(console, [Text(), *lines], min(most, width))


def _title(document: Document, width: int) -> list[Text]:
    run = document["run"]
    parts = [
        "tune",
        safe(" ".join([run["program"], *run["argv"]])),
        safe(run["device_name"]),
        f"torch {safe(str(run['torch'])).partition('+')[0]}",
        safe(run["id"]),
    ]
    return title_lines(parts, width)


def _ladder(document: Document, width: int) -> list[Text]:
    """One table where the terminal is wide; on others, speed first and what it takes below."""
    rows = [document["baseline"] | {"fix": None}, *document["ladder"]]
    crossed = [Text(f"  × {text}") for text in rejected_lines(document["rejected"])]
    resources = known_columns(RESOURCE_COLUMNS, rows)
    if width >= _WIDE or not resources:
        return [*_table([*SPEED_COLUMNS[:-1], *resources, SPEED_COLUMNS[-1]], rows), *crossed]
    return [*_table(list(SPEED_COLUMNS), rows), *crossed, Text(), *_table(resources, rows)]


def _table(columns: list[LadderColumn], rows: list[Document]) -> list[Text]:
    heads = [f"{one.heading:>{one.width}}" if one.width else f"  {one.heading}" for one in columns]
    lines = [Text(f"  {'rung':<{_NAME}}" + "".join(heads), "dim")]
    for row in rows:
        first, *others = row["label"].split(" + ") if row["fix"] else ("as it is",)
        name = f"+ {safe(first)}" if row["fix"] else first
        line = Text(f"  {name[:_NAME]:<{_NAME}}")
        for column, cell in row_cells(columns, row):
            shown = f"{cell:>{column.width}}" if column.width else f"  {cell}"
            line.append(shown, _PROOF_COLOURS.get(cell, "") if not column.width else "")
        lines.append(line)
        lines += [Text(f"    and {safe(other)}") for other in others]
    return lines


def _claim(document: Document) -> list[Text]:
    text, style = claim(document)
    trials = f"{plural(document['trials'], 'trial')}, {format_duration(document['seconds'])}."
    return [Text.assemble((text, style), f"  {trials}")]


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
