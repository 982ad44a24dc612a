"""The device's time by category: as tiles with the kernels in them, and as bars."""

from collections import defaultdict
from typing import Any

from stepscope.report.story.blocks import Axis, Chart, Series
from stepscope.report.story.kernel_names import short_kernel

Document = dict[str, Any]
_TILES = 0.002  # of the device's time: smaller ones are one tile of their category


def category_treemap(analysed: Document) -> Chart:
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


def category_bars(analysed: Document) -> Chart:
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
