"""Several ranks side by side: who spends time on what, and who makes the others wait."""

from collections import Counter, defaultdict
from dataclasses import dataclass, replace

import numpy as np

from stepscope.analyze.timeline.rankfacts import Call, Key, RankFacts, RankRow
from stepscope.record.timeline import Column

_NOTICEABLE = 0.1  # of the shortest: with less than this nobody was late
_UNEVEN = "all_to_all"  # ranks may send different amounts


@dataclass(frozen=True, slots=True)
class Lateness:
    """How often a rank came last to a collective, and the waiting that this cost the others."""

    rank: int
    last: int
    caused_ns: int
    waited_ns: int  # its own waiting for others


@dataclass(frozen=True, slots=True)
class Ranks:
    """The ranks present, compared; `skew` is the time between the first and the last to come.

    Clocks of different hosts differ, so arrivals are told by durations: all leave together, and
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


def compare_ranks(facts: list[RankFacts]) -> Ranks:
    """Compare what was recorded on several ranks."""
    notes: list[str] = []
    ranks = _numbered(facts, notes)
    world = max((f.world_size for f in facts if f.world_size is not None), default=None)
    missing = None if world is None else max(world - len(facts), 0)
    if missing:
        notes.append(f"{len(facts)} of {world} ranks are present; one of the others may be later.")
    if len({tuple(f.step_names) for f in facts}) > 1:
        facts = [_without_steps(f) for f in facts]
        notes.append("The ranks recorded different steps; collectives are matched by order alone.")
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
    return Ranks(
        rows=[replace(row, rank=r) for r, f in zip(ranks, facts, strict=True) for row in f.rows],
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


def _numbered(facts: list[RankFacts], notes: list[str]) -> list[int]:
    """Each recording's rank; their order where ranks were not recorded or are not distinct."""
    ranks = [fact.rank for fact in facts if fact.rank is not None]
    if len(set(ranks)) == len(facts):
        return ranks
    notes.append("Ranks are not recorded or occur twice; recordings are numbered as given.")
    return list(range(len(facts)))


def _without_steps(fact: RankFacts) -> RankFacts:
    """All collectives of a group in one row, whatever step they belong to."""
    joined: dict[Key, list[Call]] = defaultdict(list)
    for (group, _), calls in fact.calls.items():
        joined[group, ""] += calls
    return replace(fact, calls=dict(joined))


def _alike(members: list[list[Call]]) -> tuple[Column, int]:
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
