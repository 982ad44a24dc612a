"""A benchmark as CSV: one line per point, with every digit."""

from stepscope.bench.results import BenchResult, LoaderPoint, PointSummary, Speedup
from stepscope.report.render.csv_tables import csv_text
from stepscope.report.story.blocks import Cell, Column, Table

_LAST = ("not_applied", "notes", "key")
_LEFT_OUT = frozenset({"settings", "parameters", "speedup", *_LAST})
_SPEEDUP = Speedup.__struct_fields__


def bench_csv(bench: BenchResult) -> str:
    """Missing values are empty; fixes are joined by spaces."""
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
