"""Source lines of the user's program: loaders, waits for the device, hot lines, and a step's
largest time sinks.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stepscope.analyze.run.data_pipeline import PipelineSource
from stepscope.analyze.run.document import HotSite, Loader, RunSteps, Sink, SyncSite
from stepscope.analyze.run.host_code import OtherCode, OtherTime
from stepscope.record.facts import (
    CompileFact,
    Facts,
    LoaderFact,
    SiteFact,
    SiteKind,
    SlotKind,
    WorkersFact,
)
from stepscope.record.kinds import HostWait
from stepscope.record.row_log import FIRST_SITE_COLUMNS
from stepscope.store.table import read_table

_HELPER_PROCESSES = ("resource_tracker", "forkserver", "compile_worker", "__main__.py")


@dataclass(frozen=True, slots=True)
class Site:
    """A source line doing one kind of thing."""

    fact: SiteFact
    count: int
    total_ms: float
    nbytes: int


def read_sites(folder: Path, facts: Facts, weight: float = 1.0) -> dict[int, Site]:
    """Sites by id. `weight`: how many steps a sampled one stands for, itself included."""
    table = read_table(folder / "sites.npy", FIRST_SITE_COLUMNS)
    sites = {}
    for fact in facts.all(SiteFact):
        known = 0 <= fact.id < len(table)
        count, total_ns, nbytes, *sampled = table[fact.id].tolist() if known else (0, 0, 0)
        if sampled:
            count += weight * sampled[0]
            total_ns += weight * sampled[1]
            nbytes += weight * sampled[2]
        sites[fact.id] = Site(fact, round(count), total_ns / 1e6, round(nbytes))
    return sites


def sync_sites(sites: Mapping[int, Site]) -> list[SyncSite]:
    """Lines where the host waits for the device, costliest first."""
    found = [
        SyncSite(s.fact.wait, s.count, s.total_ms, s.nbytes or None, s.fact.file, s.fact.line)
        for s in sites.values()
        if s.fact.kind is SiteKind.SYNC and s.count
    ]
    return sorted(found, key=lambda sync: -sync.lost_ms)


def hot_sites(sites: Mapping[int, Site]) -> list[HotSite]:
    """Lines by phase, costliest first."""
    found = [
        HotSite(s.fact.kind, s.fact.file, s.fact.line, s.fact.function, s.count, s.total_ms)
        for s in sites.values()
        if s.count and s.fact.kind not in (SiteKind.SYNC, SiteKind.SETUP_SYNC)
    ]
    return sorted(found, key=lambda site: -site.total_ms)


def loader_sites(facts: Facts, sites: Mapping[int, Site]) -> list[Loader]:
    """Every loader's arguments and the line that made it."""
    found = []
    for fact in facts.all(LoaderFact):
        site = sites.get(fact.site) if fact.site is not None else None
        known = {key: value for key, value in vars(fact).items() if key != "site"}
        known |= {"file": site.fact.file, "line": site.fact.line} if site else {}
        found.append(Loader(**known))
    return found


def unobserved_children(
    processes: Mapping[str, str], facts: Facts, ranks: Collection[str] = ()
) -> dict[str, str]:
    """Processes the program started that are not its loaders' workers, nor of its `ranks`: pid to
    command line."""
    workers = {str(pid) for fact in facts.all(WorkersFact) for pid in fact.pids} | {*ranks}
    compiling = bool(facts.all(CompileFact))  # then short `python -c` ones ask what the CPU can do
    return {
        pid: command
        for pid, command in processes.items()
        if pid not in workers
        and "python" in command
        and not any(word in command for word in _HELPER_PROCESSES)
        and not (compiling and command.endswith(" -c"))
    }


_TITLES = {
    "data_wait": "waiting for the data loader",
    "h2d": "copying batches to the device",
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "other": "other code of the program",
}
_COUNT = 3


def largest_sinks(
    steps: RunSteps,
    phases_ms: Mapping[str, float],
    sites: Sequence[HotSite],
    syncs: Sequence[SyncSite],
    loader: str | None,
    other: OtherTime | None = None,
) -> list[Sink]:
    """The three largest phases of a step; `loader` describes the data loader, None without one."""
    if not steps.mean_ms:
        return []
    evaluation = ["evaluation"] if steps.what == "inference" else []
    found = []
    for phase, ms in sorted(phases_ms.items(), key=lambda item: -item[1])[:_COUNT]:
        if ms <= 0.01 * steps.mean_ms:
            continue
        wanted = (phase, *evaluation) if phase != "h2d" else (phase,)
        place: HotSite | SyncSite | OtherCode | None = next(
            (s for s in sites if s.what in wanted), None
        )
        detail = loader if phase == "data_wait" else None
        if phase == "h2d":
            copy = next((s for s in syncs if s.what == HostWait.PAGEABLE_COPY), None)
            if copy is not None:
                place, detail = copy, "pageable memory: each copy blocks the host"
        # The line that waits longest for the device, where that is most of what is left over.
        elif phase == "other" and syncs and syncs[0].lost_ms / steps.count >= ms / 2:
            place, detail = syncs[0], f"{syncs[0].what} waits for the device"
        elif phase == "other" and other is not None and other.code:
            place = other.code[0]
            detail = place.function and f"{place.share:.0%} of it is {place.function}"
        file, line = (place.file, place.line) if place else (None, None)
        found.append(Sink(phase, _TITLES[phase], ms, ms / steps.mean_ms, file, line, detail))
    return found


def loader_detail(loaders: Sequence[Loader], pipeline: Sequence[PipelineSource]) -> str | None:
    """The first loader's workers, and the largest part of making its samples."""
    if not loaders:
        return None
    text = f"num_workers={loaders[0].num_workers}"
    for source in pipeline:
        part = next((p for p in source.parts if p.what != SlotKind.REST), None)
        if part is not None and part.share >= 0.2:
            where = f", {part.file.rsplit('/', 1)[-1]}:{part.line}" if part.file else ""
            return f"{text}; {part.name}{where} is {part.share:.0%} of it"
    return text
