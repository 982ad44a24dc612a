"""Source lines of the user's program: loaders, waits for the device, hot lines, and a step's
largest time sinks.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepscope.record.facts import (
    CompileFact,
    Facts,
    HostWait,
    LoaderFact,
    SiteFact,
    SiteKind,
    WorkersFact,
)
from stepscope.store.table import read_table

_HELPER_PROCESSES = ("resource_tracker", "forkserver", "compile_worker", "__main__.py")


@dataclass(frozen=True, slots=True)
class Site:
    """A source line doing one kind of thing."""

    kind: SiteKind
    wait: HostWait | None
    file: str
    line: int
    function: str
    count: int
    total_ms: float
    nbytes: int


def read_sites(folder: Path, facts: Facts) -> dict[int, Site]:
    """Sites by id."""
    table = read_table(folder / "sites.npy")
    sites = {}
    for fact in facts.all(SiteFact):
        known = fact.id < len(table)
        count, total_ns, nbytes = table[fact.id].tolist() if known else (0, 0, 0)
        sites[fact.id] = Site(
            fact.kind, fact.wait, fact.file, fact.line, fact.function,
            int(count), total_ns / 1e6, int(nbytes),
        )  # fmt: skip
    return sites


def sync_sites(sites: Mapping[int, Site]) -> list[dict[str, Any]]:
    """Lines where the host waits for the device, costliest first."""
    found = [
        {
            "what": site.wait,
            "count": site.count,
            "lost_ms": site.total_ms,
            "bytes": site.nbytes or None,
            "file": site.file,
            "line": site.line,
        }
        for site in sites.values()
        if site.kind is SiteKind.SYNC and site.count
    ]
    return sorted(found, key=lambda sync: -sync["lost_ms"])


def hot_sites(sites: Mapping[int, Site]) -> list[dict[str, Any]]:
    """Lines by phase, costliest first."""
    found = [
        {
            "what": site.kind,
            "file": site.file,
            "line": site.line,
            "function": site.function,
            "count": site.count,
            "total_ms": site.total_ms,
        }
        for site in sites.values()
        if site.count and site.kind not in (SiteKind.SYNC, SiteKind.SETUP_SYNC)
    ]
    return sorted(found, key=lambda site: -site["total_ms"])


def loader_sites(facts: Facts, sites: Mapping[int, Site]) -> list[dict[str, Any]]:
    """Every loader's arguments and the line that made it."""
    found = []
    for fact in facts.all(LoaderFact):
        site = sites.get(fact.site) if fact.site is not None else None
        arguments = {key: value for key, value in fact.to_json().items() if key != "site"}
        found.append(
            arguments | {"file": site.file if site else None, "line": site.line if site else None}
        )
    return found


def unobserved_children(processes: Mapping[str, str], facts: Facts) -> dict[str, str]:
    """Processes the program started that are not its loaders' workers: pid to command line."""
    workers = {str(pid) for fact in facts.all(WorkersFact) for pid in fact.pids}
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


def largest_sinks(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The three largest phases of a step: title, ms, share, file, line, detail."""
    total = document["steps"]["mean_ms"]
    if not total:
        return []
    ranked = sorted(document["phases_ms"].items(), key=lambda item: -item[1])
    return [
        {"phase": phase, "title": _TITLES[phase], "ms": ms, "share": ms / total}
        | _place(phase, document)
        for phase, ms in ranked[:_COUNT]
        if ms > 0.01 * total
    ]


def _place(phase: str, document: dict[str, Any]) -> dict[str, Any]:
    wanted = {phase, "evaluation"} if document["steps"]["what"] == "inference" else {phase}
    if phase == "h2d":
        wanted = {"h2d"}
    site = next((s for s in document["sites"] if s["what"] in wanted), None)
    place: dict[str, Any] = {"file": None, "line": None, "detail": None}
    if site is not None:
        place |= {"file": site["file"], "line": site["line"]}
    if phase == "data_wait":
        place["detail"] = _loader_detail(document)
    elif phase == "h2d":
        copy = next((s for s in document["syncs"] if s["what"] == HostWait.PAGEABLE_COPY), None)
        if copy is not None:
            place |= {"file": copy["file"], "line": copy["line"]}
            place["detail"] = "pageable memory: each copy blocks the host"
    elif phase == "other":
        place |= _longest_wait(document)
    return place


def _longest_wait(document: dict[str, Any]) -> dict[str, Any]:
    """The line that waits longest for the device, where that is most of what is left over."""
    sync = next(iter(document["syncs"]), None)
    steps, other = document["steps"]["count"], document["phases_ms"]["other"]
    if sync is None or sync["lost_ms"] / steps < other / 2:
        return {}
    detail = f"{sync['what']} waits for the device"
    return {"file": sync["file"], "line": sync["line"], "detail": detail}


def _loader_detail(document: dict[str, Any]) -> str | None:
    loader = next(iter(document["loaders"]), None)
    if loader is None:
        return None
    text = f"num_workers={loader['num_workers']}"
    for source in document["pipeline"]:
        part = next((p for p in source["parts"] if p["what"] != "rest"), None)
        if part is not None and part["share"] >= 0.2:
            where = f", {_short(part['file'])}:{part['line']}" if part["file"] else ""
            text += f"; {part['name']}{where} is {part['share']:.0%} of it"
            break
    return text


def _short(file: str) -> str:
    return file.rsplit("/", 1)[-1]
