"""The ladder of a tune: each fix with its speedups and what was predicted of it."""

from math import nan
from typing import Any

from stepscope.report.story.blocks import (
    Axis,
    Block,
    Cell,
    Chart,
    Column,
    Missing,
    Section,
    Series,
    Table,
)

Document = dict[str, Any]
AS_IT_IS = "as it is"


def ladder_section(document: Document) -> Section:
    """The table with the program as it is in its first row, and the charts beside it."""
    rungs = document["ladder"]
    if not rungs:
        what = "No fix made the program faster, so there is no ladder."
        how = "stepscope tune --budget 30m --allow semantic tries more."
        return Section("ladder", "The ladder", (_table(document), Missing(what, how)))
    blocks: list[Block] = [_table(document), _so_far(document)]
    if any(rung["predicted_speedup"] is not None for rung in rungs):
        blocks.append(_predicted(rungs))
    return Section("ladder", "The ladder", tuple(blocks))


def _table(document: Document) -> Table:
    """As it is read: intervals in words."""
    columns = (
        Column("rung"), Column("kind"), Column("step", "ms", number=True),
        Column("samples/s", number=True, digits=4), Column("speedup", "×", number=True),
        Column("so far", "×", number=True), Column("95%"),
        Column("predicted", "×", number=True), Column("range"), Column("losses"),
    )  # fmt: skip
    base = document["baseline"]
    first: tuple[Cell, ...] = (
        AS_IT_IS, "", base.get("step_ms"), base.get("samples_per_s"), 1.0, 1.0, "", None, "",
        "baseline",
    )  # fmt: skip
    return Table("ladder", columns, (first, *(_row(rung) for rung in document["ladder"])))


def _row(rung: Document) -> tuple[Cell, ...]:
    total, told, proof = rung["cumulative"], rung["predicted"] or {}, rung["proof"]
    return (
        f"+ {rung['label']}", rung["kind"], rung.get("step_ms"), rung.get("samples_per_s"),
        rung["speedup"], total["speedup"], _interval(total),
        told.get("speedup"), _interval(told), proof["words"] if proof else "not proven",
    )  # fmt: skip


def _interval(found: Document) -> str:
    return f"{found['low']:.2f}–{found['high']:.2f}" if found.get("low") is not None else ""


def _so_far(document: Document) -> Chart:
    totals = [rung["cumulative"] for rung in document["ladder"]]
    labels = [AS_IT_IS, *(f"+ {rung['label']}" for rung in document["ladder"])]
    values, low, high = (
        [1.0, *(total[key] for total in totals)] for key in ("speedup", "low", "high")
    )
    series = Series("", labels, values, low=low, high=high)
    title = "Speedup so far, with its 95% interval"
    return Chart("ladder-chart", "bars", title, (series,), y=Axis("times as fast"), across=True)


def _predicted(rungs: list[Document]) -> Chart:
    """Side by side, so that the eye compares them."""
    labels = [rung["label"] for rung in rungs]
    told = [rung["predicted"] or {} for rung in rungs]
    made = tuple(
        Series(
            name,
            labels,
            [one.get("speedup") or nan for one in rows],
            low=[one.get("low") or nan for one in rows],
            high=[one.get("high") or nan for one in rows],
        )
        for name, rows in (("predicted", told), ("measured", rungs))
    )
    title = "Each fix: predicted and measured"
    return Chart("predicted", "bars", title, made, y=Axis("times as fast"), across=True)


def resources_section(document: Document) -> Section:
    """What each rung takes of the machine; columns that nothing is known of are left out."""
    rows = [(AS_IT_IS, document["baseline"])]
    rows += [(f"+ {rung['label']}", rung) for rung in document["ladder"]]
    kept = [(key, column, by) for key, column, by in _TAKEN if any(row.get(key) for _, row in rows)]
    if not kept:
        return Section("resources", "What it takes", ())
    cells = tuple((name, *(_scaled(row.get(key), by) for key, _, by in kept)) for name, row in rows)
    columns = (Column("rung"), *(column for _, column, _ in kept))
    return Section("resources", "What it takes", (Table("resources", columns, cells),))


_TAKEN = (
    ("gpu_busy", Column("GPU busy", number=True, percent=True), 1.0),
    ("peak_memory_bytes", Column("peak memory", "MiB", number=True, digits=4), 2.0**-20),
    ("energy_j_per_sample", Column("energy", "J/sample", number=True), 1.0),
    ("cost_per_million", Column("cost", "per million samples", number=True), 1.0),
    ("compile_s", Column("compiling", "s", number=True), 1.0),
    ("pays_after_steps", Column("pays after", "steps", number=True), 1),
)


def _scaled(value: float | None, by: float) -> float | None:
    return None if value is None else value * by
