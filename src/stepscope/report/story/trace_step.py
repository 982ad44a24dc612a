"""A recorded step: what the device did in it, and each step beside the others."""

from typing import Any

from stepscope.report.names import WORK
from stepscope.report.story.blocks import Axis, Block, Chart, Missing, Section, Series
from stepscope.report.story.idle import idle_blocks
from stepscope.report.story.thin import MOST

Document = dict[str, Any]
_PARTS = WORK | {"idle": "idle"}
_HOW = "Record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"


def trace_step(document: Document) -> Section:
    """The section of a trace's steps."""
    parts, count = document["breakdown_ns"], document["steps"]["count"]
    blocks: list[Block] = []
    if parts["idle"] is None:
        what = "No device is in this recording: what follows is the host's."
        blocks += [Missing(what, f"{_HOW}, or use stepscope run."), _lengths(document)]
        return Section("step", "The step", tuple(blocks))
    series = tuple(
        Series(label, ["step"], [parts[key] / count / 1e6])
        for key, label in _PARTS.items()
        if parts[key]
    )
    blocks.append(
        Chart(
            "breakdown",
            "stacked",
            "What the GPU does in a step",
            series,
            y=Axis("ms"),
            across=True,
        )
    )
    if count > 1:
        blocks.append(_each(document))
    return Section("step", "The step", (*blocks, *idle_blocks(document)))


def _names(document: Document) -> list[str]:
    """Of the steps; numbered where the recording names several alike."""
    names = [str(step["name"]) for step in document["steps"]["each"][:MOST]]
    if len(set(names)) == len(names):
        return names
    return [f"{number}: {name}" for number, name in enumerate(names, start=1)]


def _each(document: Document) -> Chart:
    device = max(
        document["devices"],
        key=lambda one: one["breakdown_ns"]["wall"] - one["breakdown_ns"]["idle"],
    )
    steps = device["steps"][:MOST]
    series = tuple(
        Series(label, _names(document)[: len(steps)], [step[key] / 1e6 for step in steps])
        for key, label in _PARTS.items()
        if any(step[key] for step in steps)
    )
    return Chart("steps", "stacked", "Each step", series, y=Axis("ms"), note=_left(document))


def _lengths(document: Document) -> Chart:
    times = [(step["end_ns"] - step["start_ns"]) / 1e6 for step in document["steps"]["each"][:MOST]]
    series = Series("", _names(document), times)
    return Chart("steps", "bars", "Each step", (series,), y=Axis("ms"), note=_left(document))


def _left(document: Document) -> str:
    count = document["steps"]["count"]
    return f"The first {MOST:,} of {count:,}." if count > MOST else ""
