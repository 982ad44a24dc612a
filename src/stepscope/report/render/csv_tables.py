"""A report's tables as CSV, with every digit, and nothing a spreadsheet would compute."""

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from stepscope.report.story.blocks import Cell, Column, Story, Table
from stepscope.report.text import exact_cell, safe
from stepscope.results.load import LoadedResult


def _steps_table(subject: LoadedResult) -> Table | None:
    """One row a step of a run; None where no steps were seen."""
    tables = subject.tables
    if tables is None or tables.steps is None:
        return None
    steps = tables.steps
    names = list(steps.host)
    columns = (
        Column("step", number=True), Column("time", "ms", number=True),
        *(Column(name, "ms", number=True) for name in names),
        Column("samples", number=True), Column("loss", number=True), Column("recorded"),
        Column("warm-up"),
    )  # fmt: skip
    times = [steps.done() / 1e6, *(steps.host[name] / 1e6 for name in names)]
    rows = tuple(
        (
            at + 1, *(float(one[at]) for one in times), float(steps.samples[at]),
            float(steps.loss[at]), bool(steps.in_window[at]), at < tables.warmup,
        )
        for at in range(len(steps))
    )  # fmt: skip
    return Table("steps", columns, rows, "Steps")


def _findings_table(subject: LoadedResult) -> Table | None:
    """One row a finding; None where nothing was diagnosed."""
    found = subject.document.get("findings")
    if found is None:
        return None
    columns = (
        Column("id"), Column("title"), Column("kind"), Column("share", number=True),
        Column("predicted step", "ms", number=True), Column("predicted", "×", number=True),
        Column("predicted low", "×", number=True), Column("predicted high", "×", number=True),
        Column("fix"), Column("confidence"), Column("effort"), Column("why"), Column("advice"),
    )  # fmt: skip
    rows = []
    for one in found:
        told, fix = one["predicted"] or {}, one["fix"]
        name = None if fix is None else "=".join(str(p) for p in fix.values() if p is not None)
        rows.append(
            (
                one["id"], one["title"], one["kind"], one["share"], told.get("step_ms"),
                told.get("speedup"), told.get("low"), told.get("high"), name,
                one["confidence"], one["effort"], one["why"], one["advice"],
            )
        )  # fmt: skip
    return Table("findings", columns, tuple(rows), "Findings")


def _ladder_table(subject: LoadedResult) -> Table | None:
    """One row a rung of a tune, the baseline first; None of other kinds."""
    if subject.kind != "tune":
        return None
    columns = (
        Column("rung"), Column("fix"), Column("value"), Column("kind"),
        *(Column(name, unit, number=True) for name, unit in _MEASURED.values()),
        *(Column(name, "×", number=True) for name in _TIMES), Column("verdict"), Column("losses"),
    )  # fmt: skip
    base = subject.document["baseline"]
    first = ("baseline", None, None, None, *(base.get(key) for key in _MEASURED))
    empty = (1.0, None, None, 1.0, None, None, None, None, None, None, "baseline")
    rungs = tuple(_rung(one) for one in subject.document["ladder"])
    return Table("ladder", columns, ((*first, *empty), *rungs), "Ladder")


_MEASURED = {
    "step_ms": ("step", "ms"),
    "low_ms": ("step low", "ms"),
    "high_ms": ("step high", "ms"),
    "samples_per_s": ("samples/s", ""),
    "gpu_busy": ("GPU busy", ""),
    "peak_memory_bytes": ("peak memory", "bytes"),
    "energy_j_per_sample": ("energy", "J/sample"),
    "cost_per_million": ("cost", "per million samples"),
    "processes": ("processes", ""),
}
_TIMES = (
    "speedup", "speedup low", "speedup high", "so far", "so far low", "so far high",
    "predicted", "predicted low", "predicted high",
)  # fmt: skip


def _rung(one: dict[str, Any]) -> tuple[Cell, ...]:
    sides = (one, one["cumulative"], one["predicted"] or {})
    times = (side.get(key) for side in sides for key in ("speedup", "low", "high"))
    proof = one["proof"] or {}
    return (
        one["label"], one["fix"], one["params"].get("value"), one["kind"],
        *(one.get(key) for key in _MEASURED), *times, one["verdict"],
        proof.get("state") or "not proven",
    )  # fmt: skip


_FORMULA = ("=", "+", "-", "@", "\t", "\r", "＝", "＋", "－", "＠")
"""A spreadsheet takes text that begins so for a formula."""
_NOT_IN_FILES = re.compile(r"[^A-Za-z0-9_.-]+")
_MAIN = {
    "run": "steps",
    "trace": "kernels",
    "tune": "ladder",
    "bench": "points-1",
    "batch": "batch-sizes",
}


def main_table(subjects: Sequence[LoadedResult], found: dict[str, Table]) -> str:
    """The table that a single CSV file holds; the first where the usual one is not there."""
    main = _MAIN[subjects[0].kind] if len(subjects) == 1 else "versions"
    return main if main in found else next(iter(found))


def csv_text(table: Table) -> str:
    """All rows of a table, with every digit; what is not known is empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([formula_safe(column.data_heading) for column in table.columns])
    writer.writerows([_cell(value) for value in line] for line in table.rows)
    return out.getvalue()


def _cell(value: Cell) -> str:
    return formula_safe(value) if isinstance(value, str) else exact_cell(value)


def formula_safe(value: str) -> str:
    """Text that no spreadsheet takes for a formula: an apostrophe is put before it."""
    plain = value.encode("utf-8", "replace").decode("utf-8")
    guard = plain.lstrip(" ").startswith(_FORMULA)
    lines = "\n".join(safe(line) for line in plain.splitlines())
    return f"'{lines}" if guard else lines


def file_name(table: Table) -> str:
    """`kernels.csv`."""
    return f"{_NOT_IN_FILES.sub('-', table.id).strip('-.') or 'table'}.csv"


def report_tables(subjects: Sequence[LoadedResult], story: Story) -> dict[str, Table]:
    """By id: those of the story, and the steps and findings behind it. Shares stay 0 to 1."""
    found = {}
    for number, subject in enumerate(subjects, start=1):
        start = f"{number}-" if len(subjects) > 1 else ""
        for table in (_steps_table(subject), _findings_table(subject), _ladder_table(subject)):
            if table is not None:
                found[f"{start}{table.id}"] = replace(table, id=f"{start}{table.id}")
    return {block.id: block for block in story.blocks if isinstance(block, Table)} | found
