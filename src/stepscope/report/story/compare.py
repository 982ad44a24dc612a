"""The story of a comparison: the verdict, what changed, kernel by kernel, and what else differs."""

from collections.abc import Sequence
from typing import Any

from stepscope.compare.kernels import KERNELS
from stepscope.report.story.blocks import (
    Axis,
    Block,
    Chart,
    Column,
    Facts,
    Missing,
    Paragraph,
    Section,
    Series,
    Story,
    Table,
)
from stepscope.report.story.phrases import PHASE_NAMES
from stepscope.report.text import format_bytes, format_number

Document = dict[str, Any]
_CHIEF = ("GPU", "driver", "processor", "torch", "Python")
_MOST = 10.0  # beyond, nobody counts
_STATES = {"identical": "losses identical", "close": "losses match"}


def headline(document: Document) -> str:
    """`+6.2% per step (5.1–7.4%, 95%)`; of several points that it is one of them."""
    count = len(document["items"])
    of = f", one of {count}" if count > 1 else ""
    return (
        f"{change_percent(document)} per {document['per']} ({interval_percent(document)}, 95%){of}"
    )


def side_name(side: Document) -> str:
    """`main`, or `main/1 and 4 more`."""
    first, *rest = side["names"]
    return f"{first} and {len(rest)} more" if rest else str(first)


def sentence(document: Document) -> str:
    """The verdict in one sentence."""
    return f"{document['verdict']}: {headline(document)}"


def change_percent(item: Document) -> str:
    """`+6.2%`: of the time of a step or sample."""
    return _percent(item["change"])


def interval_percent(item: Document) -> str:
    """`5.1–7.4%`, without signs where both ends have that of the change."""
    low, high = sorted((item["low"], item["high"]), key=abs)
    if low * high > 0 and abs(high) <= _MOST:
        return f"{_size(low).removesuffix('%')}–{_size(high)}"
    return f"{_percent(item['low'])} to {_percent(item['high'])}"


def exit_code_reason(document: Document) -> str:
    """`limit 5% → exit 1`; what the exit code is, and why."""
    code, limit = document["exit_code"], document["max_regression"]
    if limit is None:
        return f"strict → exit {code}" if document["strict"] else "no limit → exit 0"
    return f"limit {limit * 100:.3g}% → exit {code}"


def speed_change(item: Document) -> str:
    """`63.1 → 67.0 ms a step, 507 → 477 samples/s`."""
    told = f"{format_number(item['base_ms'])} → {format_number(item['other_ms'])} ms a step"
    ours, theirs = item["base_samples_per_s"], item["other_samples_per_s"]
    return told if not (ours and theirs) else f"{told}, {ours:,.0f} → {theirs:,.0f} samples/s"


def short_facts(document: Document) -> list[str]:
    """`memory +0.4 GiB`, `losses match`, `same GPU, driver, torch`: short, for one line."""
    found = [text for one in document["amounts"] if (text := amount_change(one))]
    if text := losses_text(document["losses"]):
        found.append(text)
    same = [name for name in _CHIEF if name in document["environment_same"]]
    return [*found, f"same {', '.join(same)}"] if same else found


def amount_change(one: Document) -> str | None:
    """What changed, and by how much; None where it hardly did."""
    base, other, name = one["base"], one["other"], one["name"]
    if abs(other - base) <= 0.01 * max(abs(base), abs(other)):
        return f"{name} the same" if name == "peak memory" else None
    if one["unit"] == "bytes":
        return f"{name} {'−' if other < base else '+'}{format_bytes(abs(other - base))}"
    if one["unit"] == "share":
        return f"{name} {base:.0%} → {other:.0%}"
    unit = f" {one['unit']}" if one["unit"] else ""
    if not unit:
        return f"{name} {base:,.0f} → {other:,.0f}"
    return f"{name} {base:,.3g} → {other:,.3g}{unit}"


def losses_text(found: Document | None) -> str | None:
    """None where neither side computed any."""
    if found is None:
        return None
    if found["state"] != "differ":
        return _STATES[found["state"]]
    told = f"losses differ from step {found['step']}"
    return f"{told}, as they do between runs of one side" if found["control"] == "differ" else told


def setting_changes(rows: Sequence[Document]) -> list[str]:
    """`loader num_workers 4 → 0`."""
    return [
        f"{one['what']} {setting_text(one['base'])} → {setting_text(one['other'])}" for one in rows
    ]


def setting_text(one: Any) -> str:
    """A setting as text."""
    return "none" if one is None else str(one)


def how_to_settle(document: Document) -> str | None:
    """What would make it clear; None where it is."""
    if document["verdict"] != "UNCLEAR":
        return None
    item = next(one for one in document["items"] if one["verdict"] == "UNCLEAR")
    few = min(item["base_processes"], item["other_processes"])
    if document["base"]["kind"] != "run" or few >= 10:
        return "more processes a side would tell"
    return f"more runs would tell: stepscope run --repeat {max(3, 2 * few)} … for each side"


def _percent(share: float) -> str:
    sign = "−" if share < 0 else "+"
    return f"over {sign}{_MOST:,.0%}" if abs(share) > _MOST else f"{sign}{_size(share)}"


def _size(share: float) -> str:
    """Without its sign."""
    value = min(abs(share), _MOST)
    return f"{value:.1%}" if value < 1 else f"{value:,.0%}"


def _ms_column(name: str) -> Column:
    return Column(name, "ms", number=True)


def _percent_column(name: str) -> Column:
    return Column(name, "%", number=True)


def comparison_story(document: Document) -> Story:
    """A whole report from the document of `compare`."""
    base, other = (side_name(document[side]) for side in ("base", "other"))
    sections = (
        _verdict(document),
        _step(document),
        _kernels(document["kernels"]),
        _settings(document),
    )
    return Story(
        title=f"{other} against {base}",
        verdict=sentence(document),
        subtitle=f"{document['other']['kind']} · {exit_code_reason(document)}",
        sections=tuple(part for part in sections if part.blocks),
        kind="comparison",
    )


def _verdict(document: Document) -> Section:
    blocks: list[Block] = [Paragraph(text, strong=True) for text in document["why"]]
    if told := short_facts(document):
        blocks.append(Paragraph(" · ".join(told)))
    blocks += [_speed_chart(document), _items(document)]
    notes = [*document["notes"], *filter(None, [how_to_settle(document)])]
    return Section("verdict", "Verdict", (*blocks, *map(Paragraph, notes)))


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
        Column("what"), _ms_column("base"), _ms_column("other"),
        _percent_column("change"), _percent_column("low"),
        _percent_column("high"), Column("verdict"),
        Column("processes"), _percent_column("noise floor"),
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
        Column(first), _ms_column("base"), _ms_column("other"), _ms_column("change"),
        _percent_column("share before"),
        _percent_column("share after"),
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
    whole = Paragraph(
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
        Column(unit.removesuffix("s")), _ms_column("difference"), Column("change"),
        _ms_column("before"), _ms_column("after"), Column("count before", number=True),
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
            (one["what"], setting_text(one["base"]), setting_text(one["other"]))
            for one in document[name]
        )
        if rows:
            columns = (Column("what"), Column("base"), Column("other"))
            blocks.append(Table(name, columns, rows, title))
    if document["environment_same"]:
        blocks.append(Facts((("the same on both sides", ", ".join(document["environment_same"])),)))
    return Section("settings", "What else differs", tuple(blocks))


def _name(key: str) -> str:
    return PHASE_NAMES.get(key, key.replace("_", " "))
