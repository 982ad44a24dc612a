"""The CPU against the GPU: speed, what both learn, and where the speedup comes from."""

from math import nan
from typing import Any

from stepscope.report.bench_study_cpu_gpu import waiting_words
from stepscope.report.story.bench_heads import number, share
from stepscope.report.story.blocks import (
    Axis,
    Block,
    Cell,
    Chart,
    Column,
    Say,
    Section,
    Series,
    Table,
)
from stepscope.report.story.thin import MOST

Document = dict[str, Any]
_ROLES = (("cpu", "CPU"), ("gpu", "GPU"))


def cpu_gpu_sections(study: Document) -> list[Section]:
    """Those that have something to show."""
    made = [Section("devices", "Both devices", (_devices(study),))]
    if curves := _curves(study):
        made.append(Section("learning", "What both learn", tuple(curves)))
    if study["operators"]:
        blocks: list[Block] = [_operator_chart(study), _operators(study)]
        if words := waiting_words(study):
            blocks.append(Say(f"{words[:1].upper()}{words[1:]}."))
        made.append(Section("operators", "Where the speedup comes from", tuple(blocks)))
    return made


def _devices(study: Document) -> Table:
    numbers = (
        ("samples_per_s", number("samples/s", digits=4)),
        ("mean_ms", number("step", "ms")),
        ("mean_low_ms", number("low", "ms")),
        ("mean_high_ms", number("high", "ms")),
        ("epoch_s", number("epoch", "s")),
        ("train_s", number("training", "s")),
        ("peak_memory_bytes", number("peak memory", "bytes", digits=12)),
        ("loss", number("loss", digits=4)),
        ("score", number(str(study["cpu"].get("score_name") or "score"), digits=4)),
        ("arithmetic", Column("in")),
    )
    columns = (Column(""), Column("device"), *(column for _, column in numbers))
    rows = tuple(
        (name, study[role].get("device_name"), *(study[role].get(key) for key, _ in numbers))
        for role, name in _ROLES
    )
    return Table("devices", columns, rows)


def _curves(study: Document) -> list[Chart]:
    found = study["curves"] or {"losses": [], "scores": []}
    made = []
    for key, title in (
        ("losses", "loss"),
        ("scores", str(study["cpu"].get("score_name") or "score")),
    ):
        points = _few(found[key])
        if len(points) < 2:
            continue
        at = [point["step"] for point in points]
        series = tuple(
            Series(name, at, [_or_nan(point[role]) for point in points]) for role, name in _ROLES
        )
        chart = Chart(key, "line", f"The {title} on both", series, Axis("step"), Axis(title))
        made.append(chart)
    return made


def _few(points: list[Document]) -> list[Document]:
    """Evenly apart, the last among them."""
    every = -(-len(points) // MOST) or 1
    return [*points[:-1][::every], *points[-1:]]


def _operator_chart(study: Document) -> Chart:
    rows = [one for one in study["operators"] if one["speedup"] is not None]
    kinds = [one["kind"] for one in rows]
    series = [Series("measured", kinds, [one["speedup"] for one in rows])]
    if any(one["possible"] is not None for one in rows):
        series.append(Series("possible", kinds, [_or_nan(one["possible"]) for one in rows]))
    title = "Speedup by kind of operator"
    return Chart(
        "operator-speedup", "bars", title, tuple(series), y=Axis("times as fast"), across=True
    )


def _operators(study: Document) -> Table:
    columns = (
        Column("operators"), number("CPU", "ms"), share("of the CPU's step"),
        number("GPU", "ms"), share("of the GPU's step"),
        number("speedup", "×"), number("possible", "×"), Column("why"),
    )  # fmt: skip
    keys = (
        "kind", "cpu_ms", "cpu_share", "gpu_ms", "gpu_share", "speedup", "possible", "why",
    )  # fmt: skip
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        tuple(one[key] for key in keys) for one in study["operators"]
    )
    return Table("operators", columns, rows)


def _or_nan(value: float | None) -> float:
    return nan if value is None else value
