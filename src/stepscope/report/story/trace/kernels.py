"""What ran on the device: kernels, their categories, the operators that launched them, and short
remarks.
"""

import re
from collections import defaultdict
from typing import Any

import numpy as np

from stepscope.analyze.timeline.attribution import attribute
from stepscope.record.timeline import NOTHING, Timeline
from stepscope.record.units import capitalized, format_bytes, format_number
from stepscope.report.story.blocks import (
    Axis,
    Block,
    Cell,
    Chart,
    Column,
    Missing,
    Paragraph,
    Section,
    Series,
    Table,
    Weight,
    table_without_empty_columns,
)
from stepscope.report.story.series import MAX_POINTS
from stepscope.report.story.trace.recording import host_blocks
from stepscope.report.story.trace.roofline import roofline_blocks

Document = dict[str, Any]
_WORTH_SAYING = 1 << 16  # bytes copied a step


def trace_remarks(document: Document) -> list[str]:
    """Launches, copies, tensor cores, communication and the critical path, a sentence each."""
    return [
        *_launches(document),
        *_copies(document),
        *_tensor_cores(document),
        *_communication(document),
        *_critical_path(document),
    ]


def _launches(document: Document) -> list[str]:
    launch = document["launch"]
    if launch["shorter_than_launch"] is None:
        return []
    latency = launch["latency"]["p50_ns"] or 0
    return [
        f"launches: {launch['shorter_than_launch']:.0%} of kernels are shorter than their launch;"
        f" median launch latency {latency / 1e3:,.0f} µs"
    ]


def _copies(document: Document) -> list[str]:
    steps = document["steps"]["count"]
    return [
        f"{copy['direction']} copies ({copy['memory']}): {format_bytes(copy['bytes'] / steps)}"
        f" per step at {copy['bytes_per_s'] / 1e9:.1f} GB/s, {copy['overlapped']:.0%} overlapped"
        for copy in document["copies"]
        if copy["direction"] in ("HtoD", "DtoH")
        and copy["bytes_per_s"]
        and copy["bytes"] / steps >= _WORTH_SAYING
    ]


def _tensor_cores(document: Document) -> list[str]:
    cores = document["tensor_cores"]["matrix_share"]
    return [] if cores is None else [f"tensor cores do {cores:.0%} of the matrix work, by time"]


def _communication(document: Document) -> list[str]:
    talk, steps = document["communication"], document["steps"]["count"]
    if not talk or not talk["device_ns"]:
        return []
    return [
        f"communication: {format_number(talk['device_ns'] / steps / 1e6)} ms per step,"
        f" {talk['overlap_share'] or 0:.0%} overlapped with compute"
    ]


def _critical_path(document: Document) -> list[str]:
    path = document["critical_path"]
    if not path:
        return []
    shares = [f"{part['category']} {part['share']:.0%}" for part in path["by_category"][:2]]
    return [
        f"critical path: {path['device_ns'] / path['total_ns']:.0%} device,"
        f" {path['host_ns'] / path['total_ns']:.0%} host ({', '.join(shares)})"
    ]


_LONGEST = 60
_GENERIC = re.compile(r"(?i)(\w+_)?(elementwise|reduce|apply|device)?_?kernel\d?$")
_MEANT = re.compile(r"\b(cutlass_\w+|\w*Functor\w*|\w+_kernel_cuda|launch_\w+|\w+Ops?)\b")
"""What a kernel of a generic name was made for, in its types."""
_ANONYMOUS = "(anonymous namespace)::"


def short_kernel(name: str) -> str:
    """The function's own name, without its types and arguments; clipped where it is still long."""
    bare = _without_types(name.replace(_ANONYMOUS, "")).partition("(")[0].strip()
    last = bare.split(" ")[-1].rpartition("::")[2] if not _is_copy(name) else bare
    meant = _MEANT.search(name) if _GENERIC.match(last) else None
    shown = meant[1] if meant else last or name
    return shown if len(shown) <= _LONGEST else shown[: _LONGEST - 1] + "…"


