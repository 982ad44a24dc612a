"""What ran on the device: kernels, categories, operators, the roofline, and short remarks."""

import re
from collections import defaultdict
from typing import Any

import numpy as np

from stepscope.analyze.timeline.attribution import attribute
from stepscope.record.timeline import NOTHING, Timeline
from stepscope.record.units import capitalized, format_bytes, format_number, format_rate
from stepscope.report.story.blocks import (
    Axis,
    Block,
    Chart,
    Column,
    Missing,
    Paragraph,
    Section,
    Series,
    Table,
    Weight,
    scaled,
)
from stepscope.report.story.series import MAX_POINTS
from stepscope.report.story.trace.recording import host_blocks
from stepscope.report.text import keep_start

Document = dict[str, Any]
_WORTH_SAYING = 1 << 16  # bytes copied per step


def trace_remarks(document: Document) -> list[str]:
    """Launches, copies, tensor cores, communication and the critical path, one sentence each."""
    steps, launch = document["steps"]["count"], document["launch"]
    found = []
    if launch["shorter_than_launch"] is not None:
        found.append(
            f"launches: {launch['shorter_than_launch']:.0%} of kernels are shorter than their"
            f" launch; median launch latency {(launch['latency']['p50_ns'] or 0) / 1e3:,.0f} µs"
        )
    found += [
        f"{copy['direction']} copies ({copy['memory']}): {format_bytes(copy['bytes'] / steps)}"
        f" per step at {copy['bytes_per_s'] / 1e9:.1f} GB/s, {copy['overlapped']:.0%} overlapped"
        for copy in document["copies"]
        if copy["direction"] in ("HtoD", "DtoH")
        and copy["bytes_per_s"]
        and copy["bytes"] / steps >= _WORTH_SAYING
    ]
    cores = document["tensor_cores"]["matrix_share"]
    if cores is not None:
        found.append(f"tensor cores do {cores:.0%} of the matrix work, by time")
    talk = document["communication"]
    if talk and talk["device_ns"]:
        found.append(
            f"communication: {format_number(talk['device_ns'] / steps / 1e6)} ms per step,"
            f" {talk['overlap_share'] or 0:.0%} overlapped with compute"
        )
    if path := document["critical_path"]:
        shares = [f"{part['category']} {part['share']:.0%}" for part in path["by_category"][:2]]
        found.append(
            f"critical path: {path['device_ns'] / path['total_ns']:.0%} device,"
            f" {path['host_ns'] / path['total_ns']:.0%} host ({', '.join(shares)})"
        )
    return found


_LONGEST = 60
_GENERIC = re.compile(r"(?i)(\w+_)?(elementwise|reduce|apply|device)?_?kernel\d?$")
_MEANT = re.compile(r"\b(cutlass_\w+|\w*Functor\w*|\w+_kernel_cuda|launch_\w+|\w+Ops?)\b")
"""What a generically named kernel computes, by its template types."""
_ANONYMOUS = "(anonymous namespace)::"


def short_kernel(name: str) -> str:
    """The function's bare name, without types and arguments; clipped if still long."""
    bare = _without_types(name.replace(_ANONYMOUS, "")).partition("(")[0].strip()
    # `Memcpy HtoD (Pageable -> Device)` and `Memset (Device)` are words.
    is_copy = name.startswith(("Memcpy", "Memset"))
    last = bare if is_copy else bare.split(" ")[-1].rpartition("::")[2]
    meant = _MEANT.search(name) if _GENERIC.match(last) else None
    return keep_start(meant[1] if meant else last or name, _LONGEST)


def _without_types(name: str) -> str:
    """The name outside <…>; the whole name if brackets do not match."""
    kept: list[str] = []
    depth = 0
    for letter in name:
        depth += (letter == "<") - (letter == ">")
        if depth < 0:
            return name
        if not depth and letter != ">":
            kept.append(letter)
    return "".join(kept) if not depth else name


_TILES = 0.002  # of device time: smaller kernels share one tile per category


