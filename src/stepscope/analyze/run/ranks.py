"""A run's ranks side by side: who waits for whom, since which step, and why.

Ranks meet in collectives and at the end of a backward. Each says when its own part was done and
when it left; the n-th meeting of one rank is the n-th of the others. Until the last rank has come a
rank waits for others, after that it communicates; the rest of a step is its own work. All of that
is on the clock that processes of one machine share, as the host saw it: where collectives run on
the device, the host does not wait in them, and neither is seen.

A rank is late whose own work takes longer than that of every other rank, in nearly all stretches of
the run, by more than these differ among each other.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from msgspec import Struct

from stepscope.analyze.run import sites
from stepscope.analyze.run.document import (
    Collectives,
    LastMeeting,
    RankState,
    RankTimes,
    Straggler,
    StragglerCause,
)
from stepscope.analyze.run.records import RankRecords, RunRecords
from stepscope.analyze.run.steps import Rows, Steps, charge_waits, mean_host_phases
from stepscope.record.errors import BrokenRun
from stepscope.record.facts import ConfigFact, EndFact, RankFact, SiteFact, SiteKind, WorkersFact
from stepscope.record.finding import Place
from stepscope.record.row_log import MeetingKind
from stepscope.stats.series import Bools, Floats, warmup_length

_LEAST_LATE = 0.05  # of the step
_COMPARED_LOSSES, _FEWEST_LOSSES = 32, 6  # steps; different values among them
_STRETCHES = 10, 5  # of the run, that are compared
_FEWEST_STEPS = 20
_FEWEST_UNSAMPLED = 30
"""With fewer steps, those count in which the host's code was sampled, which slows them a little."""
_MOST_LATE = 0.8  # of the stretches
_CLEAR = 3.5  # standard errors of its lateness,
_CLEAR_SINCE = 6.0  # and of one that begins at a step that was chosen to make it large
_SUDDEN = 0.5  # of its lateness, at most, may have been there before it began
_MOST_RANKS = 1 << 16
_MS = 1e6


class RankGroup(Struct, frozen=True):
    """What all ranks of a run show together; empty for a program of one process."""

    ranks: list[RankTimes] = []
    straggler: Straggler | None = None
    collectives: list[Collectives] = []
    same_data: bool | None = None


@dataclass
class _Rank:
    """One rank's steps and meetings."""

    records: RankRecords
    fact: RankFact | None
    steps: Steps
    meetings: Rows
    waits: Floats
    """Of each meeting: from its own arrival to the last rank's; ns, as all here."""
    shared: Floats
    """… and from then until it left. NaN where other ranks' meetings are not known."""

    @property
    def step_of(self) -> Any:
        """The step of each meeting; as many as there are steps, for those after the last."""
        return np.searchsorted(self.steps.end, self.meetings["left_ns"])

    def per_step(self, values: Floats) -> Floats:
        """What these values of its meetings add up to in each step."""
        count = len(self.steps)
        at, known = self.step_of, np.nan_to_num(values)
        inside = (at < count) & (self.meetings["left_ns"] > 0)
        return np.bincount(at[inside], known[inside], minlength=count).astype(float)

    @property
    def disturbed(self) -> Bools:
        """Steps in which we recorded kernels or looked at settings."""
        rows, steps = self.records.rows, self.steps
        at = np.searchsorted(steps.end, rows["end_ns"][rows["observer_ns"] > 0])
        found = steps.in_window.copy() if steps.waited is None else steps.waited.copy()
        found[at[at < len(found)]] = True
        return found

    @property
    def whole(self) -> Floats:
        """From the end of one step to the end of the next, with all that lies between them."""
        end = self.steps.end
        found = np.diff(end, prepend=end[0] - self.steps.duration[0])
        return np.maximum(found, self.steps.duration)

    @property
    def own(self) -> Floats:
        """Its own work in each step."""
        return self.whole - self.per_step(self.waits) - self.per_step(self.shared)


