"""A grid of points: models side by side, then each with its sweeps, ablations and table."""

from collections.abc import Iterator
from dataclasses import replace
from math import nan

from stepscope.bench.results import BenchResult, PointStatus, PointSummary, Speedup, TechniqueRow
from stepscope.record.units import (
    format_bytes,
    format_interval,
    format_number,
    format_speedup,
    plural,
)
from stepscope.report.story.bench.groups import (
    Group,
    Points,
    ablation_gains,
    best_point,
    group_points,
    measured,
    sweep_sentences,
)
from stepscope.report.story.blocks import (
    Axis,
    Block,
    Cell,
    Chart,
    Column,
    Command,
    Paragraph,
    Section,
    Series,
    Table,
    Tone,
    Weight,
    scaled,
)
from stepscope.report.story.phrases import fix_options

_MOST_ANSWERS = 12
_MIB, _GIB = 2.0**-20, 2.0**-30


def verdict(bench: BenchResult) -> str:
    """The verdict: the most important result."""
    points = measured(bench.points)
    if not points:
        return "Nothing could be measured."
    answers = list(_answers(group_points(bench.points)))
    if len(answers) == 1:
        return answers[0]
    if (best := best_point(points)) is not None and best.speedup:
        where = f"{best.model} {best.mode}, batch {best.batch:,}"
        return f"{where}: {_times(best.speedup)} faster with {best.variant}."
    rated = [point for point in points if point.throughput is not None]
    if not rated:
        return f"{plural(len(points), 'point')} measured."
    top = max(rated, key=lambda point: point.throughput or 0.0)
    if len(points) == 1:
        return ", ".join(_figures(top))
    rate = f"{format_number(top.throughput or 0.0)} {top.throughput_unit}"
    return f"{top.model} {top.mode}: {rate} on {top.device} at batch {top.batch:,}."


def sections(bench: BenchResult) -> list[Section]:
    """The answer, the models side by side, then a section for each model, mode and device."""
    groups = group_points(bench.points)
    fixes = list(bench.request.ablate)
    answers = list(_answers(groups))
    rest = len(answers) - _MOST_ANSWERS
    if rest > 0:
        answers[_MOST_ANSWERS:] = [f"{plural(rest, 'more line')}: --json"]
    made = []
    if len(answers) > 1:  # otherwise the verdict says it
        made = [Section("summary", "At a glance", tuple(map(Paragraph, answers)), Weight.LEAD)]
    modes = dict.fromkeys(group.mode for group in groups)
    charts = (_device_chart(groups), *(_model_chart(groups, mode) for mode in modes))
    if drawn := tuple(chart for chart in charts if chart is not None):
        made.append(Section("models", "Models and devices", drawn))
    for number, group in enumerate(groups, start=1):
        label = f"points-{number}"
        blocks = [
            block
            for batch in (group.batches if fixes else ())
            for block in _ablation_blocks(group.at(batch), fixes, batch, f"{label}-{batch}")
        ]
        blocks += _short_tables(group, label)
        made.append(Section(label, group.name, tuple(blocks), Weight.LEAD))
        details: list[Block] = [*_sweep_charts(group, label), _full_table(group, label)]
        made.append(Section(f"{label}-details", f"{group.name}: details", tuple(details)))
    return made


def next_command(bench: BenchResult) -> Command:
    """What to run next."""
    groups = group_points(bench.points)
    best = best_point(bench.points)
    model = groups[0].model if groups else "resnet18"
    if best is not None and best.fixes:
        command = f"stepscope run {fix_options(best.fixes)} train.py"
        return Command(command, "the same for your program")
    if groups and all(len(group.batches) == 1 for group in groups):
        return Command(f"stepscope bench {model} --batch 1,8,64,512", "find the best batch size")
    return Command(f"stepscope bench {model} --ablate amp=bf16,channels_last", "what each fix adds")


def _times(gain: Speedup) -> str:
    return f"{format_speedup(gain.ratio)} ({format_interval(gain.low, gain.high)})"


