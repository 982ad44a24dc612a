"""Where in the user's source things happen: loaders, waits for the device, hot lines."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepscope.store.table import read_table

_SYNC = "sync:"
_SERVANTS = ("resource_tracker", "forkserver", "compile_worker", "__main__.py")


@dataclass(frozen=True, slots=True)
class Site:
    """A source line doing one kind of thing."""

    what: str
    file: str
    line: int
    function: str
    count: int
    total_ms: float
    nbytes: int


def read_sites(folder: Path, facts: Any) -> dict[int, Site]:
    """Sites by id."""
    table = read_table(folder / "sites.npy")
    sites = {}
    for fact in facts["site"]:
        known = fact["id"] < len(table)
        count, total_ns, nbytes = table[fact["id"]].tolist() if known else (0, 0, 0)
        sites[fact["id"]] = Site(
            fact["what"], fact["file"], fact["line"], fact["function"],
            int(count), total_ns / 1e6, int(nbytes),
        )  # fmt: skip
    return sites


def syncs(sites: Mapping[int, Site]) -> list[dict[str, Any]]:
    """Lines where the host waits for the device, costliest first."""
    found = [
        {
            "what": site.what.removeprefix(_SYNC),
            "count": site.count,
            "lost_ms": site.total_ms,
            "bytes": site.nbytes or None,
            "file": site.file,
            "line": site.line,
        }
        for site in sites.values()
        if site.what.startswith(_SYNC) and site.count
    ]
    return sorted(found, key=lambda sync: -sync["lost_ms"])


def hottest(sites: Mapping[int, Site]) -> list[dict[str, Any]]:
    """Lines by phase, costliest first."""
    found = [
        {
            "what": site.what,
            "file": site.file,
            "line": site.line,
            "function": site.function,
            "count": site.count,
            "total_ms": site.total_ms,
        }
        for site in sites.values()
        if site.count and not site.what.startswith((_SYNC, "setup:"))
    ]
    return sorted(found, key=lambda site: -site["total_ms"])


def loaders(facts: Any, sites: Mapping[int, Site]) -> list[dict[str, Any]]:
    """Every loader's arguments and the line that made it."""
    found = []
    for fact in facts["loader"]:
        site = sites.get(fact["site"]) if fact["site"] is not None else None
        arguments = {key: value for key, value in fact.items() if key != "site"}
        found.append(
            arguments | {"file": site.file if site else None, "line": site.line if site else None}
        )
    return found


def own_children(processes: Mapping[str, str], facts: Any) -> dict[str, str]:
    """Processes the program started that are not its loaders' workers: pid to command line."""
    workers = {str(pid) for fact in facts["workers"] for pid in fact["pids"]}
    compiling = bool(facts["compile"])  # then short `python -c` ones ask what the CPU can do
    return {
        pid: command
        for pid, command in processes.items()
        if pid not in workers
        and "python" in command
        and not any(word in command for word in _SERVANTS)
        and not (compiling and command.endswith(" -c"))
    }
