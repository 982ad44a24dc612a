"""The tables of a report as CSV: whole numbers of a spreadsheet, and nothing it would compute."""

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import replace

from stepscope.report.data_tables import findings_table, ladder_table, steps_table
from stepscope.report.html.numbers import sortable
from stepscope.report.story.blocks import Cell, Column, Story, Table
from stepscope.report.subject import Subject
from stepscope.report.text import safe

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "＝", "＋", "－", "＠")
"""A spreadsheet takes text that begins so for a formula."""
_NOT_IN_FILES = re.compile(r"[^A-Za-z0-9_.-]+")
MAIN = {"run": "steps", "trace": "kernels", "tune": "ladder", "bench": "points-1"}
"""The table of each kind that a single CSV file holds."""


def csv_text(table: Table) -> str:
    """All rows of a table, with every digit; what is not known is empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([guarded(heading(column)) for column in table.columns])
    writer.writerows([_cell(value) for value in line] for line in table.rows)
    return out.getvalue()


def heading(column: Column) -> str:
    """`time [ms]`."""
    return f"{column.name} [{column.unit}]" if column.unit else column.name


def _cell(value: Cell) -> str:
    return guarded(value) if isinstance(value, str) else sortable(value)


def guarded(value: str) -> str:
    """Text that no spreadsheet takes for a formula: an apostrophe is put before it."""
    plain = value.encode("utf-8", "replace").decode("utf-8")
    guard = plain.lstrip(" ").startswith(_FORMULA)
    lines = "\n".join(safe(line) for line in plain.splitlines())
    return f"'{lines}" if guard else lines


def file_name(table: Table) -> str:
    """`kernels.csv`."""
    return f"{_NOT_IN_FILES.sub('-', table.id).strip('-.') or 'table'}.csv"


def report_tables(subjects: Sequence[Subject], story: Story) -> dict[str, Table]:
    """By id: those of the story, and the steps and findings behind it. Shares stay 0 to 1."""
    found = {}
    for number, subject in enumerate(subjects, start=1):
        start = f"{number}-" if len(subjects) > 1 else ""
        for table in (steps_table(subject), findings_table(subject), ladder_table(subject)):
            if table is not None:
                found[f"{start}{table.id}"] = replace(table, id=f"{start}{table.id}")
    blocks = (block for section in story.sections for block in section.blocks)
    return {block.id: block for block in blocks if isinstance(block, Table)} | found