def _is_copy(name: str) -> bool:
    """`Memcpy HtoD (Pageable -> Device)` and `Memset (Device)` are words."""
    return name.startswith(("Memcpy", "Memset"))


def _without_types(name: str) -> str:
    """What stands outside <…>; the whole name where the brackets do not match."""
    kept: list[str] = []
    depth = 0
    for letter in name:
        if letter == "<":
            depth += 1
        elif letter == ">":
            depth -= 1
            if depth < 0:
                return name
        elif not depth:
            kept.append(letter)
    return "".join(kept) if not depth else name


_TILES = 0.002  # of the device's time: smaller ones are one tile of their category


def _category_treemap(analysed: Document) -> Chart:
    """Categories with their kernels, in ms per step."""
    steps = analysed["steps"]["count"]
    total = sum(kernel["total_ns"] for kernel in analysed["kernels"]) or 1
    tiles: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for kernel in analysed["kernels"]:
        name = short_kernel(kernel["name"]) if kernel["total_ns"] >= _TILES * total else "others"
        tiles[str(kernel["category"])][name] += kernel["total_ns"]
    names, parents, values, texts = [], [], [], []
    for category, kernels in tiles.items():
        whole = sum(kernels.values())
        for name, parent, ns in (
            (category, "", whole),
            *((name, category, ns) for name, ns in kernels.items()),
        ):
            names.append(name)
            parents.append(parent)
            values.append(ns / steps / 1e6)
            texts.append(f"{ns / total:.1%}")
    series = Series("", names, values, text=texts, parents=parents)
    note = "Area is the device's time, in ms per step; kernels of one function are one tile."
    return Chart("kernel-tiles", "treemap", "The device's time", (series,), note=note)


def _category_bars(analysed: Document) -> Chart:
    """Each category's share of the device's time."""
    groups = analysed["by"]["category"]
    steps = analysed["steps"]["count"]
    series = Series(
        "",
        [str(group["name"]) for group in groups],
        [100 * group["share"] for group in groups],
        text=[
            f"{group['total_ns'] / steps / 1e6:,.3g} ms, {group['count'] / steps:,.0f} a step"
            for group in groups
        ],
    )
    return Chart(
        "kernel-categories",
        "bars",
        "Shares by category",
        (series,),
        y=Axis("% of the device's time"),
        across=True,
    )


_COLUMNS = (
    Column("kernel"),
    Column("category"),
    Column("operator"),
    Column("runs", "per step", number=True),
    Column("time", "ms per step", number=True),
    Column("share", number=True, percent=True),
    Column("mean", "µs", number=True),
    Column("longest", "µs", number=True),
    Column("bound by"),
    Column("of attainable", number=True, percent=True),
    Column("tensor cores"),
    Column("occupancy", number=True, percent=True),
)


def _kernel_table(analysed: Document, timeline: Timeline | None) -> Table:
    """Heaviest first; the lightest are left out where there are more than a table holds."""
    kernels = analysed["kernels"]
    launched = main_operators(timeline) if timeline is not None else {}
    rates = _rates(analysed)
    steps = analysed["steps"]["count"]
    rows = tuple(_row(one, steps, launched, rates) for one in kernels[:MAX_POINTS])
    note = " (what bounds them is that of the operator)" if rates else ""
    left = f", the heaviest {MAX_POINTS:,} of {len(kernels):,}" if len(kernels) > MAX_POINTS else ""
    return table_without_empty_columns("kernels", _COLUMNS, rows, f"Kernels{left}{note}")


def main_operators(timeline: Timeline) -> dict[str, str]:
    """By kernel, the operator that most of its time was launched by."""
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