def _category_treemap(analysed: Document) -> Chart:
    """Categories with their kernels, in ms per step."""
    steps = analysed["steps"]["count"]
    total = sum(kernel["total_ns"] for kernel in analysed["kernels"]) or 1
    tiles: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for kernel in analysed["kernels"]:
        name = short_kernel(kernel["name"]) if kernel["total_ns"] >= _TILES * total else "others"
        tiles[str(kernel["category"])][name] += kernel["total_ns"]
    rows: list[tuple[str, str, int]] = []
    for category, kernels in tiles.items():
        rows.append((category, "", sum(kernels.values())))
        rows += [(name, category, ns) for name, ns in kernels.items()]
    names, parents = [name for name, _, _ in rows], [parent for _, parent, _ in rows]
    values, texts = [ns / steps / 1e6 for *_, ns in rows], [f"{ns / total:.1%}" for *_, ns in rows]
    series = Series("", names, values, text=texts, parents=parents)
    note = "Area is device time in ms per step; kernels of one function share a tile."
    return Chart("kernel-tiles", "treemap", "Device time", (series,), note=note)


def _category_bars(analysed: Document) -> Chart:
    groups, steps = analysed["by"]["category"], analysed["steps"]["count"]
    names = [str(group["name"]) for group in groups]
    shares = [100 * group["share"] for group in groups]
    texts = [
        f"{group['total_ns'] / steps / 1e6:,.3g} ms, {group['count'] / steps:,.0f} a step"
        for group in groups
    ]
    series, unit = Series("", names, shares, text=texts), "% of device time"
    return Chart.bars("kernel-categories", "Shares by category", series, unit=unit)


def _kernel_table(analysed: Document, timeline: Timeline | None) -> list[Table]:
    """Heaviest first; the lightest are dropped if there are too many for a table."""
    kernels, steps = analysed["kernels"], analysed["steps"]["count"]
    operators = _main_operators(timeline) if timeline is not None else {}
    kinds = (analysed["roofline"] or {}).get("kinds", ())
    # By operator, its heaviest row of the roofline.
    ordered = sorted(kinds, key=lambda rate: rate["time_ns"])
    rates: dict[str, Document] = {rate["name"]: rate for rate in ordered}

    def rate_of(kernel: Document) -> Document:
        return rates.get(operators.get(kernel["name"], ""), {})

    note = " (bounds are those of the operator)" if rates else ""
    left = f", the heaviest {MAX_POINTS:,} of {len(kernels):,}" if len(kernels) > MAX_POINTS else ""
    return Table.known(
        "kernels",
        f"Kernels{left}{note}",
        kernels[:MAX_POINTS],
        (Column("kernel"), lambda one: one["name"]),
        (Column("category"), lambda one: one["category"]),
        (Column("operator"), lambda one: operators.get(one["name"])),
        (Column.numeric("runs", "per step"), lambda one: one["count"] / steps),
        (Column.numeric("time", "ms per step"), lambda one: one["total_ns"] / steps / 1e6),
        (Column.share("share"), lambda one: one["share"]),
        (Column.numeric("mean", "µs"), lambda one: one["mean_ns"] / 1e3),
        (Column.numeric("longest", "µs"), lambda one: one["max_ns"] / 1e3),
        (Column("bound by"), lambda one: rate_of(one).get("bound")),
        (Column.share("of attainable"), lambda one: at_most_all(rate_of(one).get("share"))),
        (Column("tensor cores"), lambda one: one["tensor_core"]),
        (Column.share("occupancy"), lambda one: one["occupancy"]),
    )


def _main_operators(timeline: Timeline) -> dict[str, str]:
    """For each kernel, the operator that launched most of its time."""
    device, host = timeline.device, timeline.host
    if not len(device) or not len(host):
        return {}
    operator = np.append(host.name, np.int32(NOTHING))[attribute(timeline).operator]
    known = operator != NOTHING
    pairs = np.stack((device.name[known], operator[known]))
    if not pairs.size:
        return {}
    keys, which = np.unique(pairs, axis=1, return_inverse=True)
    time = np.bincount(which.ravel(), device.duration[known])
    ordered = keys[:, np.argsort(time, kind="stable")].T.tolist()
    return {timeline.names[kernel]: timeline.names[name] for kernel, name in ordered}


