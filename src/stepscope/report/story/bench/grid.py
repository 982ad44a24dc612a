"""A grid of points: models against each other, then each with its sweeps, ablations and table."""

from math import nan
from typing import Any

from stepscope.report.render.terminal.bench import FAILED
from stepscope.report.render.terminal.bench_answer import answer_lines
from stepscope.report.story.bench.groups import (
    Group,
    ablation_rows,
    best_point,
    group_points,
    sweep_words,
    throughput,
)
from stepscope.report.story.blocks import (
    Axis,
    Block,
    Cell,
    Chart,
    Column,
    Paragraph,
    Section,
    Series,
    Table,
    number_column,
    share_column,
)
from stepscope.report.text import format_number

Document = dict[str, Any]
_WAYS = (("alone", "alone"), ("added", "added to those above"), ("without", "all but this"))


def _ablation_blocks(
    points: list[Document], fixes: list[str], batch: int, label: str
) -> list[Block]:
    """The chart and the table of one batch size."""
    rows = ablation_rows(points, fixes)
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


def _sweep_charts(group: Group, label: str) -> list[Chart]:
    """Throughput, latency and memory against batch, a line per variant; bars for one batch."""
    unit = "tokens/s" if group.mode == "generate" else "samples/s"
    key = "tokens_per_s" if group.mode == "generate" else "samples_per_s"
    if len(group.batches) > 1:
        charts = [
            _against_batch(group, f"{label}-throughput", "Throughput by batch size", key, unit),
            _against_batch(group, f"{label}-latency", "Time by batch size", "mean_ms", "ms"),
            _against_batch(
                group, f"{label}-memory", "Peak memory by batch size", "peak_memory_bytes", "GiB",
                2.0**-30,
            ),
        ]  # fmt: skip
        return [chart for chart in charts if chart is not None]
    points = [point for point in group.points if throughput(point) is not None]
    if len(points) < 2:
        return []
    series = Series(
        "", [point["variant"] for point in points], [throughput(p) or nan for p in points]
    )
    title = f"Throughput of each variant at batch {group.batches[0]:,}"
    return [Chart(f"{label}-variants", "bars", title, (series,), y=Axis(unit), across=True)]


def _against_batch(
    group: Group, label: str, title: str, key: str, unit: str, by: float = 1.0
) -> Chart | None:
    series = []
    for variant in group.variants:
        points = [point for point in group.of(variant) if point.get(key) is not None]
        if points:
            around = _interval(points, key)
            batches = [point["batch"] for point in points]
            values = [point[key] * by for point in points]
            series.append(Series(variant, batches, values, low=around[0], high=around[1]))
    if not series:
        return None
    return Chart(label, "line", title, tuple(series), Axis("batch size", log=True), Axis(unit))


def _interval(points: list[Document], key: str) -> tuple[list[float], list[float]]:
    """Of the mean time where all have one; else none."""
    sides = ("mean_low_ms", "mean_high_ms")
    if key != "mean_ms" or any(point.get(side) is None for point in points for side in sides):
        return [], []
    return [point[sides[0]] for point in points], [point[sides[1]] for point in points]


def _model_chart(every: list[Group], mode: str) -> Chart | None:
    """The best of each model in a mode, a series per device; None for a single model."""
    chosen = [group for group in every if group.mode == mode]
    models = list(dict.fromkeys(group.model for group in chosen))
    if len(models) < 2:
        return None
    series = []
    for device in dict.fromkeys(group.device for group in chosen):
        rates = {group.model: _most(group) for group in chosen if group.device == device}
        series.append(Series(device, models, [rates.get(model, nan) for model in models]))
    unit = "tokens/s" if mode == "generate" else "samples/s"
    title = f"Models in {mode}: the most of any batch and variant"
    return Chart(f"models-{mode}", "bars", title, tuple(series), y=Axis(unit), across=True)


def _most(group: Group) -> float:
    return max(
        (rate for point in group.points if (rate := throughput(point)) is not None), default=nan
    )


def _device_chart(every: list[Group]) -> Chart | None:
    """How many times what the CPU does each other device does; None without both."""
    rates = {
        (group.device, group.model, group.mode, point["batch"], point["variant"]): throughput(point)
        for group in every
        for point in group.points
    }
    labels, ratios = [], []
    for (device, model, mode, batch, variant), rate in rates.items():
        slow = rates.get(("cpu", model, mode, batch, variant))
        if device != "cpu" and rate and slow:
            more = f", {variant}" if variant != "none" else ""
            labels.append(f"{model} {mode}, batch {batch:,}{more}")
            ratios.append(rate / slow)
    if not labels:
        return None
    title = "The GPU against the CPU"
    return Chart(
        "devices", "bars", title, (Series("", labels, ratios),), y=Axis("times as fast"),
        across=True,
    )  # fmt: skip