def _rates(analysed: Document) -> dict[str, Document]:
    """By operator, its heaviest row of the roofline."""
    kinds = (analysed["roofline"] or {}).get("kinds", ())
    return {rate["name"]: rate for rate in sorted(kinds, key=lambda rate: rate["time_ns"])}


def _row(
    kernel: Document, steps: int, launched: dict[str, str], rates: dict[str, Document]
) -> tuple[Cell, ...]:
    operator = launched.get(kernel["name"])
    rate = rates.get(operator or "", {})
    share = rate.get("share")
    return (
        kernel["name"],
        kernel["category"],
        operator,
        kernel["count"] / steps,
        kernel["total_ns"] / steps / 1e6,
        kernel["share"],
        kernel["mean_ns"] / 1e3,
        kernel["max_ns"] / 1e3,
        rate.get("bound"),
        None if share is None else min(share, 1.0),
        kernel["tensor_core"],
        kernel["occupancy"],
    )


def _operator_blocks(analysed: Document) -> list[Block]:
    """The ten heaviest; nothing where the recording has no operators."""
    operators, steps = analysed["operators"], analysed["steps"]["count"]
    if not operators:
        return []
    names = [one["name"] for one in operators]
    device = Series("device", names, [one["device_ns"] / steps / 1e6 for one in operators])
    host = Series("host", names, [one["host_ns"] / steps / 1e6 for one in operators])
    chart = Chart(
        "operators",
        "bars",
        "The heaviest operators",
        (device, host),
        y=Axis("ms per step, recorded"),
        across=True,
    )
    columns = (
        Column("operator"),
        Column("calls", "per step", number=True),
        Column("kernels", "per step", number=True),
        Column("device", "ms per step", number=True),
        Column("share", number=True, percent=True),
        Column("host", "ms per step", number=True),
        Column("host alone", "ms per step", number=True),
    )
    rows = tuple(
        (
            one["name"],
            one["calls"] / steps,
            one["kernels"] / steps,
            one["device_ns"] / steps / 1e6,
            one["share"],
            one["host_ns"] / steps / 1e6,
            one["host_self_ns"] / steps / 1e6,
        )
        for one in operators
    )
    return [chart, Table("operators", columns, rows, "The heaviest operators")]


_MOSTLY = 0.5
_HEAVIEST = 6


def heaviest_table(analysed: Document) -> list[Block]:
    """What takes most time on the device, for a screen; on the host where there is no device."""
    steps = analysed["steps"]["count"]
    host = analysed["host"]
    if not analysed["kernels"]:
        if host is None or not host["operators"]:
            return []
        what, title = "operator", "What the host does"
        found = [(one["name"], one["self_ns"], None) for one in host["operators"]]
    elif sum(one["share"] for one in analysed["operators"]) < _MOSTLY:
        # Replayed from graphs, or recorded without operators.
        what, title = "kernel", "What the GPU does"
        found = [(one["name"], one["total_ns"], one["share"]) for one in analysed["kernels"]]
    else:
        what, title = "operator", "What the GPU does"
        found = [(one["name"], one["device_ns"], one["share"]) for one in analysed["operators"]]
    columns = (
        Column(what, clip=True),
        Column("time", "ms per step", number=True),
        Column("share", number=True, percent=True),
    )
    rows = tuple((name, ns / steps / 1e6, share) for name, ns, share in found[:_HEAVIEST])
    return [table_without_empty_columns("heaviest", columns, rows, title)]


def kernels_section(
    analysed: Document | None, timeline: Timeline | None, missing: Missing | None, how: str
) -> Section:
    """`missing`: said where nothing was recorded. `how`: a command that would record shapes."""
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
        _kernel_table(analysed, timeline),
        *_operator_blocks(analysed),
        *roofline_blocks(analysed, how),
        *(Paragraph(f"{capitalized(remark)}.") for remark in trace_remarks(analysed)),
        *host_blocks(analysed),
    ]
    return Section("kernels", "Kernels", tuple(blocks), Weight.DETAIL)
