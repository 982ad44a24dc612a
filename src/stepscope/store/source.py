"""The program's source at run time: its commit, and the lines that findings point at.

Findings show the user's lines from this snapshot; a path named by a trace or run folder is never
opened later. A file changed since the start is left out: its lines may not be those that ran.
"""

import linecache
import os
import stat
from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

from stepscope.record.errors import BrokenRun
from stepscope.record.facts import ClockFact, Facts, HostSamplesFact, SiteFact
from stepscope.record.frames import is_program
from stepscope.store.json_file import read_json, write_json
from stepscope.store.json_lines import read_facts

SOURCES = "sources.json"
SCHEMA = "stepscope.sources/1"
_BEFORE, _AFTER = 3, 12  # lines kept around each: a call may span several
_MOST_FILES = 100
_LARGEST = 4 << 20
_LONGEST = 400
_CLOCK_S = 1.0  # run.json has its start in whole seconds
SourceLines = dict[str, dict[int, str]]


def save_sources(folder: Path, started: str) -> None:
    """Write the snapshot. `started`: when the program started, as in run.json."""
    facts = read_facts(folder / "facts.jsonl")
    since = datetime.fromisoformat(started).timestamp() + _CLOCK_S
    places = _places(facts)
    files = {}
    for file in sorted(places)[:_MOST_FILES]:
        text = _text(file, since)
        if text is not None and (kept := _kept_lines(text.splitlines(), places[file])):
            files[file] = kept
    if files:
        write_json(folder / SOURCES, {"schema": SCHEMA, "files": files})


def read_sources(folder: Path) -> SourceLines:
    """Kept lines by file and number; empty if none were kept or the file is damaged."""
    try:
        document = read_json(folder / SOURCES)
        return {
            str(file): {int(number): str(text) for number, text in lines.items()}
            for file, lines in document["files"].items()
        }
    except (OSError, BrokenRun, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _places(facts: Facts) -> dict[str, set[int]]:
    """Every program line named by sites, samples and the data pipeline."""
    found: defaultdict[str, set[int]] = defaultdict(set)
    clocks = facts.all(ClockFact)
    stacks = [stack for fact in facts.all(HostSamplesFact) for stack in fact.stacks]
    for file, line in (
        *((site.file, site.line) for site in facts.all(SiteFact)),
        *((clock.file, clock.line) for clock in clocks),
        *((clock.loader_file, clock.loader_line) for clock in clocks),
        *((file, line) for stack in stacks for file, line, _ in stack.frames),
    ):
        if file is not None and line is not None and is_program(file):
            found[file].add(line)
    return found


def _kept_lines(lines: list[str], numbers: Iterable[int]) -> dict[int, str]:
    """Those around the numbers, by number, without what is too long; secrets in them are masked."""
    from stepscope.record.privacy import masked_source

    wanted = {n for at in numbers for n in range(at - _BEFORE, at + _AFTER + 1)}
    return {
        number: masked_source(line)
        for number, line in enumerate(lines, start=1)
        if number in wanted and len(line) <= _LONGEST
    }


def _text(file: str, since: float) -> str | None:
    """A file's text; None if it is gone, changed since, too large or not text.

    A notebook cell is not a file: its text comes from where tracebacks find it.
    """
    cell = linecache.cache.get(file)
    if cell is not None and len(cell) == 4 and cell[1] is None:
        return "".join(cell[2])
    try:
        found = os.stat(file)
        if not stat.S_ISREG(found.st_mode) or found.st_size > _LARGEST or found.st_mtime > since:
            return None
        return Path(file).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None


def git_commit(cwd: Path) -> str | None:
    """The current commit, with `+` if files differ from it; None outside a repository."""
    found = _git(cwd, "rev-parse", "HEAD")
    if not found:
        return None
    return found[:12] + ("+" if _git(cwd, "status", "--porcelain", "-uno") else "")


def _git(cwd: Path, *arguments: str) -> str | None:
    import subprocess

    try:
        done = subprocess.run(
            ["git", *arguments], cwd=cwd, capture_output=True, text=True, timeout=2, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
