"""The data pipeline: what the time of a dataset's fetches went to, over all workers.

Times come from fetches that were only timed; the lines' shares, from the few that were followed
line by line, divide what those leave to neither transforms nor collate, and collate itself.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.store.table import read_table

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Tables = Mapping[str, "npt.NDArray[np.void]"]

_SURER = {"constructed": 2, "called": 1}  # than where its class is defined


@dataclass(frozen=True, slots=True)
class PipelinePart:
    """A part of the fetch time. `what` is transform, line, collate or rest.

    `file` and `line`: where a transform is constructed, else called by the user, else defined.
    """

    name: str
    what: str
    share: float  # of the fetch time, exclusive of the other parts
    ms_per_sample: float | None
    file: str | None = None
    line: int | None = None


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
    processor_share: float | None  # of the time: a core worked, else it waited; None: not known
    parts: tuple[PipelinePart, ...]


@dataclass(slots=True)
class _Counter:
    fact: dict[str, Any]
    count: float = 0.0
    total_ns: float = 0.0


def read_pipeline(folder: Path, facts: Mapping[str, list[dict[str, Any]]]) -> list[PipelineSource]:
    """The pipelines of a run folder and its facts, those that took most time first."""
    tables = {path.stem[6:]: read_table(path) for path in folder.glob("clock-*.npy")}
    return pipelines(facts, tables)


def pipelines(facts: Mapping[str, list[dict[str, Any]]], tables: "Tables") -> list[PipelineSource]:
    """The pipelines that facts `clock` and their tables, by pid, tell of."""
    latest = {(str(fact["pid"]), fact["slot"]): fact for fact in facts.get("clock", ())}
    groups: dict[Any, list[_Counter]] = defaultdict(list)
    for (pid, slot), fact in latest.items():
        table = tables.get(pid)
        if table is not None and slot < len(table):
            row = table[slot]
            source = (fact["loader"], fact["loader_file"], fact["loader_line"])
            counter = _Counter(fact, float(row["count"]), float(row["total_ns"]))
            groups[(*source, tuple(fact["transforms"]))].append(counter)
    sources = [_source(group) for group in groups.values()]
    found = [source for source in sources if source is not None]
    return sorted(found, key=lambda source: -source.ms_per_batch * source.batches)


def _source(counters: list[_Counter]) -> PipelineSource | None:
    """None if no batch was fetched."""
    total: dict[str, float] = defaultdict(float)
    count: dict[str, float] = defaultdict(float)
    for counter in counters:
        total[counter.fact["what"]] += counter.total_ns
        count[counter.fact["what"]] += counter.count
    whole = total["rest"] + total["collate"] + total["transform"]
    if not count["fetch"] or not whole:
        return None
    about = counters[0].fact
    samples = int(count["samples"])
    ms_per_sample = total["fetch"] / samples / 1e6 if samples else None
    parts = _parts(counters, total, whole, ms_per_sample)
    return PipelineSource(
        dataset=about["loader"],
        file=about["loader_file"],
        line=about["loader_line"],
        processes=len({counter.fact["pid"] for counter in counters}),
        batches=int(count["fetch"]),
        samples=samples,
        ms_per_batch=total["fetch"] / count["fetch"] / 1e6,
        ms_per_sample=ms_per_sample,
        collate_share=total["collate"] / whole,
        processor_share=_processor_share(total),
        parts=tuple(sorted(parts, key=lambda part: -part.share)),
    )


def _processor_share(total: Mapping[str, float]) -> float | None:
    worked = total.get("processor")
    return min(1.0, worked / total["fetch"]) if worked and total["fetch"] else None


def _parts(
    counters: list[_Counter],
    total: Mapping[str, float],
    whole: float,
    ms_per_sample: float | None,
) -> list[PipelinePart]:
    lines = {part: _lines(counters, part) for part in ("fetch", "collate")}
    followed = {part: sum(c.total_ns for c in found.values()) for part, found in lines.items()}
    scale = {
        "fetch": _ratio(total["rest"] / whole, followed["fetch"] + total["traced_rest"]),
        "collate": _ratio(total["collate"] / whole, followed["collate"] + total["traced_collate"]),
    }

    def part(name: str, what: str, share: float, fact: Mapping[str, Any]) -> PipelinePart:
        each = None if ms_per_sample is None else share * ms_per_sample
        return PipelinePart(name, what, share, each, fact.get("file"), fact.get("line"))

    parts = [
        part(c.fact["name"], "transform", c.total_ns / whole, c.fact)
        for c in _transforms(counters).values()
    ]
    for where, found in lines.items():
        for c in found.values():
            name = f"{Path(c.fact['file']).name}:{c.fact['line']}"
            parts.append(part(name, "line", c.total_ns * scale[where], c.fact))
    collate = next((c.fact for c in counters if c.fact["what"] == "collate"), {})
    own = total["collate"] / whole - followed["collate"] * scale["collate"]
    parts.append(part(collate.get("name", "collate"), "collate", max(own, 0.0), collate))
    rest = 1.0 - sum(p.share for p in parts)
    return [p for p in parts if p.share > 0] + [part("rest", "rest", max(rest, 0.0), {})]


def _ratio(share: float, total_ns: float) -> float:
    return share / total_ns if total_ns else 0.0


def _lines(counters: list[_Counter], part: str) -> dict[Any, _Counter]:
    """Lines met while samples were made ("fetch") or collated ("collate"), over all processes."""
    lines: dict[Any, _Counter] = {}
    for c in counters:
        if c.fact["what"] == "line" and c.fact["part"] == part:
            sum_ = lines.setdefault((c.fact["file"], c.fact["line"]), _Counter(c.fact))
            sum_.total_ns += c.total_ns
    return lines


def _transforms(counters: list[_Counter]) -> dict[int, _Counter]:
    """Transforms in their order, over all processes, each with the surest place known."""
    transforms: dict[int, _Counter] = {}
    for c in counters:
        if c.fact["what"] == "transform":
            sum_ = transforms.setdefault(c.fact["order"], _Counter(c.fact))
            sum_.total_ns += c.total_ns
            if _SURER.get(c.fact["place"], 0) > _SURER.get(sum_.fact["place"], 0):
                sum_.fact = c.fact
    return transforms