def study_ranks(records: RunRecords) -> RankGroup:
    """Compare a run's ranks."""
    if not records.ranks:
        return RankGroup()
    found = [_read(one) for one in records.ranks]
    ranks = [one for one in found if one is not None]
    _match(ranks)
    first = records.run.warmup
    if first is None:
        steps = records.steps
        first = warmup_length(steps.done()[~steps.in_window])
    use = _measured(ranks, first)
    missing = _missing(records, ranks)
    rows = [
        _unread(one) if rank is None else _times(rank, use, records.in_use)
        for one, rank in zip(records.ranks, found, strict=True)
    ]
    met = [rank for rank in ranks if len(rank.meetings) and len(rank.steps)]
    return RankGroup(
        ranks=sorted([*rows, *missing], key=lambda row: row.rank),
        straggler=_straggler(met, use) if len(met) > 1 else None,
        collectives=list(_collectives(met, use)) if len(met) > 1 else [],
        same_data=_same_data(met),
    )


def _same_data(ranks: Sequence[_Rank]) -> bool | None:
    """DDP keeps the parameters of all ranks equal: where their losses are, too, step after step to
    the last bit, their batches are. None: another parallelism, or too few losses."""
    configs = [rank.records.facts.last(ConfigFact) for rank in ranks]
    if not all(any(one.ddp for one in (config.models if config else ())) for config in configs):
        return None
    count = min((len(rank.steps) for rank in ranks), default=0)
    losses = np.array([rank.steps.loss[: min(count, _COMPARED_LOSSES)] for rank in ranks])
    known = losses[:, np.isfinite(losses).all(axis=0)] if losses.size else losses
    if len(ranks) < 2 or len({*known[0].tolist()}) < _FEWEST_LOSSES:
        return None
    return bool((known == known[0]).all())


def observed_pids(records: RunRecords) -> set[str]:
    """Processes that are ranks, and their loaders' workers."""
    found: set[str] = set()
    for one in records.ranks:
        with suppress(BrokenRun):
            found |= {str(fact.pid) for fact in one.facts.all(RankFact)}
            found |= {str(pid) for fact in one.facts.all(WorkersFact) for pid in fact.pids}
    return found


def _read(one: RankRecords) -> _Rank | None:
    """None: its folder is damaged."""
    with suppress(BrokenRun):
        meetings = one.meetings
        if meetings.size:
            known = np.isin(meetings["kind"], [*MeetingKind])
            meetings = meetings[known & (meetings["begun_ns"] > 0)]
            closed = meetings["left_ns"] > 0
            arrived = np.where(meetings["arrived_ns"] > 0, meetings["arrived_ns"], np.inf)
            meetings["arrived_ns"] = np.where(
                closed, np.minimum(arrived, meetings["left_ns"]), meetings["arrived_ns"]
            )
        unknown = np.full(len(meetings), np.nan)
        fact = one.facts.last(RankFact)
        return _Rank(one, fact, one.steps, meetings, unknown, unknown.copy())
    return None


def _match(ranks: Sequence[_Rank]) -> None:
    """Work out what each rank waited in each meeting. Where ranks that all came to the end met
    different numbers of times, none can be told to belong together."""
    keys = {
        (kind, group)
        for rank in ranks
        if len(rank.meetings)
        for kind, group in zip(rank.meetings["kind"], rank.meetings["group"], strict=True)
    }
    for kind, group in keys:
        places = {
            number: np.flatnonzero(
                (rank.meetings["kind"] == kind)
                & (rank.meetings["group"] == group)
                & (rank.meetings["left_ns"] > 0)
            )
            for number, rank in enumerate(ranks)
            if len(rank.meetings)
        }
        places = {number: at for number, at in places.items() if len(at)}
        counts = {len(at) for at in places.values()}
        ended = all(ranks[n].records.facts.last(EndFact) is not None for n in places)
        if len(places) < 2 or (len(counts) > 1 and ended):
            continue
        fewest = min(counts)
        tables = {n: ranks[n].meetings[at[:fewest]] for n, at in places.items()}
        last = np.max([table["arrived_ns"] for table in tables.values()], axis=0)
        for number, table in tables.items():
            came, left = table["arrived_ns"], table["left_ns"]
            waited = np.maximum(np.minimum(last, left) - came, 0.0)
            apart = table["asynchronous"] > 0  # its call came back at once
            at = places[number][:fewest]
            ranks[number].waits[at] = np.where(apart, 0.0, waited)
            ranks[number].shared[at] = np.where(apart, 0.0, left - came - waited)