def _figures(point: PointSummary) -> Iterator[str]:
    """`507 samples/s`, `63.1 ms per step ±1.0%`, `peak 3.0 GiB`, `MFU 14%`."""
    if point.throughput is not None:
        yield f"{format_number(point.throughput)} {point.throughput_unit}"
    noun = {"train": "step", "infer": "call"}.get(point.mode, "token")
    value = point.token_ms if point.mode == "generate" else point.mean_ms
    if value is not None:
        share = point.half_interval
        around = "" if share is None else f" ±{share:.1%}" if share < 1 else " ±>100%"
        yield f"{format_number(value)} ms per {noun}{around}"
    if point.peak_memory_bytes is not None:
        yield f"peak {format_bytes(point.peak_memory_bytes)}"
    if point.mfu is not None:
        yield f"MFU {point.mfu:.0%}"


def _answers(groups: list[Group]) -> Iterator[str]:
    """A sentence on each comparison and sweep."""
    many = len(groups) > 1
    for group in groups:
        if len(group.variants) > 1:
            for batch in group.batches:
                yield _best_variant(group, batch, many)
        name = f"{group.model} {group.mode} on {group.device}: " if many else ""
        yield from (f"{name}{sentence}" for sentence in sweep_sentences(group))
    for name, device, ratio in _device_ratios(groups):
        times, way = (ratio, "faster") if ratio >= 1 else (1 / ratio, "slower")
        yield f"{name}: {device.upper()} is {format_number(times)}× {way} than the CPU."


def _best_variant(group: Group, batch: int, many: bool) -> str:
    points = group.at(batch)
    best, base = best_point(points), points[0]
    parts = [f"{group.model} {group.mode} on {group.device}"] if many else []
    if len(group.batches) > 1:
        parts.append(f"{'batch' if parts else 'Batch'} {batch:,}")
    head = f"{', '.join(parts)}: " if parts else ""
    if base.status is not PointStatus.OK:
        return f"{head}not compared, {base.variant} was not measured."
    if best is None or best.speedup is None:
        return f"{head}no variant beats {base.variant} beyond noise."
    rate = best.throughput
    after = "" if rate is None else f", {format_number(rate)} {best.throughput_unit}"
    return f"{head}{_times(best.speedup)} faster than {base.variant} with {best.variant}{after}."


def _device_ratios(groups: list[Group]) -> Iterator[tuple[str, str, float]]:
    """(point, device, speedup over the CPU) if both were measured."""
    rates = {
        (group.device, group.model, group.mode, point.batch, point.variant): point.throughput
        for group in groups
        for point in measured(group.points)
    }
    for (device, model, mode, batch, variant), rate in rates.items():
        slow = rates.get(("cpu", model, mode, batch, variant))
        if device != "cpu" and rate and slow:
            more = f", {variant}" if variant != "none" else ""
            yield f"{model} {mode}, batch {batch:,}{more}", device, rate / slow


def _device_chart(groups: list[Group]) -> Chart | None:
    """The chart; None without both devices, or if a sentence says as much."""
    found = list(_device_ratios(groups))
    if not found:
        return None
    series = Series("", [name for name, _, _ in found], [ratio for _, _, ratio in found])
    return Chart.bars("devices", "GPU against CPU", series, unit="times as fast")


def _model_chart(groups: list[Group], mode: str) -> Chart | None:
    """Each model's best in a mode, one series per device; None for a single model."""
    chosen = [group for group in groups if group.mode == mode]
    models = list(dict.fromkeys(group.model for group in chosen))
    if len(models) < 2:
        return None
    series = []
    for device in dict.fromkeys(group.device for group in chosen):
        rates = {
            group.model: max((point.throughput or nan for point in group.points), default=nan)
            for group in chosen
            if group.device == device
        }
        series.append(Series(device, models, [rates.get(model, nan) for model in models]))
    unit = "tokens/s" if mode == "generate" else "samples/s"
    title = f"{mode}: best of each model over batches and variants"
    return Chart.bars(f"models-{mode}", title, *series, unit=unit)


