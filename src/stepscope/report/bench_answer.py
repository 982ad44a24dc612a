"""The answer of a benchmark, in a few lines: what is fastest, what each variant is worth."""

from collections.abc import Iterator
from typing import Any

from rich.text import Text

from stepscope.report.bench_columns import interval, spread
from stepscope.report.bench_groups import Group, ablation, best, groups, speed
from stepscope.report.bench_sweep import sweep_words
from stepscope.report.text import milliseconds, safe, size

Document = dict[str, Any]

_STYLES = {"FASTER": "green", "SLOWER": "red"}
_MOST = 12  # lines before the tables begin


def answer_lines(document: Document) -> list[Text]:
    """What to read first."""
    every = groups(document["points"])
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


def unit(point: Document) -> str:
    """What its speed counts."""
    return "tokens/s" if point["mode"] == "generate" else "samples/s"


def where(group: Group, batch: int | None, many: bool) -> str:
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
        yield Text(f"  {where(group, None, many)}{words}", "bold")


def _best(group: Group, points: list[Document], batch: int, many: bool) -> Text:
    found, base = best(points), safe(points[0]["variant"])
    head = f"  {where(group, batch, many)}"
    if points[0]["status"] != "ok":
        return Text(f"{head}{base} was not measured, so there is nothing to compare with", "yellow")
    if found is None:
        return Text(f"{head}nothing is faster than {base}, beyond the noise", "bold")
    gain = found["speedup"]
    limits = interval(gain["low"], gain["high"])
    rate = speed(found)
    after = f": {milliseconds(rate)} {unit(found)}" if rate is not None else ""
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
            f"    {gain['ratio']:>5.2f}×  {interval(gain['low'], gain['high']):<11}  ",
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
    for row in ablation(points, fixes):
        cells = [ablation_cell(one) for one in (row.alone, row.added, row.without)]
        yield Text(f"  {safe(row.fix):<{wide}}  {cells[0]:>9}  {cells[1]:>9}  {cells[2]:>10}")
    yield Text(
        "  added: with those above it · without it: all the others · ~ within the noise", "dim"
    )


def _devices(every: list[Group]) -> Iterator[Text]:
    """The GPU against the CPU, where both were measured."""
    rates = {
        (group.model, group.mode, point["batch"], point["variant"], group.device): speed(point)
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
                f" {device} does {milliseconds(rate / slow)}× what the cpu does",
                "bold",
            )


def _plain(every: list[Group]) -> list[Text]:
    """One variant and one batch each: the numbers themselves."""
    points = [point for group in every for point in group.points if point["status"] == "ok"]
    if len(points) == 1:
        return [_one(points[0])]
    lines = []
    for mode in dict.fromkeys(point["mode"] for point in points):
        rated = [point for point in points if point["mode"] == mode and speed(point) is not None]
        if rated:
            fastest = max(rated, key=lambda point: speed(point) or 0.0)
            lines.append(
                Text(
                    f"  fastest in {mode}: {safe(fastest['model'])} on {fastest['device']},"
                    f" {milliseconds(speed(fastest) or 0.0)} {unit(fastest)}"
                    f" at batch {fastest['batch']:,}",
                    "bold",
                )
            )
    return lines


def _one(point: Document) -> Text:
    rate, noun = speed(point), {"train": "step", "infer": "call"}.get(point["mode"], "token")
    parts = [f"{milliseconds(rate)} {unit(point)}"] if rate is not None else []
    value = point.get("token_ms") if point["mode"] == "generate" else point.get("mean_ms")
    if value is not None:
        around = spread(point) or ""
        parts.append(f"{milliseconds(value)} ms per {noun} {around}".rstrip())
    if point.get("peak_memory_bytes") is not None:
        parts.append(f"peak {size(point['peak_memory_bytes'])}")
    if point.get("mfu") is not None:
        parts.append(f"MFU {point['mfu']:.0%}")
    return Text("  " + "   ".join(parts), "bold")
