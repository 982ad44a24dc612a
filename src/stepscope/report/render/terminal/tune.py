"""A tune on a terminal."""

from typing import IO, Any

from rich.text import Text

from stepscope.report.render.terminal.console import console_for, print_lines, title_lines
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
from stepscope.report.text import format_duration, plural, safe

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