def _ablation_blocks(points: Points, fixes: list[str], batch: int, label: str) -> Iterator[Block]:
    """The chart and the table of one batch size."""
    series, columns = [], []
    for way, gains in ablation_gains(points, fixes).items():
        ratio, low, high = (
            [nan if gain is None else getattr(gain, key) for gain in gains]
            for key in ("ratio", "low", "high")
        )
        series.append(Series(way, fixes, ratio, low=low, high=high))
        columns.append([_ablation_cell(gain) for gain in gains])
    title, name = f"Ablation at batch {batch:,}", f"{label}-ablation"
    yield Chart.bars(name, title, *series, unit="times as fast")
    heads = (Column("fix"), *(Column(one.name) for one in series))
    yield Table(name, heads, tuple(zip(fixes, *columns, strict=True)), title)
    words = "added: with those above it; without it: all the others; ~: within noise."
    yield Paragraph(words, tone=Tone.QUIET)


def _ablation_cell(gain: Speedup | None) -> Cell:
    """`1.25×`, or `1.02× ~` if it is within noise."""
    if gain is None:
        return None
    noise = "" if gain.verdict in ("FASTER", "SLOWER") else " ~"
    return f"{format_speedup(gain.ratio)}{noise}"


def _sweep_charts(group: Group, label: str) -> list[Chart]:
    """Throughput, latency and memory against batch, a line per variant; bars for one batch."""
    unit = group.points[0].throughput_unit
    if len(group.batches) > 1:
        charts = [
            _against_batch(group, f"{label}-throughput", "Throughput", unit, "throughput"),
            _against_batch(group, f"{label}-latency", "Time", "ms", "mean_ms"),
            _against_batch(group, f"{label}-memory", "Peak memory", "GiB", "peak_memory_bytes"),
        ]
        return [chart for chart in charts if chart is not None]
    points = [point for point in group.points if point.throughput is not None]
    if len(points) < 2:
        return []
    rates = [point.throughput or nan for point in points]
    series = Series("", [point.variant for point in points], rates)
    title = f"Throughput of each variant at batch {group.batches[0]:,}"
    return [Chart.bars(f"{label}-variants", title, series, unit=unit)]


def _against_batch(group: Group, label: str, what: str, unit: str, key: str) -> Chart | None:
    """A chart of one field of points; times with their intervals if all have one."""
    series = []
    for variant in group.variants:
        known = [point for point in group.of(variant) if getattr(point, key) is not None]
        values = [getattr(point, key) * (_GIB if unit == "GiB" else 1) for point in known]
        low = [one.mean_low_ms for one in known if unit == "ms" and one.mean_low_ms is not None]
        high = [one.mean_high_ms for one in known if unit == "ms" and one.mean_high_ms is not None]
        if len(low) < len(known) or len(high) < len(known):
            low, high = [], []
        if known:
            at = [point.batch for point in known]
            series.append(Series(variant, at, values, low=low, high=high))
    if not series:
        return None
    title, axes = f"{what} by batch size", (Axis("batch size", log=True), Axis(unit))
    return Chart(label, "line", title, tuple(series), *axes)


_Columns = dict[str, Column]
"""Columns by the field of a point."""
_SPEED: _Columns = {
    "samples_per_s": Column.numeric("samples/s", digits=4),
    "tokens_per_s": Column.numeric("tokens/s", digits=4),
    "mean_ms": Column.numeric("mean", "ms"),
    "half_interval": Column.share("±", priority=2),
    "p95_ms": Column.numeric("p95", "ms", priority=3),
    "p99_ms": Column.numeric("p99", "ms", priority=4),
    "first_token_ms": Column.numeric("first token", "ms", priority=1),
    "token_ms": Column.numeric("token", "ms", priority=1),
    "peak_memory_bytes": Column.numeric("memory", "MiB", digits=4, priority=2),
}
_TRAINING: _Columns = {
    "steps": Column.numeric("steps", priority=1),
    "loss": Column.numeric("loss", digits=4, priority=1),
    "score": Column.numeric("score", digits=4, priority=1),
    "epoch_s": Column.numeric("epoch", "s", priority=1),
    "time_to_score_s": Column.numeric("to score", "s", priority=1),
}
_COST: _Columns = {
    "gpu_busy": Column.share("GPU busy", priority=1),
    "tflops_per_s": Column.numeric("TFLOP/s", priority=1),
    "mfu": Column.share("MFU", priority=1),
    "energy_j_per_sample": Column.numeric("energy", "J/sample", priority=1),
    "carbon_g_per_million": Column.numeric("CO2", "g/M samples", priority=1),
    "cost_per_million": Column.numeric("cost", "per M samples", priority=1),
    "first_calls_s": Column.numeric("first calls", "s", priority=1),
}
_DETAIL: _Columns = {
    "mean_low_ms": Column.numeric("low", "ms", priority=1),
    "mean_high_ms": Column.numeric("high", "ms", priority=1),
    "p50_ms": Column.numeric("p50", "ms", priority=1),
    "std_ms": Column.numeric("std", "ms", priority=1),
}
_POINT = (Column("batch", number=True), Column("variant"))
_SPEEDUP = ("ratio", "low", "high", "verdict")


