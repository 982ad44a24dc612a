"""A grid of points: models against each other, then each with its sweeps, ablations and table."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import nan

from stepscope.bench.results import BenchResult, PointStatus, PointSummary, Speedup
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
    ablation_rows,
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
)

_WAYS = ("alone", "added", "without")
_WAY_NAMES = {"alone": "alone", "added": "added", "without": "without it"}
_MOST_ANSWERS = 12
_MIB, _GIB = 2.0**-20, 2.0**-30


def grid_verdict(bench: BenchResult) -> str:
    """The first thing to know."""
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


def grid_sections(bench: BenchResult) -> list[Section]:
    """The answer, the models side by side, then a section for each model, mode and device."""
    groups = group_points(bench.points)
    fixes = list(bench.request.ablate)
    answers = list(_answers(groups))
    answers = answers if len(answers) > 1 else []  # the verdict says it
    rest = len(answers) - _MOST_ANSWERS
    if rest > 0:
        answers[_MOST_ANSWERS:] = [f"{plural(rest, 'more line')}: --json"]
    paragraphs = tuple(Paragraph(text) for text in answers)
    made = [Section("summary", "At a glance", paragraphs, Weight.LEAD)] if paragraphs else []
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
        fixes = " ".join(f"--fix {fix}" for fix in best.fixes)
        return Command(f"stepscope run {fixes} train.py", "the same for your program")
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
    yield from _device_sentences(groups)


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
    """(point, device, how many times as fast as the CPU) where both were measured."""
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


def _device_sentences(groups: list[Group]) -> Iterator[str]:
    for name, device, ratio in _device_ratios(groups):
        way = (
            f"{format_number(ratio)}× faster"
            if ratio >= 1
            else f"{format_number(1 / ratio)}× slower"
        )
        yield f"{name}: {device.upper()} is {way} than the CPU."


def _device_chart(groups: list[Group]) -> Chart | None:
    """None without both devices, or where a sentence says as much."""
    found = list(_device_ratios(groups))
    if not found:
        return None
    series = Series("", [name for name, _, _ in found], [ratio for _, _, ratio in found])
    return Chart(
        "devices", "bars", "GPU against CPU", (series,), y=Axis("times as fast"), across=True
    )


def _model_chart(groups: list[Group], mode: str) -> Chart | None:
    """The best of each model in a mode, a series per device; None for a single model."""
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
    return Chart(f"models-{mode}", "bars", title, tuple(series), y=Axis(unit), across=True)


def _ablation_blocks(points: Points, fixes: list[str], batch: int, label: str) -> Iterator[Block]:
    """The chart and the table of one batch size."""
    rows = ablation_rows(points, fixes)
    gains = {way: [_gain(getattr(row, way)) for row in rows] for way in _WAYS}

    def values(way: str, read: Callable[[Speedup], float]) -> list[float]:
        return [nan if gain is None else read(gain) for gain in gains[way]]

    series = tuple(
        Series(
            _WAY_NAMES[way], fixes, values(way, lambda gain: gain.ratio),
            low=values(way, lambda gain: gain.low), high=values(way, lambda gain: gain.high),
        )
        for way in _WAYS
    )  # fmt: skip
    title = f"Ablation at batch {batch:,}"
    yield Chart(f"{label}-ablation", "bars", title, series, y=Axis("times as fast"), across=True)
    columns = (Column("fix"), *(Column(_WAY_NAMES[way]) for way in _WAYS))
    cells = tuple(
        (fix, *(_ablation_cell(gains[way][at]) for way in _WAYS)) for at, fix in enumerate(fixes)
    )
    yield Table(f"{label}-ablation", columns, cells, title)
    words = "added: with those above it; without it: all the others; ~: within noise."
    yield Paragraph(words, tone=Tone.QUIET)


def _ablation_cell(gain: Speedup | None) -> Cell:
    """`1.25×`; `1.02× ~` where it is not beyond noise."""
    if gain is None:
        return None
    noise = "" if gain.verdict in ("FASTER", "SLOWER") else " ~"
    return f"{format_speedup(gain.ratio)}{noise}"


def _gain(point: PointSummary | None) -> Speedup | None:
    return None if point is None else point.speedup


def _part(gain: Speedup | None, name: str) -> Cell:
    found: Cell = None if gain is None else getattr(gain, name)
    return found


def _sweep_charts(group: Group, label: str) -> list[Chart]:
    """Throughput, latency and memory against batch, a line per variant; bars for one batch."""
    unit = group.points[0].throughput_unit
    if len(group.batches) > 1:
        charts = [
            _against_batch(
                group, f"{label}-throughput", "Throughput", unit, lambda p: p.throughput
            ),
            _against_batch(group, f"{label}-latency", "Time", "ms", lambda p: p.mean_ms),
            _against_batch(
                group,
                f"{label}-memory",
                "Peak memory",
                "GiB",
                lambda p: None if p.peak_memory_bytes is None else p.peak_memory_bytes * _GIB,
            ),
        ]
        return [chart for chart in charts if chart is not None]
    points = [point for point in group.points if point.throughput is not None]
    if len(points) < 2:
        return []
    series = Series(
        "", [point.variant for point in points], [point.throughput or nan for point in points]
    )
    title = f"Throughput of each variant at batch {group.batches[0]:,}"
    return [Chart(f"{label}-variants", "bars", title, (series,), y=Axis(unit), across=True)]


def _against_batch(
    group: Group, label: str, what: str, unit: str, read: Callable[[PointSummary], float | None]
) -> Chart | None:
    series = []
    for variant in group.variants:
        known = [
            (point, value) for point in group.of(variant) if (value := read(point)) is not None
        ]
        if known:
            low, high = _interval([point for point, _ in known]) if unit == "ms" else ([], [])
            x, y = [point.batch for point, _ in known], [value for _, value in known]
            series.append(Series(variant, x, y, low=low, high=high))
    if not series:
        return None
    title = f"{what} by batch size"
    return Chart(label, "line", title, tuple(series), Axis("batch size", log=True), Axis(unit))


def _interval(points: Points) -> tuple[list[float], list[float]]:
    """Of the mean time where all have one; else none."""
    pairs = [
        (point.mean_low_ms, point.mean_high_ms)
        for point in points
        if point.mean_low_ms is not None and point.mean_high_ms is not None
    ]
    if len(pairs) < len(points):
        return [], []
    return [low for low, _ in pairs], [high for _, high in pairs]


def _number(name: str, unit: str = "", priority: int = 1, digits: int = 3) -> Column:
    return Column(name, unit, number=True, digits=digits, priority=priority)


def _share(name: str, priority: int) -> Column:
    return Column(name, number=True, percent=True, priority=priority)


_Columns = tuple[tuple[str, Column, float], ...]
"""Field of a point, its column, the factor to the column's unit."""
_SPEED: _Columns = (
    ("samples_per_s", _number("samples/s", priority=0, digits=4), 1.0),
    ("tokens_per_s", _number("tokens/s", priority=0, digits=4), 1.0),
    ("mean_ms", _number("mean", "ms", 0), 1.0),
    ("half_interval", _share("±", 2), 1.0),
    ("p95_ms", _number("p95", "ms", 3), 1.0),
    ("p99_ms", _number("p99", "ms", 4), 1.0),
    ("first_token_ms", _number("first token", "ms", 1), 1.0),
    ("token_ms", _number("token", "ms", 1), 1.0),
    ("peak_memory_bytes", _number("memory", "MiB", 2, 4), _MIB),
)
_TRAINING: _Columns = (
    ("steps", _number("steps"), 1.0),
    ("loss", _number("loss", digits=4), 1.0),
    ("score", _number("score", digits=4), 1.0),
    ("epoch_s", _number("epoch", "s"), 1.0),
    ("time_to_score_s", _number("to score", "s"), 1.0),
)
_COST: _Columns = (
    ("gpu_busy", _share("GPU busy", 1), 1.0),
    ("tflops_per_s", _number("TFLOP/s"), 1.0),
    ("mfu", _share("MFU", 1), 1.0),
    ("energy_j_per_sample", _number("energy", "J/sample"), 1.0),
    ("carbon_g_per_million", _number("CO2", "g/M samples"), 1.0),
    ("cost_per_million", _number("cost", "per M samples"), 1.0),
    ("first_calls_s", _number("first calls", "s"), 1.0),
)
_DETAIL: _Columns = (
    ("mean_low_ms", _number("low", "ms"), 1.0),
    ("mean_high_ms", _number("high", "ms"), 1.0),
    ("p50_ms", _number("p50", "ms"), 1.0),
    ("std_ms", _number("std", "ms"), 1.0),
)
_SPEEDUP = ("ratio", "low", "high", "verdict")


