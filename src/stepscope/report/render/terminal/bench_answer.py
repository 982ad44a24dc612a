"""The answer of a benchmark in a few lines, and the columns of its tables."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from rich.text import Text

from stepscope.report.story.bench.groups import (
    Group,
    ablation_rows,
    best_point,
    group_points,
    sweep_words,
    throughput,
)
from stepscope.report.text import format_bytes, format_duration, format_number, safe

Document = dict[str, Any]


class PointColumn(NamedTuple):
    """`cell` gives None where a point has no such value; a column without any is left out."""

    heading: str
    cell: Callable[[Document], str | None]


def format_small_number(value: float) -> str:
    """Three significant digits, for what may be very small."""
    return f"{value:,.0f}" if abs(value) >= 99.95 else f"{value:.3g}"


def half_interval(point: Document) -> str | None:
    """Half of the mean's 95% interval, as a share of it; None where it is not known."""
    mean, low, high = (point.get(key) for key in ("mean_ms", "mean_low_ms", "mean_high_ms"))
    if not mean or low is None or high is None:
        return None
    share = (high - low) / 2 / mean
    if share >= 1:
        return "±>100%"
    return f"±{share:.1%}" if share < 0.0995 else f"±{share:.0%}"


def speedup_text(point: Document) -> str | None:
    """`2.31× faster`; None for what others are compared with."""
    found = point.get("speedup")
    return f"{found['ratio']:.2f}× {found['verdict'].lower()}" if found else None


def format_interval(low: float | None, high: float | None) -> str:
    """`2.25–2.38`; empty where there is none."""
    return f"{low:.2f}–{high:.2f}" if low is not None and high is not None else ""


def noise_floor_sentence(floor: float) -> str:
    """The noise floor in a sentence."""
    share = f"{floor:.1%}" if floor < 1 else "above 100%"
    return f"noise floor {share}: what differs by less is not told apart"


def _value(key: str, show: Callable[[Any], str]) -> Callable[[Document], str | None]:
    def cell(point: Document) -> str | None:
        value = point.get(key)
        return None if value is None else show(value)

    return cell


def _column(heading: str, key: str, show: Callable[[Any], str] = format_number) -> PointColumn:
    return PointColumn(heading, _value(key, show))


def _share(value: float) -> str:
    return f"{value:.0%}" if value >= 0.095 else f"{value:.1%}"


_SAMPLES = _column("samples/s", "samples_per_s")
_INTERVAL = PointColumn("±", half_interval)

SPEED_COLUMNS = {
    "train": [
        _SAMPLES,
        _column("step ms", "mean_ms"),
        _INTERVAL,
        _column("p95", "p95_ms"),
    ],
    "infer": [
        _SAMPLES,
        _column("mean ms", "mean_ms"),
        _INTERVAL,
        _column("p50", "p50_ms"),
        _column("p95", "p95_ms"),
        _column("p99", "p99_ms"),
    ],
    "generate": [
        _column("tokens/s", "tokens_per_s"),
        _column("first token ms", "first_token_ms"),
        _column("token ms", "token_ms"),
        _INTERVAL,
    ],
}


def training_columns(points: list[Document]) -> list[PointColumn]:
    """What training came to, the score under its own name."""
    names = {point.get("score_name") for point in points if point.get("score_name")}
    score = safe(str(names.pop())).replace("_", " ") if len(names) == 1 else "score"
    return [
        _column("steps", "steps", lambda value: f"{value:,}"),
        _column("loss", "loss", lambda value: f"{value:.4g}"),
        _column(score, "score", lambda value: f"{value:.4f}"),
        _column("epoch", "epoch_s", format_duration),
        _column("to the score", "time_to_score_s", format_duration),
    ]


COST_COLUMNS = [
    _column("memory", "peak_memory_bytes", format_bytes),
    _column("GPU busy", "gpu_busy", _share),
    _column("GFLOP/s", "tflops_per_s", lambda value: format_small_number(value * 1e3)),
    _column("MFU", "mfu", _share),
    _column("J/sample", "energy_j_per_sample", format_small_number),
    _column("gCO2/M", "carbon_g_per_million", format_small_number),
    _column("cost/M", "cost_per_million", format_small_number),
    _column("first calls", "first_calls_s", format_duration),
]

PERCENTILES = {"train": [_column("p50", "p50_ms"), _column("p99", "p99_ms")]}

EXTRA_COLUMNS = [
    _column("std ms", "std_ms"),
    _column("batches/s", "batches_per_s"),
    _column("GFLOP/sample", "flops_per_sample", lambda value: format_small_number(value / 1e9)),
    _column("arithmetic", "arithmetic", safe),
    _column("clock", "clock", safe),
    _column("processes", "rounds", str),
]

SPEEDUP = PointColumn("speedup", speedup_text)


def columns_with_values(columns: list[PointColumn], points: list[Document]) -> list[PointColumn]:
    """Those that have a value for one of the points."""
    return [column for column in columns if any(column.cell(point) is not None for point in points)]


_STYLES = {"FASTER": "green", "SLOWER": "red"}
_MOST = 12  # lines before the tables begin


def answer_lines(document: Document) -> list[Text]:
    """What to read first."""
    every = group_points(document["points"])
    if not any(point["status"] == "ok" for group in every for point in group.points):
        return [Text("  nothing could be measured", "bold red")]
    fixes = document["request"].get("ablate") or []
    lines = [line for group in every for line in _group(group, list(fixes), len(every) > 1)]
    lines += _devices(every)
    if not lines:
        lines = _plain(every)
    if len(lines) > _MOST:
        left = len(lines) - _MOST
        lines = [*lines[:_MOST], Text(f"  … {left} more lines of this kind: --json", "dim")]
    return lines