def _measured(ranks: Sequence[_Rank], first: int) -> Bools:
    """The steps that all ranks took and that are compared."""
    counts = [len(rank.steps) for rank in ranks if len(rank.steps)]
    count = min(counts, default=0)
    disturbed, sampled = np.zeros(count, bool), np.zeros(count, bool)
    for rank in ranks:
        if len(rank.steps):
            disturbed |= rank.disturbed[:count]
            sampled |= rank.steps.in_window[:count]
    steady = (np.arange(count) >= min(first, count)) & ~disturbed
    if int((steady & ~sampled).sum()) >= _FEWEST_UNSAMPLED:
        return steady & ~sampled
    if count and not steady.any():
        steady[int(count > 1) :] = True
    return steady


def _times(rank: _Rank, use: Bools, under_way: bool) -> RankTimes:
    end = rank.records.facts.last(EndFact)
    count = len(rank.steps)
    state = RankState.RUNNING if under_way else RankState.KILLED
    if end is not None:
        state = RankState.FAILED if end.error else RankState.ENDED
    row: dict[str, Any] = {}
    if count and use.any() and len(use) <= count:
        mine = np.zeros(count, bool)
        mine[: len(use)] = use
        host = mean_host_phases(rank.steps, mine)
        row = {
            "step_ms": float(rank.steps.duration[mine].mean()) / _MS,
            "phases_ms": charge_waits(host, None),
        }
        if not np.isnan(rank.waits).all():
            waits = float(rank.per_step(rank.waits)[mine].mean()) / _MS
            shared = float(rank.per_step(rank.shared)[mine].mean()) / _MS
            data = row["phases_ms"]["data_wait"]
            row |= {
                "waiting_for_others_ms": waits,
                "exposed_communication_ms": shared,
                "work_ms": max(0.0, row["step_ms"] - waits - shared - data),
            }
    return RankTimes(
        rank=rank.records.number,
        node=rank.fact.node if rank.fact else 0,
        state=state,
        steps=count,
        restarts=rank.records.restarts,
        error=end.error if end else None,
        stood_in=None if end else _stood_in(rank),
        **row,
    )


def _stood_in(rank: _Rank) -> LastMeeting | None:
    """The meeting it never left, with the line that meetings of its kind were last seen at."""
    meetings = rank.meetings
    if not len(meetings) or meetings["left_ns"][-1] > 0:
        return None
    kind = MeetingKind(int(meetings["kind"][-1]))
    facts = {fact.id: fact for fact in rank.records.facts.all(SiteFact)}
    same = meetings["site"][(meetings["kind"] == kind) & (meetings["site"] >= 0)]
    site = facts.get(int(same[-1])) if len(same) else None
    if kind is MeetingKind.GRADIENTS:
        site = next((one for one in facts.values() if one.kind is SiteKind.BACKWARD), None)
    return LastMeeting(kind.name.lower(), site.file if site else None, site.line if site else None)


def _unread(one: RankRecords) -> RankTimes:
    return RankTimes(one.number, 0, RankState.UNREADABLE, 0, restarts=one.restarts)


def _missing(records: RunRecords, ranks: Sequence[_Rank]) -> list[RankTimes]:
    """Ranks of which there is no folder, though others know of them."""
    sizes = [rank.fact.world_size for rank in ranks if rank.fact is not None]
    there = {one.number for one in records.ranks}
    world = min(max(sizes, default=0), _MOST_RANKS)
    never = RankState.RUNNING if records.in_use else RankState.MISSING
    return [RankTimes(number, 0, never, 0) for number in range(world) if number not in there]


