"""A report's tables as CSV, with every digit and nothing a spreadsheet would evaluate."""

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from stepscope.bench.results import BenchResult, LoaderPoint, PointSummary, Speedup
from stepscope.report.story.blocks import Cell, Column, Story, Table
from stepscope.report.story.phrases import fix_argument
from stepscope.report.text import exact_cell, safe, slug
from stepscope.results.load import LoadedResult


def _steps_table(subject: LoadedResult) -> Table | None:
    """One row per step of a run; None if no steps were seen."""
    tables = subject.tables
    if tables is None or tables.steps is None:
        return None
    steps = tables.steps
    times = {"time": steps.done() / 1e6} | {name: ns / 1e6 for name, ns in steps.host.items()}

    def value_in(values: Any) -> Callable[[int], float]:
        return lambda at: float(values[at])

    return Table.of(
        "steps",
        "Steps",
        range(len(steps)),
        (Column.numeric("step"), lambda at: at + 1),
        *((Column.numeric(name, "ms"), value_in(values)) for name, values in times.items()),
        (Column.numeric("samples"), value_in(steps.samples)),
        (Column.numeric("loss"), value_in(steps.loss)),
        (Column("recorded"), lambda at: bool(steps.in_window[at])),
        (Column("clocked"), lambda at: bool(steps.clocked[at])),
        (Column("warm-up"), lambda at: at < tables.warmup),
    )


def _findings_table(subject: LoadedResult) -> Table | None:
    """One row per finding; None if nothing was diagnosed."""
    found = subject.document.get("findings")
    if found is None:
        return None
    columns = (
        *map(Column, ("id", "title", "kind")),
        Column.numeric("share"),
        Column.numeric("predicted step", "ms"),
        *(Column.numeric(f"predicted{end}", "×") for end in ("", " low", " high")),
        *map(Column, ("fix", "confidence", "effort", "why", "advice")),
    )
    rows = []
    for one in found:
        told, fix = one["predicted"] or {}, one["fix"]
        name = None if fix is None else fix_argument(fix)
        first = (one[key] for key in ("id", "title", "kind", "share"))
        gains = (told.get(key) for key in ("step_ms", "speedup", "low", "high"))
        last = (one[key] for key in ("confidence", "effort", "why", "advice"))
        rows.append((*first, *gains, name, *last))
    return Table("findings", columns, tuple(rows), "Findings")


def _ladder_table(subject: LoadedResult) -> Table | None:
    """One row per rung of a tune, baseline first; None for other kinds."""
    if subject.kind != "tune":
        return None
    whats, ends = ("speedup", "so far", "predicted"), ("", " low", " high")
    columns = (
        *map(Column, ("rung", "fix", "value", "kind")),
        *(Column.numeric(name, unit) for name, unit in _MEASURED.values()),
        *(Column.numeric(f"{what}{end}", "×") for what in whats for end in ends),
        *map(Column, ("verdict", "losses")),
    )
    measured = [subject.document["baseline"].get(key) for key in _MEASURED]
    times: list[Cell] = [1.0, None, None, 1.0, None, None, None, None, None]
    rows: list[tuple[Cell, ...]] = [
        ("baseline", None, None, None, *measured, *times, None, "baseline")
    ]
    for one in subject.document["ladder"]:
        name = (one["label"], one["fix"], one["params"].get("value"), one["kind"])
        measured = [one.get(key) for key in _MEASURED]
        sides = (one, one["cumulative"], one["predicted"] or {})
        times = [side.get(key) for side in sides for key in ("speedup", "low", "high")]
        losses = (one["proof"] or {}).get("state") or "not proven"
        rows.append((*name, *measured, *times, one["verdict"], losses))
    return Table("ladder", columns, tuple(rows), "Ladder")


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


_FORMULA = ("=", "+", "-", "@", "\t", "\r", "＝", "＋", "－", "＠")
"""A spreadsheet treats text that begins like this as a formula."""


def main_table(subjects: Sequence[LoadedResult], found: dict[str, Table]) -> str:
    """The table for a single CSV file: the usual one, else the first."""
    usual = {"run": "steps", "trace": "kernels", "tune": "ladder", "bench": "points-1"}
    usual["batch"] = "batch-sizes"
    main = usual[subjects[0].kind] if len(subjects) == 1 else "versions"
    return main if main in found else next(iter(found))


def csv_text(table: Table) -> str:
    """All rows of a table with every digit; unknown values are empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([formula_safe(column.data_heading) for column in table.columns])
    for row in table.rows:
        cells = (formula_safe(one) if isinstance(one, str) else exact_cell(one) for one in row)
        writer.writerow(cells)
    return out.getvalue()


def formula_safe(value: str) -> str:
    """Text that no spreadsheet takes for a formula: prefixed with an apostrophe if necessary."""
    plain = value.encode("utf-8", "replace").decode("utf-8")
    guard = plain.lstrip(" ").startswith(_FORMULA)
    lines = "\n".join(safe(line) for line in plain.splitlines())
    return f"'{lines}" if guard else lines


def file_name(table: Table) -> str:
    """`kernels.csv`."""
    return f"{slug(table.id, 'table')}.csv"


def report_tables(subjects: Sequence[LoadedResult], story: Story) -> dict[str, Table]:
    """By id: the story's tables, and the steps and findings behind it. Shares stay 0 to 1."""
    found = {}
    for number, subject in enumerate(subjects, start=1):
        start = f"{number}-" if len(subjects) > 1 else ""
        for table in (_steps_table(subject), _findings_table(subject), _ladder_table(subject)):
            if table is not None:
                found[f"{start}{table.id}"] = replace(table, id=f"{start}{table.id}")
    return {block.id: block for block in story.blocks if isinstance(block, Table)} | found


_LAST = ("not_applied", "notes", "key")
_LEFT_OUT = frozenset({"settings", "parameters", "speedup", *_LAST})
_SPEEDUP = Speedup.__struct_fields__


def bench_csv(bench: BenchResult) -> str:
    """A benchmark as one line per point. Missing values are empty; fixes are joined by spaces."""
    kind = LoaderPoint if bench.loader else PointSummary
    names = [name for name in kind.__struct_fields__ if name not in _LEFT_OUT]
    columns = (*names, *(f"speedup_{name}" for name in _SPEEDUP), *_LAST)
    rows = tuple(_row(point, names) for point in bench.points)
    return csv_text(Table("points", tuple(map(Column, columns)), rows))


def _row(point: PointSummary, names: list[str]) -> tuple[Cell, ...]:
    cells: list[Cell] = [
        " ".join(point.fixes) if name == "fixes" else getattr(point, name) for name in names
    ]
    gain = point.speedup
    cells += [None if gain is None else getattr(gain, name) for name in _SPEEDUP]
    refused = "; ".join(f"{one.name}: {one.why}" for one in point.not_applied)
    return (*cells, refused, "; ".join(point.notes), point.key)