def _operator_blocks(analysed: Document) -> list[Block]:
    """The ten heaviest; nothing if the recording has no operators."""
    operators, steps = analysed["operators"], analysed["steps"]["count"]
    if not operators:
        return []
    names, title, unit = [one["name"] for one in operators], "The heaviest operators", "ms per step"
    device = Series("device", names, [one["device_ns"] / steps / 1e6 for one in operators])
    host = Series("host", names, [one["host_ns"] / steps / 1e6 for one in operators])
    return [
        Chart.bars("operators", title, device, host, unit=f"{unit}, recorded"),
        *Table.known(
            "operators",
            title,
            operators,
            (Column("operator"), lambda one: one["name"]),
            (Column.numeric("calls", "per step"), lambda one: one["calls"] / steps),
            (Column.numeric("kernels", "per step"), lambda one: one["kernels"] / steps),
            (Column.numeric("device", unit), lambda one: one["device_ns"] / steps / 1e6),
            (Column.share("share"), lambda one: one["share"]),
            (Column.numeric("host", unit), lambda one: one["host_ns"] / steps / 1e6),
            (Column.numeric("host alone", unit), lambda one: one["host_self_ns"] / steps / 1e6),
        ),
    ]


_MOSTLY = 0.5
_HEAVIEST = 6


def heaviest_table(analysed: Document) -> list[Table]:
    """What takes most time on the device, or on the host without a device, for a screen."""
    steps = analysed["steps"]["count"]
    if not analysed["kernels"]:
        what, title = "operator", "What the host does"
        operators = (analysed["host"] or {}).get("operators", ())
        found = [(one["name"], one["self_ns"], None) for one in operators]
    elif sum(one["share"] for one in analysed["operators"]) < _MOSTLY:
        # Replayed from graphs, or recorded without operators.
        what, title = "kernel", "What the GPU does"
        found = [(one["name"], one["total_ns"], one["share"]) for one in analysed["kernels"]]
    else:
        what, title = "operator", "What the GPU does"
        found = [(one["name"], one["device_ns"], one["share"]) for one in analysed["operators"]]
    return Table.known(
        "heaviest",
        title,
        found[:_HEAVIEST],
        (Column(what, clip=True), lambda one: one[0]),
        (Column.numeric("time", "ms per step"), lambda one: one[1] / steps / 1e6),
        (Column.share("share"), lambda one: one[2]),
    )


_DRAWN = 0.001  # of total time: less would only stretch the axes
_COMPUTES = 1e-6  # of the highest rate: slower operators hardly compute


def _roofline_blocks(analysed: Document, how: str) -> list[Block]:
    """`how`: what records the shapes that this needs."""
    found = analysed["roofline"]
    if found is None:
        return [Missing("No roofline: the recording has no operator shapes.", how)]
    if found["ceilings"] is None:
        how = "Run stepscope doctor on the machine that has it."
        return [Missing("This device's ceilings were not measured.", how), *_rates(found)]
    blocks: list[Block] = []
    # Operators that can be drawn and take enough time.
    least = _DRAWN * sum(one["time_ns"] for one in found["kinds"])
    slowest = _COMPUTES * max((one["flops_per_s"] or 0.0 for one in found["kinds"]), default=0.0)
    points = [
        one
        for one in found["kinds"]
        if one["intensity"] and (one["flops_per_s"] or 0.0) > slowest and one["time_ns"] >= least
    ]
    if points:
        blocks.append(_roofline_chart(found, points))
    step = found["step"]
    if step["mfu"] is not None:
        share = step["ceiling_share"]
        ceiling = "" if share is None else f", {share:.1%} of ceilings"
        words = f"A step is {format_rate(step['model_flops'], 'FLOPs')} of products"
        told = f"{words}: MFU {step['mfu']:.1%} of the datasheet's peak{ceiling}."
        blocks.append(Paragraph(told))
    return [*blocks, *_rates(found)]


