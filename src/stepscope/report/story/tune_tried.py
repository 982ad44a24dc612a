"""What a tune did not keep, and why."""

from typing import Any

from stepscope.report.story.blocks import Block, Column, Missing, Section, Table

Document = dict[str, Any]
_STATES = {
    "not_better": "not faster",
    "not_allowed": "not allowed",
    "unsettled": "not settled",
    "left_out": "not tried",
    "not_applicable": "not applicable",
    "out_of_memory": "out of memory",
    "timed_out": "timed out",
    "wrote_outside": "wrote outside its folder",
}


def rejected_section(document: Document) -> Section:
    """Fixes that were tried first, then those that were never worth a trial."""
    tried = [one for one in document["rejected"] if one["state"] != "left_out"]
    others = [one for one in document["rejected"] if one["state"] == "left_out"]
    blocks: list[Block] = []
    if tried:
        columns = (
            Column("fix"), Column("outcome"), Column("speedup", "×", number=True),
            Column("low", "×", number=True), Column("high", "×", number=True), Column("why"),
        )  # fmt: skip
        rows = tuple(
            (
                one["fix"], _STATES.get(one["state"], one["state"]), one["speedup"],
                one.get("low"), one.get("high"), one["why"],
            )
            for one in tried
        )  # fmt: skip
        blocks.append(Table("rejected", columns, rows, "Tried and not kept"))
    if others:
        cells = tuple((one["fix"], one["why"]) for one in others)
        blocks.append(Table("left-out", (Column("fix"), Column("why")), cells, "Not tried"))
    if document["untried"]:
        names = ", ".join(document["untried"])
        how = "stepscope tune --resume FOLDER --budget 30m goes on."
        blocks.append(Missing(f"It did not come to {names}.", how))
    return Section("rejected", "What was not kept", tuple(blocks))
