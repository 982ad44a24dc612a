"""The studies: the CPU against the GPU, and what saves memory."""

from math import nan
from typing import Any

from stepscope.report.render.terminal import bench_cpu_gpu, bench_memory
from stepscope.report.render.terminal.bench_cpu_gpu import waiting_words
from stepscope.report.render.terminal.bench_memory import explanations
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
from stepscope.report.story.series import MAX_POINTS

Document = dict[str, Any]
_ROLES = (("cpu", "CPU"), ("gpu", "GPU"))


def _cpu_gpu_sections(study: Document) -> list[Section]:
    """Those that have something to show."""
    made = [Section("devices", "Both devices", (_devices(study),))]
    if curves := _curves(study):
        made.append(Section("learning", "What both learn", tuple(curves)))
    if study["operators"]:
        blocks: list[Block] = [_operator_chart(study), _operators(study)]
        if words := waiting_words(study):
            blocks.append(Paragraph(f"{words[:1].upper()}{words[1:]}."))
        made.append(Section("operators", "Where the speedup comes from", tuple(blocks)))
    return made


def _devices(study: Document) -> Table:
    numbers = (
        ("samples_per_s", number_column("samples/s", digits=4)),
        ("mean_ms", number_column("step", "ms")),
        ("mean_low_ms", number_column("low", "ms")),
        ("mean_high_ms", number_column("high", "ms")),
        ("epoch_s", number_column("epoch", "s")),
        ("train_s", number_column("training", "s")),
        ("peak_memory_bytes", number_column("peak memory", "bytes", digits=12)),
        ("loss", number_column("loss", digits=4)),
        ("score", number_column(str(study["cpu"].get("score_name") or "score"), digits=4)),
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
    every = -(-len(points) // MAX_POINTS) or 1
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
        Column("operators"), number_column("CPU", "ms"), share_column("of the CPU's step"),
        number_column("GPU", "ms"), share_column("of the GPU's step"),
        number_column("speedup", "×"), number_column("possible", "×"), Column("why"),
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


def _memory_sections(study: Document) -> list[Section]:
    """Charts of memory and of the largest batch, and the table."""
    rows = study["rows"]
    names = [one["technique"] for one in rows]
    used = [
        one["peak_memory_bytes"] * 2.0**-20 if one["peak_memory_bytes"] else nan for one in rows
    ]
    largest = [one["largest_batch"] or nan for one in rows]
    charts = (
        Chart("memory", "bars", f"Peak memory at batch {study['batch']:,}",
              (Series("", names, used),), y=Axis("MiB"), across=True),
        Chart("largest", "bars", "Largest batch", (Series("", names, largest),),
              y=Axis("samples"), across=True),
    )  # fmt: skip
    told = tuple(Paragraph(f"{words[:1].upper()}{words[1:]}.") for words in explanations(study))
    return [Section("techniques", "What each technique saves", (*charts, _table(study), *told))]


def _table(study: Document) -> Table:
    columns = (
        Column("technique"), Column("fixes"), Column("peak memory", "MiB", number=True, digits=4),
        Column("of fp32", number=True, percent=True), Column("samples/s", number=True, digits=4),
        Column("largest batch", number=True), Column("calls a step", number=True),
        Column("samples/s there", number=True, digits=4), Column("limited by"), Column("outcome"),
    )  # fmt: skip
    rows = tuple(
        (
            one["technique"], ",".join(one["fixes"]),
            one["peak_memory_bytes"] * 2.0**-20 if one["peak_memory_bytes"] else None,
            one["of_first"], one["samples_per_s"], one["largest_batch"], one["accumulate"],
            one["largest_samples_per_s"], one["bound"], _outcome(one),
        )
        for one in study["rows"]
    )  # fmt: skip
    return Table("techniques", columns, rows)


def _outcome(one: Document) -> str:
    state = str(one["status"]).replace("_", " ")
    return f"{state}: {one['why']}" if one["why"] else state


_WORDS = {"cpu-gpu": bench_cpu_gpu, "memory": bench_memory}
_SECTIONS = {"cpu-gpu": _cpu_gpu_sections, "memory": _memory_sections}
_NAMES = {"cpu-gpu": "CPU against GPU", "memory": "memory"}


def study_title(study: Document) -> str:
    """`unet: CPU against GPU, batch 16`."""
    fixes = f", with {','.join(study['fixes'])}" if study.get("fixes") else ""
    return f"{study['model']}: {_NAMES[study['name']]}, batch {study['batch']:,}{fixes}"


def study_verdict(study: Document) -> str:
    """The first of its answers."""
    return _sentence(next(iter(_WORDS[study["name"]].answers(study)), "nothing was measured"))


def study_sections(study: Document) -> list[Section]:
    """The answers first."""
    told = [_sentence(words) for words in _WORDS[study["name"]].answers(study)]
    told += [str(note) for note in study["notes"]]
    summary = Section("summary", "At a glance", tuple(map(Paragraph, told)))
    return [summary, *_SECTIONS[study["name"]](study)]


def _sentence(words: str) -> str:
    """With a capital, unless a technique's name comes first."""
    first = words.partition(" ")[0]
    return f"{words if first.endswith(':') else words[:1].upper() + words[1:]}."