def _roofline_chart(found: Document, points: list[Document]) -> Chart:
    """Log-log; a point below its ceiling has room to improve."""
    ceilings = found["ceilings"]
    low = min(one["intensity"] for one in points) / 2
    high = max(one["intensity"] for one in points) * 2
    used = {one["dtype"] for one in points}
    series = []
    for bound in ("compute", "memory", "launch", None):
        chosen = [one for one in points if one["bound"] == bound][:MAX_POINTS]
        texts = []
        for one in chosen:
            share = at_most_all(one["share"])
            of = "" if share is None else f", {share:.0%} of attainable"
            texts.append(f"{one['name']} {one['dtype']}{of}")
        if chosen:
            cloud = Series(
                f"{bound}-bound" if bound else "bound unknown",
                [one["intensity"] for one in chosen],
                [one["flops_per_s"] / 1e12 for one in chosen],
                text=texts,
                size=[float(one["time_ns"]) for one in chosen],
            )
            series.append(cloud)
    for dtype, flops in ceilings["flops_per_s"].items():
        if dtype in used:
            series.append(_ceiling(dtype, flops, ceilings["bytes_per_s"], low, high))
    share = found["known_share"]
    seen = "" if share is None else f" They cover {share:.0%} of the device's computing time."
    memory = format_rate(ceilings["bytes_per_s"], "B/s")
    source = {"measured": "measured", "datasheet": "the datasheet's"}[ceilings["source"]]
    area = "Area is time; operators below 0.1% of it, or with few FLOPs, are in the table."
    note = f"Ceilings are {source}; memory {memory}. {area}{seen}"
    axes = (Axis("FLOPs per byte", log=True), Axis("TFLOP/s", log=True))
    return Chart("roofline", "scatter", "Roofline", tuple(series), *axes, note=note)


def _ceiling(dtype: str, flops: float, memory: float, low: float, high: float) -> Series:
    """A roofline: rising at the memory rate, then flat at the arithmetic rate."""
    ridge = flops / memory
    corners = [x for x in (low, ridge, max(high, ridge * 2)) if x >= low]
    heights = [min(flops, memory * x) / 1e12 for x in corners]
    return Series(f"{dtype}: {format_rate(flops, 'FLOP/s')}", corners, heights, line=True)


def _rates(found: Document) -> list[Table]:
    steps = found["step"]["steps"]
    return Table.known(
        "roofline",
        "Operators against the ceilings",
        found["kinds"][:MAX_POINTS],
        (Column("operator"), lambda one: one["name"]),
        (Column("dtype"), lambda one: one["dtype"]),
        (Column.numeric("calls", "per step"), lambda one: one["calls"] / steps),
        (Column.numeric("time", "ms per step"), lambda one: one["time_ns"] / steps / 1e6),
        (Column.numeric("intensity", "FLOPs per byte"), lambda one: one["intensity"]),
        (Column.numeric("arithmetic", "TFLOP/s"), lambda one: scaled(one["flops_per_s"], 1e-12)),
        (Column.numeric("memory", "GB/s"), lambda one: scaled(one["bytes_per_s"], 1e-9)),
        (Column("bound by"), lambda one: one["bound"]),
        (Column.share("of attainable"), lambda one: at_most_all(one["share"])),
    )


def at_most_all(share: float | None) -> float | None:
    """A share of the attainable rate, capped at 1: counted FLOPs may give slightly more."""
    return None if share is None else min(share, 1.0)


def kernels_section(
    analysed: Document | None, timeline: Timeline | None, missing: Missing | None, how: str
) -> Section:
    """`missing`: shown if nothing was recorded. `how`: a command that would record shapes."""
    if analysed is None:
        return Section("kernels", "Kernels", (missing,) if missing else (), Weight.DETAIL)
    if not analysed["kernels"]:
        nothing = Missing(
            "No kernels: the program ran on the CPU, or only the CPU was recorded.",
            "stepscope doctor shows what this machine can record.",
        )
        return Section("kernels", "Operators", (nothing, *host_blocks(analysed)), Weight.DETAIL)
    blocks: list[Block] = [
        _category_treemap(analysed),
        _category_bars(analysed),
        *_kernel_table(analysed, timeline),
        *_operator_blocks(analysed),
        *_roofline_blocks(analysed, how),
        *(Paragraph(f"{capitalized(remark)}.") for remark in trace_remarks(analysed)),
        *host_blocks(analysed),
    ]
    return Section("kernels", "Kernels", tuple(blocks), Weight.DETAIL)