def _short_tables(group: Group, label: str) -> Iterator[Table]:
    """Speed, what training came to, what it cost: each narrow enough for a screen."""
    points = group.points
    gains = any(point.speedup for point in points)
    failed = any(point.status is not PointStatus.OK for point in points)
    speed = _with_values(_SPEED, points)
    columns = [Column("batch", number=True), Column("variant"), *(column for _, column, _ in speed)]
    columns += [Column("speedup", "×", number=True), Column("verdict", priority=1)] if gains else []
    columns += [Column("outcome")] if failed else []
    rows = []
    for point in points:
        cells = _cells(point, speed)
        cells += [_part(point.speedup, "ratio"), _part(point.speedup, "verdict")] if gains else []
        rows.append((*cells, *([outcome(point)] if failed else [])))
    tones = tuple(_tone(point) for point in points)
    yield Table(f"{label}-speed", tuple(columns), tuple(rows), shown=40, tones=tones)
    for name, chosen in (("training", _TRAINING), ("cost", _COST)):
        if kept := _with_values(_named_score(chosen, points), points):
            columns = [Column("batch", number=True), Column("variant")]
            columns += [column for _, column, _ in kept]
            rows = [tuple(_cells(point, kept)) for point in measured(points)]
            yield Table(f"{label}-{name}", tuple(columns), tuple(rows), shown=40)


