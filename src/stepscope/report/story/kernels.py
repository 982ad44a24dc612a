"""What ran on the device: kernels, their categories, operators and ceilings."""

from typing import Any

from stepscope.record.timeline import Timeline
from stepscope.report.story.blocks import Block, Missing, Say, Section
from stepscope.report.story.host import host_blocks
from stepscope.report.story.kernels_shares import category_bars, category_treemap
from stepscope.report.story.kernels_table import kernel_table
from stepscope.report.story.operators import operator_blocks
from stepscope.report.story.roofline import roofline_blocks
from stepscope.report.trace_words import remarks

Document = dict[str, Any]


def kernels_section(
    analysed: Document | None, timeline: Timeline | None, missing: Missing | None, how: str
) -> Section:
    """`missing`: said where nothing was recorded. `how`: a command that would record shapes."""
    if analysed is None:
        return Section("kernels", "Kernels", (missing,) if missing else ())
    if not analysed["kernels"]:
        nothing = Missing(
            "No kernels: the program computed on the CPU, or only the CPU was recorded.",
            "What the host did is below; stepscope doctor tells what this machine can record.",
        )
        return Section("kernels", "Operators", (nothing, *host_blocks(analysed)))
    blocks: list[Block] = [
        category_treemap(analysed),
        category_bars(analysed),
        kernel_table(analysed, timeline),
        *operator_blocks(analysed),
        *roofline_blocks(analysed, how),
        *(Say(f"{remark[:1].upper()}{remark[1:]}.") for remark in remarks(analysed)),
        *host_blocks(analysed),
    ]
    return Section("kernels", "Kernels", tuple(blocks))
