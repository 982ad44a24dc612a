"""Opens recordings of any format, one or one per rank."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from stepscope.record.errors import StepscopeError, UsageError
from stepscope.record.timeline import Timeline
from stepscope.trace.format import TraceFormat
from stepscope.trace.kineto.read import CHROME_JSON, MOST_PROCESSES
from stepscope.trace.limits import check_file
from stepscope.trace.nsight.systems import NSIGHT_EXPORT, NSIGHT_REPORT
from stepscope.trace.workers import run_jobs, usable_cores

FORMATS: tuple[TraceFormat, ...] = (NSIGHT_REPORT, NSIGHT_EXPORT, CHROME_JSON)
"""The first that recognises a file reads it."""
TRACE_ENDINGS = tuple(ending for one in FORMATS[::-1] for ending in one.endings)


def open_trace(path: Path | str, *, processes: int | None = None) -> Timeline:
    """The timeline of one recording; a folder must hold exactly one.

    None processes: as many as the file's size is worth.
    """
    path = Path(path)
    if path.is_dir():
        path, *others = trace_files(path)
        if others:
            raise UsageError(f"{path.parent} holds {len(others) + 1} traces: name one")
    check_file(path)
    try:
        with path.open("rb") as file:
            head = file.read(64)
    except OSError as error:
        raise StepscopeError(f"{path}: {error.strerror or error}") from error
    return next(f for f in FORMATS if f.recognises(path, head)).read(path, processes)


def trace_files(folder: Path) -> list[Path]:
    """The recordings of a folder, going by their names."""
    try:
        found = [p for p in folder.iterdir() if p.name.endswith(TRACE_ENDINGS) and p.is_file()]
    except OSError as error:
        raise StepscopeError(f"{folder}: {error.strerror or error}") from error
    if not found:
        raise UsageError(f"{folder}: no traces in this folder ({', '.join(TRACE_ENDINGS)})")
    return sorted(found)


_WORTH_SHARING = 4 << 20  # bytes on disk of all: below, starting processes costs more than it saves


def open_ranks(paths: Path | str | Sequence[Path | str]) -> list[Timeline]:
    """The timelines of files and of folders of files, in order of rank, then of name.

    One that cannot be read leaves a note with the first timeline; StepscopeError where none can.
    """
    named = [paths] if isinstance(paths, Path | str) else paths
    files = [file for p in map(Path, named) for file in (trace_files(p) if p.is_dir() else [p])]
    files = list(dict.fromkeys(files))
    if not files:
        raise UsageError("no trace named")
    if len(files) == 1:
        return [open_trace(files[0])]
    results = _read_all(files)
    timelines = [result for result in results if isinstance(result, Timeline)]
    failures = [result for result in results if isinstance(result, StepscopeError)]
    if not timelines:
        raise StepscopeError(f"none of {len(files)} traces could be read; the first: {failures[0]}")
    timelines.sort(key=_rank_order)
    timelines[0].quality.notes += [f"left out: {failure}" for failure in failures]
    claims = Counter(timeline.rank for timeline in timelines if timeline.rank is not None)
    timelines[0].quality.notes += [
        f"several traces claim rank {rank}" for rank in sorted(claims) if claims[rank] > 1
    ]
    return timelines


def _read_all(files: list[Path]) -> list[Timeline | StepscopeError]:
    processes = min(usable_cores(), MOST_PROCESSES, len(files))
    try:
        size = sum(file.stat().st_size for file in files if file.exists())
        if processes > 1 and size >= _WORTH_SHARING:
            return run_jobs(_yield_timeline, [(file,) for file in files], next, processes)
    except OSError:
        pass  # no process can be started: one after the other, then
    results: list[Timeline | StepscopeError] = []
    for file in files:
        try:
            results.append(open_trace(file, processes=1))
        except StepscopeError as error:
            results.append(error)
    return results


def _yield_timeline(file: Path) -> Iterator[Timeline]:
    yield open_trace(file, processes=1)


def _rank_order(timeline: Timeline) -> tuple[bool, int, list[int | str], str]:
    """Numbers in names count as numbers, so that rank 10 comes after rank 9."""
    words = re.split(r"(\d+)", Path(timeline.source).name)
    natural = [int(word) if n % 2 else word for n, word in enumerate(words)]
    return timeline.rank is None, timeline.rank or 0, natural, timeline.source