def throughput_unit(point: Document) -> str:
    """What its speed counts."""
    return "tokens/s" if point["mode"] == "generate" else "samples/s"


def point_prefix(group: Group, batch: int | None, many: bool) -> str:
    """`resnet18 train on cuda, batch 32: `, as much of it as is needed; empty for the only one."""
    words = f"{safe(group.model)} {group.mode} on {group.device}" if many else ""
    if batch is not None and len(group.batches) > 1:
        words += f"{', ' if words else ''}batch {batch:,}"
    return f"{words}: " if words else ""


def _group(group: Group, fixes: list[str], many: bool) -> Iterator[Text]:
    if len(group.variants) > 1:
        for batch in group.batches:
            points = group.at(batch)
            yield _best(group, points, batch, many)
            if fixes:
                yield from _ablation(points, fixes)
            elif len(group.batches) == 1:
                yield from _variants(points)
    for words in sweep_words(group):
        yield Text(f"  {point_prefix(group, None, many)}{words}", "bold")


def _best(group: Group, points: list[Document], batch: int, many: bool) -> Text:
    found, base = best_point(points), safe(points[0]["variant"])
    head = f"  {point_prefix(group, batch, many)}"
    if points[0]["status"] != "ok":
        return Text(f"{head}{base} was not measured, so there is nothing to compare with", "yellow")
    if found is None:
        return Text(f"{head}nothing is faster than {base}, beyond the noise", "bold")
    gain = found["speedup"]
    limits = format_interval(gain["low"], gain["high"])
    rate = throughput(found)
    after = f": {format_number(rate)} {throughput_unit(found)}" if rate is not None else ""
    return Text(
        f"{head}{gain['ratio']:.2f}× as fast as {base}"
        f"{f' ({limits})' if limits else ''} with {safe(found['variant'])}{after}",
        "bold",
    )


def _variants(points: list[Document]) -> Iterator[Text]:
    compared = [point for point in points if point["status"] == "ok" and point["speedup"]]
    if len(compared) < 2:
        return
    for point in sorted(compared, key=lambda one: -one["speedup"]["ratio"]):
        gain = point["speedup"]
        yield Text.assemble(
            f"    {gain['ratio']:>5.2f}×  {format_interval(gain['low'], gain['high']):<11}  ",
            (f"{gain['verdict'].lower():<7}", _STYLES.get(gain["verdict"], "dim")),
            f"  {safe(point['variant'])}",
        )


def ablation_cell(point: Document | None) -> str:
    """A point's speedup; `~` where it is not beyond the noise."""
    if point is None or not point["speedup"]:
        return "–"
    gain = point["speedup"]
    return f"{gain['ratio']:.2f}×" + ("" if gain["verdict"] in _STYLES else "~")


def _ablation(points: list[Document], fixes: list[str]) -> Iterator[Text]:
    wide = max(len(fix) for fix in fixes)
    yield Text()
    yield Text(f"  {'':<{wide}}  {'alone':>9}  {'added':>9}  {'without it':>10}", "dim")
    for row in ablation_rows(points, fixes):
        cells = [ablation_cell(one) for one in (row.alone, row.added, row.without)]
        yield Text(f"  {safe(row.fix):<{wide}}  {cells[0]:>9}  {cells[1]:>9}  {cells[2]:>10}")
    yield Text(
        "  added: with those above it · without it: all the others · ~ within the noise", "dim"
    )


def _devices(every: list[Group]) -> Iterator[Text]:
    """The GPU against the CPU, where both were measured."""
    rates = {
        (group.model, group.mode, point["batch"], point["variant"], group.device): throughput(point)
        for group in every
        for point in group.points
        if point["status"] == "ok"
    }
    for (model, mode, batch, variant, device), rate in rates.items():
        slow = rates.get((model, mode, batch, variant, "cpu"))
        if device != "cpu" and rate and slow:
            with_ = f", {safe(variant)}" if variant != "none" else ""
            yield Text(
                f"  {safe(model)} {mode}, batch {batch:,}{with_}:"
                f" {device} does {format_number(rate / slow)}× what the cpu does",
                "bold",
            )


def _plain(every: list[Group]) -> list[Text]:
    """One variant and one batch each: the numbers themselves."""
    points = [point for group in every for point in group.points if point["status"] == "ok"]
    if len(points) == 1:
        return [_one(points[0])]
    lines = []
    for mode in dict.fromkeys(point["mode"] for point in points):
        rated = [
            point for point in points if point["mode"] == mode and throughput(point) is not None
        ]
        if rated:
            fastest = max(rated, key=lambda point: throughput(point) or 0.0)
            lines.append(
                Text(
                    f"  fastest in {mode}: {safe(fastest['model'])} on {fastest['device']},"
                    f" {format_number(throughput(fastest) or 0.0)} {throughput_unit(fastest)}"
                    f" at batch {fastest['batch']:,}",
                    "bold",
                )
            )
    return lines


def _one(point: Document) -> Text:
    rate, noun = throughput(point), {"train": "step", "infer": "call"}.get(point["mode"], "token")
    parts = [f"{format_number(rate)} {throughput_unit(point)}"] if rate is not None else []
    value = point.get("token_ms") if point["mode"] == "generate" else point.get("mean_ms")
    if value is not None:
        around = half_interval(point) or ""
        parts.append(f"{format_number(value)} ms per {noun} {around}".rstrip())
    if point.get("peak_memory_bytes") is not None:
        parts.append(f"peak {format_bytes(point['peak_memory_bytes'])}")
    if point.get("mfu") is not None:
        parts.append(f"MFU {point['mfu']:.0%}")
    return Text("  " + "   ".join(parts), "bold")
