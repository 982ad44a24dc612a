"""The points of one model in one mode on one device, as a table with all that is known of them."""

from typing import Any

from stepscope.report.bench_groups import Group
from stepscope.report.bench_rows import FAILED
from stepscope.report.story.bench_heads import number, share
from stepscope.report.story.blocks import Cell, Column, Table

Document = dict[str, Any]


_COLUMNS = (
    ("samples_per_s", number("samples/s", digits=4), 1.0),
    ("tokens_per_s", number("tokens/s", digits=4), 1.0),
    ("mean_ms", number("mean", "ms"), 1.0),
    ("mean_low_ms", number("low", "ms"), 1.0),
    ("mean_high_ms", number("high", "ms"), 1.0),
    ("p50_ms", number("p50", "ms"), 1.0),
    ("p95_ms", number("p95", "ms"), 1.0),
    ("p99_ms", number("p99", "ms"), 1.0),
    ("std_ms", number("std", "ms"), 1.0),
    ("first_token_ms", number("first token", "ms"), 1.0),
    ("token_ms", number("token", "ms"), 1.0),
    ("peak_memory_bytes", number("peak memory", "MiB", digits=4), 2.0**-20),
    ("gpu_busy", share("GPU busy"), 1.0),
    ("mfu", share("MFU"), 1.0),
    ("tflops_per_s", number("TFLOP/s"), 1.0),
    ("loss", number("loss", digits=4), 1.0),
    ("score", number("score", digits=4), 1.0),
    ("steps", number("steps"), 1),
    ("epoch_s", number("epoch", "s"), 1.0),
    ("time_to_score_s", number("to the score", "s"), 1.0),
    ("energy_j_per_sample", number("energy", "J/sample"), 1.0),
    ("carbon_g_per_million", number("CO2", "g per million samples"), 1.0),
    ("cost_per_million", number("cost", "per million samples"), 1.0),
    ("first_calls_s", number("first calls", "s"), 1.0),
)
_SPEEDUP = (("ratio", "speedup"), ("low", "speedup low"), ("high", "speedup high"))


def points_table(group: Group, label: str) -> Table:
    """A row for each; columns that no point has a value for are left out."""
    points = group.points
    kept = [one for one in _COLUMNS if any(point.get(one[0]) is not None for point in points)]
    compared = any(point.get("speedup") for point in points)
    failed = any(point["status"] != "ok" for point in points)
    columns = [Column("batch", number=True), Column("variant"), *(column for _, column, _ in kept)]
    if compared:
        columns += [*(Column(name, "×", number=True) for _, name in _SPEEDUP), Column("verdict")]
    if failed:
        columns.append(Column("outcome"))
    rows = tuple(_row(point, kept, compared, failed) for point in points)
    return Table(label, tuple(columns), rows, "All that was measured", shown=40)


def _row(
    point: Document, kept: list[tuple[str, Column, float]], compared: bool, failed: bool
) -> tuple[Cell, ...]:
    cells: list[Cell] = [point["batch"], point["variant"]]
    cells += [_scaled(point.get(key), by) for key, _, by in kept]
    if compared:
        gain = point.get("speedup") or {}
        cells += [*(gain.get(key) for key, _ in _SPEEDUP), gain.get("verdict")]
    if failed:
        why = f": {point['why']}" if point.get("why") else ""
        state = point["status"]
        cells.append("ok" if state == "ok" else f"{FAILED.get(state, 'failed')}{why}")
    return tuple(cells)


def _scaled(value: Any, by: float) -> Cell:
    return value * by if isinstance(value, int | float) and by != 1 else value
