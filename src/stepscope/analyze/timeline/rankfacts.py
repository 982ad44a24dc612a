"""What one rank's recording contributes to a comparison of ranks: little enough to send around."""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from stepscope.analyze.timeline.breakdown import break_down
from stepscope.analyze.timeline.communicates import communication_kernels
from stepscope.analyze.timeline.communication import launched_at, parameters
from stepscope.analyze.timeline.steps import Steps, find_steps
from stepscope.record.timeline import Timeline

# Kinds in which no rank is done before the last one has come.
_TOGETHER = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")

Key = tuple[str, str]
"""Process group ("" where it was not recorded) and step ("" where steps are not numbered)."""

Call = tuple[str, int | None, int]
"""A collective: kind, bytes, nanoseconds."""


@dataclass(frozen=True, slots=True)
class RankRow:
    """One rank on one device; shares are of its steps' time, None where no device worked."""

    rank: int | None
    source: str
    device: int | None
    steps: int
    step_mean_ns: float
    busy_share: float | None
    compute_share: float | None
    communication_share: float | None
    exposed_communication_share: float | None
    idle_share: float | None


@dataclass(frozen=True, slots=True)
class RankFacts:
    """One rank."""

    rank: int | None
    world_size: int | None
    source: str
    rows: list[RankRow]
    step_names: list[str]  # empty where the steps are not numbered by the program
    calls: dict[Key, list[Call]]  # in order of time


def rank_facts(timeline: Timeline, steps: Steps | None = None) -> RankFacts:
    """The facts of one rank."""
    steps = find_steps(timeline) if steps is None else steps
    names = [step.name for step in steps.steps] if steps.how == "ProfilerStep" else []
    return RankFacts(
        rank=timeline.rank,
        world_size=timeline.world_size,
        source=timeline.source,
        rows=_rows(timeline, steps),
        step_names=names,
        calls=_calls(timeline, steps, names),
    )


def _calls(timeline: Timeline, steps: Steps, names: list[str]) -> dict[Key, list[Call]]:
    events = np.flatnonzero(communication_kernels(timeline))
    codes, table = parameters(timeline, events)
    starts = np.array([step.start_ns for step in steps.steps], np.int64)
    step = np.searchsorted(starts, launched_at(timeline, events), "right") - 1
    length = timeline.device.duration[events]
    calls: dict[Key, list[Call]] = defaultdict(list)
    for code, at, ns in zip(codes.tolist(), step.tolist(), length.tolist(), strict=True):
        one = table[code]
        if one.kind in _TOGETHER:
            name = names[at] if names and at >= 0 else ""
            calls[one.group or "", name].append((one.kind, one.bytes, ns))
    return dict(calls)


def _rows(timeline: Timeline, steps: Steps) -> list[RankRow]:
    wall = steps.steps[-1].end_ns - steps.steps[0].start_ns
    mean = wall / len(steps.steps)
    rows = [
        RankRow(
            rank=timeline.rank,
            source=timeline.source,
            device=one.device,
            steps=len(steps.steps),
            step_mean_ns=mean,
            busy_share=1 - one.total.idle / wall,
            compute_share=one.total.compute / wall,
            communication_share=one.total.communication / wall,
            exposed_communication_share=one.total.exposed_communication / wall,
            idle_share=one.total.idle / wall,
        )
        for one in break_down(timeline, steps)
    ]
    nothing = RankRow(
        timeline.rank, timeline.source, None, len(steps.steps), mean, None, None, None, None, None
    )
    return rows or [nothing]