def _full_table(group: Group, label: str) -> Table:
    """Everything of every point."""
    points = group.points
    every = (*_SPEED, *_DETAIL, *_TRAINING, *_COST)
    kept = _with_values(_named_score(every, points), points)
    columns = [Column("batch", number=True), Column("variant"), *(column for _, column, _ in kept)]
    columns += [Column(f"speedup {name}") for name in _SPEEDUP]
    columns.append(Column("outcome"))
    rows = tuple(
        (*_cells(point, kept), *(_part(point.speedup, key) for key in _SPEEDUP), outcome(point))
        for point in points
    )
    return Table(label, tuple(columns), rows, "All that was measured", shown=40)


def _named_score(columns: _Columns, points: Points) -> _Columns:
    """The score under its own name where all points have the same."""
    names = {point.score_name for point in points if point.score_name}
    name = names.pop().replace("_", " ") if len(names) == 1 else "score"
    return tuple(
        (key, replace(column, name=name) if key == "score" else column, by)
        for key, column, by in columns
    )


def _with_values(columns: _Columns, points: Points) -> _Columns:
    """Those that a point has a value for."""
    return tuple(
        one for one in columns if any(getattr(point, one[0]) is not None for point in points)
    )


def _cells(point: PointSummary, columns: _Columns) -> list[Cell]:
    cells: list[Cell] = [point.batch, point.variant]
    for key, _, by in columns:
        value = getattr(point, key)
        if key == "half_interval" and value is not None and value > 1:
            value = ">100%"
        cells.append(value if value is None or by == 1 else value * by)
    return cells


def _tone(point: PointSummary) -> Tone:
    if point.status is not PointStatus.OK:
        return Tone.BAD
    return Tone.WARN if point.unstable else Tone.PLAIN


def outcome(point: PointSummary) -> str:
    """`ok`, `out of memory: …`."""
    return f"{point.status.label}: {point.why}" if point.why else point.status.label
