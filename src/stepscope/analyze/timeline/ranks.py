"""Several ranks side by side: who spends time on what, and who makes the others wait."""

from collections import Counter, defaultdict
from dataclasses import dataclass, replace

import numpy as np
from msgspec import Struct, structs

from stepscope.analyze.timeline.communication import collective_parameters, launched_at
from stepscope.analyze.timeline.names import communication_kernels
from stepscope.analyze.timeline.steps import RecordedSteps, StepMark, break_down, find_steps
from stepscope.record.timeline import Column, Timeline

# Kinds in which no rank is done before the last one has come.
_SYNCHRONISING = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")

_CollectiveCall = tuple[str, int | None, int]  # A collective: kind, bytes, nanoseconds
_Calls = dict[tuple[str, str], list[_CollectiveCall]]
"""In order of time, by process group ("" where it was not recorded) and step ("" where steps are
not numbered)."""


class RankRow(Struct, frozen=True):
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
class _RankFacts:
    """One rank."""

    rank: int | None
    world_size: int | None
    source: str
    rows: list[RankRow]
    step_names: list[str]  # empty where the steps are not numbered by the program
    calls: _Calls


def rank_facts(timeline: Timeline) -> _RankFacts:
    """The facts of one rank."""
    steps = find_steps(timeline)
    names = [step.name for step in steps.steps] if steps.how is StepMark.PROFILER else []
    events = np.flatnonzero(communication_kernels(timeline))
    codes, table = collective_parameters(timeline, events)
    starts = np.array([step.start_ns for step in steps.steps], np.int64)
    step = np.searchsorted(starts, launched_at(timeline, events), "right") - 1
    length = timeline.device.duration[events]
    calls: _Calls = defaultdict(list)
    for code, at, ns in zip(codes.tolist(), step.tolist(), length.tolist(), strict=True):
        one = table[code]
        if one.kind in _SYNCHRONISING:
            name = names[at] if names and at >= 0 else ""
            calls[one.group or "", name].append((one.kind, one.bytes, ns))
    return _RankFacts(
        timeline.rank, timeline.world_size, timeline.source, _rows(timeline, steps), names, calls
    )


def _rows(timeline: Timeline, steps: RecordedSteps) -> list[RankRow]:
    wall = steps.steps[-1].end_ns - steps.steps[0].start_ns
    count = len(steps.steps)
    nothing = RankRow(timeline.rank, timeline.source, None, count, wall / count, *(None,) * 5)
    rows = [
        structs.replace(
            nothing,
            device=one.device,
            busy_share=1 - one.total.idle / wall,
            compute_share=one.total.compute / wall,
            communication_share=one.total.communication / wall,
            exposed_communication_share=one.total.exposed_communication / wall,
            idle_share=one.total.idle / wall,
        )
        for one in break_down(timeline, steps)
    ]
    return rows or [nothing]


_NOTICEABLE = 0.1  # of the shortest: with less than this nobody was late
_UNEVEN = "all_to_all"  # ranks may send different amounts


class Lateness(Struct, frozen=True):
    """How often a rank came last to a collective, and the waiting that this cost the others."""

    rank: int
    last: int
    caused_ns: int
    waited_ns: int  # its own waiting for others


class RankComparison(Struct, frozen=True):
    """The ranks present, compared; `skew` is the time between the first and the last to come.

    Clocks of different hosts differ, so arrivals follow from durations: all leave together, and
    the last to come stays for the shortest time.
    """

    rows: list[RankRow]
    world_size: int | None
    present: list[int]
    missing: int | None  # ranks without a recording; None: the number of ranks is not known
    matched: int  # collectives found alike on all the ranks present in their group
    unmatched: int  # found on some of them only, or not alike
    skew_mean_ns: float | None  # None where nothing matched
    skew_max_ns: int | None
    lateness: list[Lateness]  # who cost the others most comes first
    notes: list[str]  # a sentence each


def compare_ranks(facts: list[_RankFacts]) -> RankComparison:
    """Compare what was recorded on several ranks."""
    notes: list[str] = []
    ranks = _numbered(facts, notes)
    world = max((f.world_size for f in facts if f.world_size is not None), default=None)
    missing = None if world is None else max(world - len(facts), 0)
    if missing:
        notes.append(f"{len(facts)} of {world} ranks recorded; the slowest rank may be missing.")
    if len({tuple(f.step_names) for f in facts}) > 1:
        facts = [replace(f, calls=_without_steps(f.calls)) for f in facts]
        notes.append("The ranks recorded different steps; collectives are matched by order only.")
    last, caused, waited = Counter[int](), Counter[int](), Counter[int]()
    skews, unmatched = [np.zeros(0, np.int64)], 0
    for key in sorted({key for fact in facts for key in fact.calls}):
        members = [(r, f.calls[key]) for r, f in zip(ranks, facts, strict=True) if key in f.calls]
        durations, lost = _alike([calls for _, calls in members])
        unmatched += lost
        if not durations.size:
            continue
        waits, latest = durations - durations.min(axis=0), durations.argmin(axis=0)
        skews.append(waits.max(axis=0))
        noticed = skews[-1] > _NOTICEABLE * durations.min(axis=0)
        for row, (rank, _) in enumerate(members):
            mine = noticed & (latest == row)
            last[rank] += int(mine.sum())
            caused[rank] += int(waits[:, mine].sum())
            waited[rank] += int(waits[row, noticed].sum())
    skew = np.concatenate(skews)
    order = sorted(ranks, key=lambda rank: (-caused[rank], rank)) if len(skew) else []
    return RankComparison(
        rows=[
            structs.replace(row, rank=r)
            for r, f in zip(ranks, facts, strict=True)
            for row in f.rows
        ],
        world_size=world,
        present=sorted(ranks),
        missing=missing,
        matched=len(skew),
        unmatched=unmatched,
        skew_mean_ns=float(skew.mean()) if len(skew) else None,
        skew_max_ns=int(skew.max()) if len(skew) else None,
        lateness=[Lateness(rank, last[rank], caused[rank], waited[rank]) for rank in order],
        notes=notes,
    )


def _numbered(facts: list[_RankFacts], notes: list[str]) -> list[int]:
    """Each recording's rank; their order where ranks were not recorded or are not distinct."""
    ranks = [fact.rank for fact in facts if fact.rank is not None]
    if len(set(ranks)) == len(facts):
        return ranks
    notes.append("Ranks are missing or repeated; traces are numbered in the order given.")
    return list(range(len(facts)))


def _without_steps(calls: _Calls) -> _Calls:
    """All collectives of a group in one row, whatever step they belong to."""
    joined: _Calls = defaultdict(list)
    for (group, _), members in calls.items():
        joined[group, ""] += members
    return joined


def _alike(members: list[list[_CollectiveCall]]) -> tuple[Column, int]:
    """Durations, a row per rank and a column per collective, and how many do not match.

    The n-th of one rank belongs to the n-th of another, if kind and size agree; where ranks have
    different numbers of them, none can be told to belong together.
    """
    none, most = np.zeros((0, 0), np.int64), max(map(len, members))
    if len(members) < 2 or any(len(calls) != most for calls in members):
        return none, most
    alike = [
        column
        for column in zip(*members, strict=True)
        if len({(kind, None if kind == _UNEVEN else size) for kind, size, _ in column}) == 1
    ]
    durations = np.array([[ns for _, _, ns in column] for column in alike], np.int64)
    return durations.reshape(-1, len(members)).T, most - len(alike)
