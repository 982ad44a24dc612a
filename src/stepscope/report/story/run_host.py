"""The host's Python code, where it was sampled or recorded with stacks."""

from typing import Any

from stepscope.report.story.blocks import Block, Column, Missing, Section, Table
from stepscope.report.story.host import function_blocks
from stepscope.report.story.places import run_again, shown_place

Document = dict[str, Any]


def host_sections(document: Document) -> list[Section]:
    """Functions of the recorded steps, lines of the whole run."""
    stacks = document["timeline_stacks"] or {}
    blocks = function_blocks(stacks.get("host", {}).get("lines") or [], stacks.get("steps") or 1)
    code = document["host_code"]
    if code and code["lines"]:
        blocks.append(_sampled(code, document["run"]["program"]))
    else:
        what = "Python code was not sampled over the whole run."
        blocks.append(Missing(what, run_again(document, "--python")))
    return [Section("host", "Python on the host", tuple(blocks))]


def _sampled(code: Document, program: str) -> Block:
    columns = (
        Column("where"),
        Column("function"),
        Column("own", "s", number=True),
        Column("total", "s", number=True),
    )
    rows = tuple(
        (
            shown_place(line["file"], line["line"], program),
            line["function"],
            line["own_s"],
            line["cumulative_s"],
        )
        for line in code["lines"]
    )
    return Table("python", columns, rows, "Lines by sampled time")
