"""The data pipeline: where the time of a dataset's fetches went, over all workers.

Times come from fetches that were only timed; shares of lines, from the few fetches traced line by
line, divide collate, transforms and what is neither, by line and by what libraries did there.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.record.facts import ClockFact, Facts, PlaceKind, SlotKind
from stepscope.record.frames import work_of_transform
from stepscope.record.kinds import SampleWork
from stepscope.record.row_log import CLOCK_COLUMNS
from stepscope.store.table import read_table

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Tables = Mapping[str, "npt.NDArray[np.void]"]

_CERTAINTY = [None, *PlaceKind]


@dataclass(frozen=True, slots=True)
class PipelinePart:
    """A part of the fetch time. `what` is transform, line, work, collate or rest.

    `file` and `line`: where a transform is constructed, else called by the user, else defined. Work
    is what a library does in a line or transform, which then has the rest of its time.
    """

    name: str
    what: SlotKind
    share: float  # of the fetch time, exclusive of the other parts
    ms_per_sample: float | None
    file: str | None = None
    line: int | None = None
    work: SampleWork | None = None  # what it does, where that is known without the line's text


@dataclass(frozen=True, slots=True)
class PipelineSource:
    """A dataset's fetches. The parts' shares, largest first, add up to 1."""

    dataset: str
    file: str | None  # where its items are made
    line: int | None
    processes: int
    batches: int
    samples: int
    ms_per_batch: float
    ms_per_sample: float | None  # None if no sample was counted
    collate_share: float
    processor_share: float | None
    """Of the time, what was computing or waiting for a core; the rest waited for storage. None: not
    known."""
    parts: tuple[PipelinePart, ...]


@dataclass(slots=True)
class _Counter:
    fact: ClockFact
    count: float = 0.0
    total_ns: float = 0.0


def read_pipeline(folder: Path, facts: Facts) -> list[PipelineSource]:
    """The pipelines of a run folder and its facts, those that took most time first."""
    tables = {path.stem[6:]: read_table(path, CLOCK_COLUMNS) for path in folder.glob("clock-*.npy")}
    return pipelines(facts.all(ClockFact), tables)


def pipelines(facts: Iterable[ClockFact], tables: "Tables") -> list[PipelineSource]:
    """The pipelines behind the data clocks' slots and their tables, by pid."""
    latest = {(str(fact.pid), fact.slot): fact for fact in facts}
    groups: dict[Any, list[_Counter]] = defaultdict(list)
    for (pid, slot), fact in latest.items():
        table = tables.get(pid)
        if table is not None and 0 <= slot < len(table):
            row = table[slot]
            source = (fact.loader, fact.loader_file, fact.loader_line)
            counter = _Counter(fact, float(row["count"]), float(row["total_ns"]))
            groups[(*source, tuple(fact.transforms))].append(counter)
    found = filter(None, map(_source, groups.values()))
    return sorted(found, key=lambda source: -source.ms_per_batch * source.batches)


def _source(counters: list[_Counter]) -> PipelineSource | None:
    """None if no batch was fetched."""
    total: dict[SlotKind, float] = defaultdict(float)
    count: dict[SlotKind, float] = defaultdict(float)
    for counter in counters:
        total[counter.fact.what] += counter.total_ns
        count[counter.fact.what] += counter.count
    whole = total[SlotKind.REST] + total[SlotKind.COLLATE] + total[SlotKind.TRANSFORM]
    if not count[SlotKind.FETCH] or not whole:
        return None
    about = counters[0].fact
    samples, fetching = int(count[SlotKind.SAMPLES]), total[SlotKind.FETCH]
    ms_per_sample = fetching / samples / 1e6 if samples else None
    worked = total[SlotKind.PROCESSOR]
    parts = _parts(counters, total, whole, ms_per_sample)
    return PipelineSource(
        dataset=about.loader,
        file=about.loader_file,
        line=about.loader_line,
        processes=len({counter.fact.pid for counter in counters}),
        batches=int(count[SlotKind.FETCH]),
        samples=samples,
        ms_per_batch=fetching / count[SlotKind.FETCH] / 1e6,
        ms_per_sample=ms_per_sample,
        collate_share=total[SlotKind.COLLATE] / whole,
        processor_share=min(1.0, worked / fetching) if worked and fetching else None,
        parts=tuple(sorted(parts, key=lambda part: -part.share)),
    )


