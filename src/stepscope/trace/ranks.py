"""The recordings of several ranks, read side by side."""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from stepscope.record.errors import StepscopeError, UsageError
from stepscope.record.timeline import Timeline
from stepscope.trace.kineto import MOST_PROCESSES
from stepscope.trace.open import open_trace, traces_in
from stepscope.trace.workers import available, gather

_WORTH_SHARING = 4 << 20  # bytes on disk of all: below, starting processes costs more than it saves


def open_ranks(paths: Path | str | Sequence[Path | str]) -> list[Timeline]:
    """The timelines of files and of folders of files, in order of rank, then of name.

    One that cannot be read leaves a note with the first timeline; StepscopeError where none can.
    """
    files = _files([paths] if isinstance(paths, Path | str) else paths)
    if not files:
        raise UsageError("no recording was named")
    if len(files) == 1:
        return [open_trace(files[0])]
    results = _read(files)
    timelines = [result for result in results if isinstance(result, Timeline)]
    failures = [result for result in results if isinstance(result, StepscopeError)]
    if not timelines:
        raise StepscopeError(
            f"none of {len(files)} recordings could be read; the first: {failures[0]}"
        )
    timelines.sort(key=_order)
    timelines[0].quality.notes += [f"left out: {failure}" for failure in failures]
    timelines[0].quality.notes += _twice(timelines)
    return timelines


def _files(paths: Sequence[Path | str]) -> list[Path]:
    files: list[Path] = []
    for path in map(Path, paths):
        files += traces_in(path) if path.is_dir() else [path]
    return list(dict.fromkeys(files))


def _read(files: list[Path]) -> list[Timeline | StepscopeError]:
    size = sum(map(_size, files))
    processes = min(available(), MOST_PROCESSES, len(files))
    if size >= _WORTH_SHARING and processes > 1:
        try:
            return gather(_opened, [(file,) for file in files], _only, processes)
        except OSError:
            pass  # no process can be started: one after the other, then
    return [_open(file) for file in files]


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


def _open(file: Path) -> Timeline | StepscopeError:
    try:
        return open_trace(file, processes=1)
    except StepscopeError as error:
        return error


def _opened(file: Path) -> Iterator[Timeline]:
    yield open_trace(file, processes=1)


def _only(timelines: Iterable[Timeline]) -> Timeline:
    (timeline,) = timelines
    return timeline


def _order(timeline: Timeline) -> tuple[bool, int, list[int | str], str]:
    """Numbers in names count as numbers, so that rank 10 comes after rank 9."""
    words = re.split(r"(\d+)", Path(timeline.source).name)
    natural = [int(word) if n % 2 else word for n, word in enumerate(words)]
    return timeline.rank is None, timeline.rank or 0, natural, timeline.source


def _twice(timelines: list[Timeline]) -> list[str]:
    ranks = [timeline.rank for timeline in timelines if timeline.rank is not None]
    doubled = sorted({rank for rank in ranks if ranks.count(rank) > 1})
    return [f"more than one recording says it is rank {rank}" for rank in doubled]