def _short_tables(group: Group, label: str) -> Iterator[Table]:
    """Tables of speed, training result and cost, each narrow enough for a screen."""
    points = group.points
    gains = any(point.speedup for point in points)
    failed = any(point.status is not PointStatus.OK for point in points)
    speed = _with_values(_SPEED, points)
    columns = [*_POINT, *speed.values()]
    columns += [Column.numeric("speedup", "×"), Column("verdict", priority=1)] if gains else []
    columns += [Column("outcome")] if failed else []
    rows = []
    for point in points:
        cells = _cells(point, speed)
        cells += _gain_cells(point, ("ratio", "verdict")) if gains else []
        rows.append((*cells, *([outcome(point)] if failed else [])))
    tones = tuple(_tone(point) for point in points)
    yield Table(f"{label}-speed", tuple(columns), tuple(rows), shown=40, tones=tones)
    for name, chosen in (("training", _TRAINING), ("cost", _COST)):
        if kept := _with_values(chosen, points):
            cost = tuple(tuple(_cells(point, kept)) for point in measured(points))
            yield Table(f"{label}-{name}", (*_POINT, *kept.values()), cost, shown=40)


def _full_table(group: Group, label: str) -> Table:
    points = group.points
    kept = _with_values(_SPEED | _DETAIL | _TRAINING | _COST, points)
    gains = (Column(f"speedup {name}") for name in _SPEEDUP)
    columns = (*_POINT, *kept.values(), *gains, Column("outcome"))
    rows = tuple(
        (*_cells(point, kept), *_gain_cells(point, _SPEEDUP), outcome(point)) for point in points
    )
    return Table(label, columns, rows, "All measurements", shown=40)


def _with_values(columns: _Columns, points: Points) -> _Columns:
    """Columns with a value in some point; the score under its own name if all share it."""
    names = {point.score_name for point in points if point.score_name}
    if "score" in columns and len(names) == 1:
        score = replace(columns["score"], name=names.pop().replace("_", " "))
        columns = columns | {"score": score}
    return {
        key: column
        for key, column in columns.items()
        if any(getattr(point, key) is not None for point in points)
    }


def _cells(point: PointSummary, columns: _Columns) -> list[Cell]:
    cells: list[Cell] = [point.batch, point.variant]
    for key in columns:
        value = getattr(point, key)
        if key == "half_interval" and value is not None and value > 1:
            value = ">100%"
        cells.append(scaled(value, _MIB) if key == "peak_memory_bytes" else value)
    return cells


def _gain_cells(point: PointSummary, keys: tuple[str, ...]) -> list[Cell]:
    return [None if point.speedup is None else getattr(point.speedup, key) for key in keys]


def _tone(point: PointSummary) -> Tone:
    if point.status is not PointStatus.OK:
        return Tone.BAD
    return Tone.WARN if point.unstable else Tone.PLAIN


def outcome(point: PointSummary | TechniqueRow) -> str:
    """`ok`, `out of memory: …`."""
    return f"{point.status.label}: {point.why}" if point.why else point.status.label