_COLUMNS = (
    ("samples_per_s", number_column("samples/s", digits=4), 1.0),
    ("tokens_per_s", number_column("tokens/s", digits=4), 1.0),
    ("mean_ms", number_column("mean", "ms"), 1.0),
    ("mean_low_ms", number_column("low", "ms"), 1.0),
    ("mean_high_ms", number_column("high", "ms"), 1.0),
    ("p50_ms", number_column("p50", "ms"), 1.0),
    ("p95_ms", number_column("p95", "ms"), 1.0),
    ("p99_ms", number_column("p99", "ms"), 1.0),
    ("std_ms", number_column("std", "ms"), 1.0),
    ("first_token_ms", number_column("first token", "ms"), 1.0),
    ("token_ms", number_column("token", "ms"), 1.0),
    ("peak_memory_bytes", number_column("peak memory", "MiB", digits=4), 2.0**-20),
    ("gpu_busy", share_column("GPU busy"), 1.0),
    ("mfu", share_column("MFU"), 1.0),
    ("tflops_per_s", number_column("TFLOP/s"), 1.0),
    ("loss", number_column("loss", digits=4), 1.0),
    ("score", number_column("score", digits=4), 1.0),
    ("steps", number_column("steps"), 1),
    ("epoch_s", number_column("epoch", "s"), 1.0),
    ("time_to_score_s", number_column("to the score", "s"), 1.0),
    ("energy_j_per_sample", number_column("energy", "J/sample"), 1.0),
    ("carbon_g_per_million", number_column("CO2", "g per million samples"), 1.0),
    ("cost_per_million", number_column("cost", "per million samples"), 1.0),
    ("first_calls_s", number_column("first calls", "s"), 1.0),
)
_SPEEDUP = (("ratio", "speedup"), ("low", "speedup low"), ("high", "speedup high"))


def _points_table(group: Group, label: str) -> Table:
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


def grid_verdict(document: Document) -> str:
    """The first thing to know."""
    points = [point for point in document["points"] if point["status"] == "ok"]
    if not points:
        return "Nothing could be measured."
    if (found := best_point(points)) is not None:
        gain = found["speedup"]
        interval = f"{gain['low']:.2f}–{gain['high']:.2f}"
        where = f"{found['model']} {found['mode']}, batch {found['batch']:,}"
        return f"{found['variant']} makes {where} {gain['ratio']:.2f}× as fast ({interval})."
    rated = [point for point in points if throughput(point) is not None]
    if not rated:
        return f"{len(points):,} points were measured."
    top = max(rated, key=lambda point: throughput(point) or 0.0)
    unit = "tokens" if top["mode"] == "generate" else "samples"
    return (
        f"{top['model']} does {format_number(throughput(top) or 0.0)} {unit} a second"
        f" in {top['mode']}"
        f" on {top['device']}, at batch {top['batch']:,}."
    )


def grid_sections(document: Document) -> list[Section]:
    """The answer, the models side by side, then a section for each model, mode and device."""
    every = group_points(document["points"])
    fixes = list((document.get("request") or {}).get("ablate") or [])
    told = [line.plain.strip() for line in answer_lines(document)] if not fixes else []
    repeated = sweep_words(every[0]) if len(every) == 1 else ()
    summary: list[Block] = [Paragraph(text) for text in told if text and text not in repeated]
    charts = (_device_chart(every), *(_model_chart(every, mode) for mode in _modes(every)))
    summary += [chart for chart in charts if chart is not None]
    made = [Section("summary", "At a glance", tuple(summary))] if summary else []
    return made + [_group(group, number, fixes) for number, group in enumerate(every, start=1)]


def _modes(every: list[Group]) -> list[str]:
    return list(dict.fromkeys(group.mode for group in every))


def _group(group: Group, number: int, fixes: list[str]) -> Section:
    label = f"points-{number}"
    blocks: list[Block] = [Paragraph(f"{words}.") for words in sweep_words(group)]
    blocks += _sweep_charts(group, label)
    for batch in group.batches if fixes else ():
        blocks += _ablation_blocks(group.at(batch), fixes, batch, f"{label}-{batch}")
    blocks.append(_points_table(group, label))
    return Section(label, f"{group.model} · {group.mode} · {group.device}", tuple(blocks))
