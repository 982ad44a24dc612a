"""A loader grid: the setting to use, then all that was measured."""

from math import nan
from typing import Any

from stepscope.report.story.blocks import (
    Axis,
    Block,
    Chart,
    Code,
    Column,
    Facts,
    Missing,
    Say,
    Section,
    Series,
    Table,
)
from stepscope.report.text import milliseconds, plural, size

Document = dict[str, Any]


def loader_verdict(loader: Document) -> str:
    """The setting to use, and what it is worth."""
    chosen, gain = loader["simplest"], loader["speedup"]
    if chosen is None:
        return "Nothing was measured."
    more = f", {gain['ratio']:.2f}× the default loader" if gain else ""
    rate = milliseconds(chosen["samples_per_s"])
    return f"Use {_setting(chosen)}: {rate} samples a second{more}."


def loader_sections(loader: Document, points: list[Document]) -> list[Section]:
    """What to write, throughput by workers, and the whole grid."""
    summary: list[Block] = [Facts(_dataset(loader))]
    if loader["line"]:
        summary += [Say("Write it so:"), Code(loader["line"], "python")]
    else:
        summary.append(Missing("No setting could be measured.", "The table below says why."))
    grid = Section("grid", "Every setting", (_chart(points), _table(points)))
    return [Section("summary", "At a glance", tuple(summary)), grid]


def _setting(point: Document) -> str:
    parts = [f"batch {point['batch']:,}", plural(point["workers"], "worker")]
    parts += ["pinned memory"] if point["pin"] else []
    parts += [f"prefetch {point['prefetch']}"] if point["prefetch"] not in (None, 2) else []
    return ", ".join(parts)


def _dataset(loader: Document) -> tuple[tuple[str, str], ...]:
    found, pairs = loader.get("dataset") or {}, []
    if found.get("kind"):
        pairs.append(("data set", str(found["kind"])))
    if found.get("samples") is not None:
        pairs.append(("samples", f"{found['samples']:,}"))
    if found.get("sample_bytes"):
        pairs.append(("size of a sample", size(found["sample_bytes"])))
    pairs.append(("usable cores", str(loader["usable_cores"])))
    for name in ("best", "simplest", "default"):
        if loader[name]:
            rate = milliseconds(loader[name]["samples_per_s"])
            pairs.append((name, f"{_setting(loader[name])}: {rate} samples/s"))
    return tuple(pairs)


def _chart(points: list[Document]) -> Chart:
    """The best of pinning and prefetching at each number of workers, a line per batch."""
    series = []
    for batch in dict.fromkeys(point["batch"] for point in points):
        rates: dict[int, float] = {}
        for point in points:
            rate = point["samples_per_s"]
            if point["batch"] == batch and rate is not None:
                rates[point["workers"]] = max(rate, rates.get(point["workers"], 0.0))
        at = sorted(rates)
        series.append(Series(f"batch {batch:,}", at, [rates.get(count, nan) for count in at]))
    note = "The best of pinning and prefetching at each."
    return Chart(
        "loader", "line", "Samples a second by number of workers", tuple(series),
        Axis("workers"), Axis("samples/s"), note=note,
    )  # fmt: skip


def _table(points: list[Document]) -> Table:
    columns = (
        Column("batch", number=True), Column("workers", number=True), Column("pinned"),
        Column("prefetch", number=True), Column("samples/s", number=True, digits=4),
        Column("first batch", "ms", number=True), Column("memory", "MiB", number=True, digits=4),
        Column("cores busy", number=True), Column("outcome"),
    )  # fmt: skip
    rows = tuple(
        (
            point["batch"], point["workers"], point["pin"], point["prefetch"],
            point["samples_per_s"], point["first_batch_ms"], _mib(point["peak_memory_bytes"]),
            point["cores"], _outcome(point),
        )
        for point in points
    )  # fmt: skip
    return Table("settings", columns, rows, shown=60)


def _mib(value: float | None) -> float | None:
    return None if value is None else value * 2.0**-20


def _outcome(point: Document) -> str:
    state = str(point["status"]).replace("_", " ")
    return f"{state}: {point['why']}" if point["why"] else state
