"""A tune on a terminal: the ladder, what was rejected, the claim, and how to keep it."""

from typing import IO, Any

from rich.text import Text

from stepscope.report.bars import title
from stepscope.report.lines import console_for, show_lines
from stepscope.report.text import plural, safe, seconds
from stepscope.report.tune_cells import RESOURCES, SPEED, Column, cells, used
from stepscope.report.tune_words import claim, covered, keep, not_tried, rejected, stopped

Document = dict[str, Any]
_WIDEST, _WIDE = 80, 120
_NAME = 20
_COLOURS = {"identical": "green", "matches": "green", "unclear": "yellow", "differs": "red"}


def print_tune(document: Document, stream: IO[str]) -> None:
    """The screen `tune` ends with."""
    console = console_for(stream)
    most = min(console.width, _WIDE) if stream.isatty() else _WIDEST
    width = max(_WIDEST, most)
    lines = [*_title(document, min(width, _WIDEST)), Text(), *_ladder(document, width)]
    lines += [Text(), *_claim(document)]
    lines += [Text(f"    {text}") for text in covered(document)]
    lines += [Text(f"    {text}", "dim") for text in not_tried(document["rejected"])]
    lines += [Text(f"note: {safe(note)}", "yellow") for note in document["notes"]]
    if text := stopped(document):
        lines.append(Text(f"note: {text}", "yellow"))
    lines += [Text(), *(Text(text) for text in keep(document))]
    show_lines(console, [Text(), *lines], min(most, width))


def _title(document: Document, width: int) -> list[Text]:
    run = document["run"]
    parts = [
        "tune",
        safe(" ".join([run["program"], *run["argv"]])),
        safe(run["device_name"]),
        f"torch {safe(str(run['torch'])).partition('+')[0]}",
        safe(run["id"]),
    ]
    return title(parts, width)


def _ladder(document: Document, width: int) -> list[Text]:
    """One table where the terminal is wide; on others, speed first and what it takes below."""
    rows = [document["baseline"] | {"fix": None}, *document["ladder"]]
    crossed = [Text(f"  × {text}") for text in rejected(document["rejected"])]
    resources = used(RESOURCES, rows)
    if width >= _WIDE or not resources:
        return [*_table([*SPEED[:-1], *resources, SPEED[-1]], rows), *crossed]
    return [*_table(list(SPEED), rows), *crossed, Text(), *_table(resources, rows)]


def _table(columns: list[Column], rows: list[Document]) -> list[Text]:
    heads = [f"{one.heading:>{one.width}}" if one.width else f"  {one.heading}" for one in columns]
    lines = [Text(f"  {'rung':<{_NAME}}" + "".join(heads), "dim")]
    for row in rows:
        first, *others = row["label"].split(" + ") if row["fix"] else ("as it is",)
        name = f"+ {safe(first)}" if row["fix"] else first
        line = Text(f"  {name[:_NAME]:<{_NAME}}")
        for column, cell in cells(columns, row):
            shown = f"{cell:>{column.width}}" if column.width else f"  {cell}"
            line.append(shown, _COLOURS.get(cell, "") if not column.width else "")
        lines.append(line)
        lines += [Text(f"    and {safe(other)}") for other in others]
    return lines


def _claim(document: Document) -> list[Text]:
    text, style = claim(document)
    trials = f"{plural(document['trials'], 'trial')}, {seconds(document['seconds'])}."
    return [Text.assemble((text, style), f"  {trials}")]
