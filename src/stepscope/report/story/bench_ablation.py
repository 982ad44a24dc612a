"""An ablation: each fix alone, added to those before it, and left out of all."""

from math import nan
from typing import Any

from stepscope.report.bench_groups import ablation
from stepscope.report.story.blocks import Axis, Block, Cell, Chart, Column, Series, Table

Document = dict[str, Any]
_WAYS = (("alone", "alone"), ("added", "added to those above"), ("without", "all but this"))


def ablation_blocks(
    points: list[Document], fixes: list[str], batch: int, label: str
) -> list[Block]:
    """The chart and the table of one batch size."""
    rows = ablation(points, fixes)
    found = {way: [_gain(getattr(row, way)) for row in rows] for way, _ in _WAYS}
    series = tuple(
        Series(
            name,
            fixes,
            [gain.get("ratio", nan) for gain in found[way]],
            low=[gain.get("low", nan) for gain in found[way]],
            high=[gain.get("high", nan) for gain in found[way]],
        )
        for way, name in _WAYS
    )
    title = f"Ablation at batch {batch:,}"
    chart = Chart(f"{label}-ablation", "bars", title, series, y=Axis("times as fast"), across=True)
    columns = [Column("fix")]
    for _, name in _WAYS:
        columns += [Column(name, "×", number=True), Column(f"{name}: verdict")]
    cells: list[tuple[Cell, ...]] = []
    for at, fix in enumerate(fixes):
        gains = [found[way][at] for way, _ in _WAYS]
        told = (value for gain in gains for value in (gain.get("ratio"), gain.get("verdict")))
        cells.append((fix, *told))
    return [chart, Table(f"{label}-ablation", tuple(columns), tuple(cells), title)]


def _gain(point: Document | None) -> Document:
    """A point's speedup; empty where it was not measured."""
    return (point or {}).get("speedup") or {}
