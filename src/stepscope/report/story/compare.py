"""The story of a comparison: the verdict, what changed, kernel by kernel, and what else differs."""

from collections.abc import Sequence
from typing import Any

from stepscope.compare.work import KERNELS
from stepscope.report import compare_words as words
from stepscope.report.names import PHASES
from stepscope.report.story.blocks import (
    Axis,
    Block,
    Chart,
    Column,
    Facts,
    Missing,
    Say,
    Section,
    Series,
    Story,
    Table,
)

Document = dict[str, Any]


def _ms(name: str) -> Column:
    return Column(name, "ms", number=True)


def _percent(name: str) -> Column:
    return Column(name, "%", number=True)


def comparison_story(document: Document) -> Story:
    """A whole report from the document of `compare`."""
    base, other = (words.names(document[side]) for side in ("base", "other"))
    sections = (
        _verdict(document),
        _step(document),
        _kernels(document["kernels"]),
        _settings(document),
    )
    return Story(
        title=f"{other} against {base}",
        verdict=words.sentence(document),
        subtitle=f"{document['other']['kind']} · {words.gate(document)}",
        sections=tuple(part for part in sections if part.blocks),
        kind="comparison",
    )


def _verdict(document: Document) -> Section:
    blocks: list[Block] = [Say(text, strong=True) for text in document["why"]]
    if told := words.facts(document):
        blocks.append(Say(" · ".join(told)))
    blocks += [_speed_chart(document), _items(document)]
    notes = [*document["notes"], *filter(None, [words.unclear(document)])]
    return Section("verdict", "Verdict", (*blocks, *map(Say, notes)))


def _speed_chart(document: Document) -> Chart:
    """The change of each item with its interval, in percent."""
    items = document["items"]
    labels = [item["label"] or f"per {item['per']}" for item in items]
    change, low, high = ([item[name] * 100 for item in items] for name in ("change", "low", "high"))
    series = Series("change", labels, change, low=low, high=high)
    title = "Change of the time, with its 95% interval"
    return Chart("change", "bars", title, (series,), Axis(), Axis("%"), across=True)


def _items(document: Document) -> Table:
    columns = (
        Column("what"), _ms("base"), _ms("other"),
        _percent("change"), _percent("low"),
        _percent("high"), Column("verdict"),
        Column("processes"), _percent("noise floor"),
    )  # fmt: skip
    rows = tuple(
        (
            item["label"] or f"per {item['per']}", item["base_ms"], item["other_ms"],
            *(item[name] * 100 for name in ("change", "low", "high")), item["verdict"],
            f"{item['base_processes']} and {item['other_processes']}", item["noise_floor"] * 100,
        )
        for item in document["items"]
    )  # fmt: skip
    return Table("items", columns, rows, "Speed")


def _step(document: Document) -> Section:
    blocks: list[Block] = []
    if document["phases"]:
        blocks += [
            _stacked(document["phases"]),
            _parts("phases", "phase", document["phases"], "Phases"),
        ]
    if document["idle"]:
        blocks.append(_parts("idle", "cause", document["idle"], "Why the device was idle"))
    if document["amounts"]:
        blocks.append(_amounts(document["amounts"]))
    return Section("step", "The step", tuple(blocks))


def _stacked(rows: Sequence[Document]) -> Chart:
    series = tuple(
        Series(_name(one["name"]), ["base", "other"], [one["base_ms"], one["other_ms"]])
        for one in rows
    )
    return Chart(
        "phases-chart", "stacked", "Where the time goes", series, Axis(), Axis("ms a step"),
        across=True,
    )  # fmt: skip


def _parts(name: str, first: str, rows: Sequence[Document], title: str) -> Table:
    columns = (
        Column(first), _ms("base"), _ms("other"), _ms("change"),
        _percent("share before"),
        _percent("share after"),
    )  # fmt: skip
    times, shares = ("base_ms", "other_ms", "delta_ms"), ("base_share", "other_share")
    cells = tuple(
        (
            _name(one["name"]), *(one[key] for key in times),
            *(one[key] * 100 for key in shares),
        )
        for one in rows
    )  # fmt: skip
    return Table(name, columns, cells, title)


def _amounts(rows: Sequence[Document]) -> Table:
    columns = (Column("what"), Column("unit"), *(Column(n, number=True) for n in ("base", "other")))
    cells = tuple(_amount(one) for one in rows)
    return Table("amounts", columns, cells, "Memory, energy and the GPU")


def _amount(one: Document) -> tuple[str, str, float, float]:
    """Bytes in MiB, shares in percent."""
    factor, unit = {"bytes": (2.0**-20, "MiB"), "share": (100.0, "%")}.get(
        one["unit"], (1.0, one["unit"])
    )
    return one["name"], unit, one["base"] * factor, one["other"] * factor


def _kernels(kernels: Document | None) -> Section:
    if kernels is None:
        how = "record a window on both sides, which stepscope run does unless told --no-window"
        missing = Missing("kernels are not compared: one side has no recorded window", how)
        return Section("kernels", "Kernel by kernel", (missing,))
    unit = kernels["unit"]
    whole = Say(
        f"A typical recorded step has {kernels['base_count']:,} → {kernels['other_count']:,} {unit}"
        f" ({kernels['new']:,} new, {kernels['gone']:,} gone), which take "
        f"{kernels['base_ms']:.4g} → {kernels['other_ms']:.4g} ms. The changes below add up."
    )
    return Section("kernels", "Kernel by kernel", (whole, _kernel_table(kernels)))


def _kernel_table(kernels: Document) -> Table:
    """Of a host the operators are the work itself: they have no column of their own."""
    unit = kernels["unit"]
    launched = unit == KERNELS
    columns = (
        Column(unit.removesuffix("s")), _ms("difference"), Column("change"),
        _ms("before"), _ms("after"), Column("count before", number=True),
        Column("count after", number=True), Column("phase"),
        *((Column("operator"),) if launched else ()), Column("in"),
    )  # fmt: skip
    kept = ("delta_ms", "change", "base_ms", "other_ms", "base_count", "other_count")
    cells = tuple(
        (
            row["name"], *(row[key] for key in kept), _name(row["phase"]),
            *((row["operator"],) if launched else ()), row["line"],
        )
        for row in kernels["rows"]
    )  # fmt: skip
    return Table("kernels", columns, cells)


def _settings(document: Document) -> Section:
    blocks: list[Block] = []
    for name, title in (("configuration", "Configuration"), ("environment", "Environment")):
        rows = tuple(
            (one["what"], words.value(one["base"]), words.value(one["other"]))
            for one in document[name]
        )
        if rows:
            columns = (Column("what"), Column("base"), Column("other"))
            blocks.append(Table(name, columns, rows, title))
    if document["environment_same"]:
        blocks.append(Facts((("the same on both sides", ", ".join(document["environment_same"])),)))
    return Section("settings", "What else differs", tuple(blocks))


def _name(key: str) -> str:
    return PHASES.get(key, key.replace("_", " "))