def _straggler(ranks: Sequence[_Rank], use: Bools) -> Straggler | None:
    at = np.flatnonzero(use)
    if len(at) < _FEWEST_STEPS:
        return None
    own = np.array([rank.own[at] for rank in ranks])
    since, late = _latest(own)
    if late is None:
        return None
    steps = at[since:]
    causes = [_causes(rank, steps) for rank in ranks]
    others = [cause for number, cause in enumerate(causes) if number != late]
    extra = {
        cause: causes[late][cause] - float(np.median([one[cause] for one in others]))
        for cause in StragglerCause
    }
    cause = max(extra, key=lambda one: extra[one])
    gain = np.maximum(_lead(own[:, since:], late), 0.0)  # others that are later are not sooner
    return Straggler(
        rank=ranks[late].records.number,
        cause=cause,
        place=_place(ranks[late], cause),
        since_step=int(steps[0]) + 1 if since else 1,
        late_ms=float(gain.mean()) / _MS,
        extra_ms=extra[cause] / _MS,
    )


def _latest(own: Floats) -> tuple[int, int | None]:
    """From which of these steps on which rank is late; None: none is. A row of `own` per rank."""
    best: tuple[float, int, int] | None = None
    changes = (_change(one - np.delete(own, n, 0).max(0)) for n, one in enumerate(own))
    for since in sorted({0, *changes}):
        part = own[:, since:]
        if part.shape[1] < _FEWEST_STEPS:
            continue
        late, mean, clear = _clearly_late(part)
        if clear < (_CLEAR_SINCE if since else _CLEAR):
            continue
        if since and _lead(own[:, :since], late).mean() > _SUDDEN * mean:
            continue
        if best is None or clear > best[0]:
            best = (clear, since, late)
    return (0, None) if best is None else best[1:]


def _lead(own: Floats, late: int) -> Floats:
    """By how much a rank exceeds the next slowest, in each column."""
    found: Floats = own[late] - np.delete(own, late, axis=0).max(axis=0)
    return found


def _clearly_late(own: Floats) -> tuple[int, float, float]:
    """The slowest rank, by how much, and how many standard errors that is, by stretches of two
    lengths since what disturbs one step often lasts; 0: not in most of them, or too little."""
    late = int(own.mean(axis=1).argmax())
    mean = float(_lead(own.mean(axis=1, keepdims=True), late)[0])
    if mean < _LEAST_LATE * float(np.median(own[late])):
        return late, mean, 0.0
    clear = []
    for count in _STRETCHES:
        parts = np.array([one.mean(axis=1) for one in np.array_split(own, count, axis=1)]).T
        leads = _lead(parts, late)
        if (leads > 0).mean() < _MOST_LATE:
            return late, mean, 0.0
        clear.append(mean / max(float(leads.std(ddof=1)) / count**0.5, 1.0))
    return late, mean, min(clear)


def _change(values: Floats) -> int:
    """Where values begin to differ most from those before: 0 if they are too few to tell."""
    count = len(values)
    if count < 2 * _FEWEST_STEPS:
        return 0
    low, high = np.percentile(values, [2, 98])  # a hiccup is no change
    sums = np.cumsum(np.clip(values, low, high))
    at = np.arange(1, count)
    before, after = sums[:-1] / at, (sums[-1] - sums[:-1]) / (count - at)
    between = at * (count - at) * (after - before) ** 2
    return int(between.argmax()) + 1