def _parts(
    counters: list[_Counter],
    total: Mapping[SlotKind, float],
    whole: float,
    ms_per_sample: float | None,
) -> list[PipelinePart]:
    def part(
        name: str,
        what: SlotKind,
        share: float,
        fact: ClockFact | None,
        work: SampleWork | None = None,
    ) -> PipelinePart:
        each = None if ms_per_sample is None else share * ms_per_sample
        place = (fact.file, fact.line) if fact else (None, None)
        return PipelinePart(name, what, share, each, *place, work)

    parts = []
    for c in _summed(counters, SlotKind.TRANSFORM, lambda fact: fact.order):
        share, order, name = c.total_ns / whole, c.fact.order, c.fact.name or ""
        inside = [one for one in counters if one.fact.order == order]
        works = _summed(inside, SlotKind.WORK, lambda fact: fact.work)
        own = sum(one.total_ns for one in inside if one.fact.what is SlotKind.TRACED_TRANSFORM)
        traced = own + sum(one.total_ns for one in works)
        for one in works if order is not None else ():
            share -= (taken := c.total_ns / whole * one.total_ns / traced) if traced else 0.0
            if traced and one.fact.work is not None:
                parts.append(part(one.fact.work, SlotKind.WORK, taken, c.fact, one.fact.work))
        parts.append(part(name, SlotKind.TRANSFORM, share, c.fact, work_of_transform(name)))
    collated = total[SlotKind.COLLATE] / whole
    followed = 0.0  # share of the time, line by line, of collating in the end
    for where, share, unfollowed in (
        ("fetch", total[SlotKind.REST] / whole, total[SlotKind.TRACED_REST]),
        ("collate", collated, total[SlotKind.TRACED_COLLATE]),
    ):
        met = [c for c in counters if c.fact.part == where and c.fact.order is None]
        lines = _summed(met, SlotKind.LINE, lambda fact: (fact.file, fact.line))
        lines += _summed(met, SlotKind.WORK, lambda fact: (fact.file, fact.line, fact.work))
        lines_ns = sum(c.total_ns for c in lines)
        scale = share / (lines_ns + unfollowed) if lines_ns + unfollowed else 0.0
        followed = lines_ns * scale
        for c in lines:
            name = c.fact.work or f"{Path(c.fact.file or '').name}:{c.fact.line}"
            parts.append(part(name, c.fact.what, c.total_ns * scale, c.fact, c.fact.work))
    collate = next((c.fact for c in counters if c.fact.what is SlotKind.COLLATE), None)
    name = (collate.name if collate else None) or "collate"
    parts.append(part(name, SlotKind.COLLATE, max(collated - followed, 0.0), collate))
    rest = max(1.0 - sum(p.share for p in parts), 0.0)
    return [p for p in parts if p.share > 0] + [part("rest", SlotKind.REST, rest, None)]


def _summed(
    counters: list[_Counter], what: SlotKind, key: Callable[[ClockFact], object]
) -> list[_Counter]:
    """Those of a kind over all processes, each with the surest place known."""
    sums: dict[object, _Counter] = {}
    for c in counters:
        if c.fact.what is what:
            one = sums.setdefault(key(c.fact), _Counter(c.fact))
            one.total_ns += c.total_ns
            if _CERTAINTY.index(c.fact.place) > _CERTAINTY.index(one.fact.place):
                one.fact = c.fact
    return [*sums.values()]