def _causes(rank: _Rank, at: Any) -> dict[StragglerCause, float]:
    """How long each part of its own work took in a step. Backward, waits for data and what follows
    the last meeting are known of every step; the rest is divided as in the clocked ones."""
    steps, meetings = rank.steps, rank.meetings
    backwards = np.where(
        meetings["kind"] == MeetingKind.GRADIENTS, meetings["arrived_ns"] - meetings["begun_ns"], 0
    )
    known = np.zeros(len(steps))
    step_of = rank.step_of
    inside = (step_of < len(steps)) & (meetings["left_ns"] > 0)
    np.maximum.at(known, step_of[inside], meetings["left_ns"][inside])
    after = np.where(known > 0, steps.end - known, 0.0)
    outside = rank.whole - steps.duration
    data, backward = steps.host["data_wait"], rank.per_step(backwards)
    rest = rank.own - data - backward - after - outside
    clocked = np.zeros(len(steps), bool)
    clocked[at] = True
    clocked &= steps.clocked
    forward = steps.host["forward"][clocked] if clocked.any() else np.zeros(1)
    mean = float(rest[at].mean())
    ahead = min(float(forward.mean()), max(mean, 0.0))
    saved = steps.account.get("checkpoint", 0.0)
    carved = sum(steps.account.get(name, 0.0) for name in ("checkpoint", "evaluation"))
    checkpoint = float(outside[at].mean()) if saved > carved / 2 else 0.0
    return {
        StragglerCause.DATA: float(data[at].mean()),
        StragglerCause.FORWARD: ahead,
        StragglerCause.BACKWARD: float(backward[at].mean()),
        StragglerCause.OPTIMIZER: float(after[at].mean()),
        StragglerCause.CHECKPOINT: checkpoint,
        StragglerCause.HOST: mean - ahead + float(outside[at].mean()) - checkpoint,
    }


_SITES = {
    StragglerCause.DATA: SiteKind.DATA_WAIT,
    StragglerCause.FORWARD: SiteKind.FORWARD,
    StragglerCause.BACKWARD: SiteKind.BACKWARD,
    StragglerCause.OPTIMIZER: SiteKind.OPTIMIZER,
    StragglerCause.CHECKPOINT: SiteKind.SAVE,
}


def _place(rank: _Rank, cause: StragglerCause) -> Place | None:
    """The line that costs it most there; None where none is known."""
    found = sites.read_sites(rank.records.folder, rank.records.facts, rank.steps.weight)
    kind = _SITES.get(cause)
    line = next((one for one in sites.hot_sites(found) if one.what is kind), None)
    return Place(line.file, line.line) if line else None


def _collectives(ranks: Sequence[_Rank], use: Bools) -> Iterator[Collectives]:
    """By kind, the one with most time first."""
    count = int(use.sum())
    found = []
    for kind in MeetingKind:
        chosen = []
        for rank in ranks:
            at = rank.step_of
            inside = np.zeros(len(at), bool)
            known = at < len(use)
            inside[known] = use[at[known]]
            chosen.append(inside & (rank.meetings["kind"] == kind) & ~np.isnan(rank.waits))
        most = max(int(one.sum()) for one in chosen)
        if not most or not count:
            continue
        rank, own = max(zip(ranks, chosen, strict=True), key=lambda pair: int(pair[1].sum()))
        waits = [one.waits[mine] for one, mine in zip(ranks, chosen, strict=True)]
        alike = len({len(one) for one in waits}) == 1
        spread = np.max(waits, axis=0) if alike else np.concatenate(waits)
        shared = np.concatenate([one.shared[mine] for one, mine in zip(ranks, chosen, strict=True)])
        begun = bool(rank.meetings["asynchronous"][own].all())
        sizes = rank.meetings["bytes"][own]
        nbytes = int(sizes.mean()) or (
            _gradient_bytes(rank) if kind is MeetingKind.GRADIENTS else None
        )
        one = Collectives(
            kind=kind.name.lower(),
            count=most,
            per_step=most / count,
            bytes=nbytes or None,
            time_ms=None if begun else float(shared.mean()) / _MS,
            spread_ms=None if begun else float(spread.mean()) / _MS,
            most_spread_ms=None if begun else float(spread.max()) / _MS,
        )
        found.append((most * float(shared.mean()), one))
    for _, one in sorted(found, key=lambda pair: -pair[0]):
        yield one


_WIDTHS = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


def _gradient_bytes(rank: _Rank) -> int | None:
    """Of all gradients of a model that DDP wraps; None where types are mixed or none is wrapped."""
    config = rank.records.facts.last(ConfigFact)
    for model in config.models if config else ():
        types = [*(model.dtypes or ())]
        if model.ddp and len(types) == 1 and model.trainable:
            return model.trainable * _WIDTHS.get(types[0], 0) or None
    return None
