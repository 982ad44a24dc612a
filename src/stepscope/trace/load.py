"""Opens recordings of any kind, one or one per rank, told apart by content rather than by file
name.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from stepscope.record.errors import StepscopeError, UsageError
from stepscope.record.timeline import Timeline
from stepscope.trace.kineto.blocks import check_file, open_text
from stepscope.trace.kineto.read import MOST_PROCESSES, read_kineto
from stepscope.trace.workers import run_jobs, usable_cores

SQLITE = b"SQLite format 3\0"
TRACE_SUFFIXES = (".json", ".json.gz", ".sqlite", ".nsys-rep", ".qdrep")
_ARCHIVES = {
    b"PK\x03\x04": "a zip archive",
    b"(\xb5/\xfd": "compressed with zstd",
    b"\xfd7zXZ": "compressed with xz",
    b"BZh": "compressed with bzip2",
    b"7z\xbc\xaf": "a 7z archive",
}


def open_trace(path: Path | str, *, processes: int | None = None) -> Timeline:
    """The timeline of one recording: Kineto or Chrome JSON, plain or gzip, or Nsight Systems.

    A folder must hold exactly one. None processes: as many as the file's size is worth.
    """
    path = Path(path)
    if path.is_dir():
        path = _only_one(path)
    check_file(path)
    if path.suffix in (".nsys-rep", ".qdrep"):
        return _from_report(path)
    head = _head(path)
    if head.startswith(SQLITE):
        return _from_export(path)
    for start, what in _ARCHIVES.items():
        if head.startswith(start):
            raise StepscopeError(f"{path} is {what}: unpack it first")
    return read_kineto(path, processes=processes)


def trace_files(folder: Path) -> list[Path]:
    """The recordings of a folder, going by their names."""
    try:
        found = [p for p in folder.iterdir() if p.name.endswith(TRACE_SUFFIXES) and p.is_file()]
    except OSError as error:
        raise StepscopeError(f"{folder}: {error.strerror or error}") from error
    if not found:
        raise UsageError(f"{folder}: no traces in this folder ({', '.join(TRACE_SUFFIXES)})")
    return sorted(found)


def _only_one(folder: Path) -> Path:
    found = trace_files(folder)
    if len(found) > 1:
        raise UsageError(f"{folder} holds {len(found)} traces: name one")
    return found[0]


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            plain = file.read(64)
        with open_text(path) as source:
            text = source.window(0, 64)
    except OSError as error:
        raise StepscopeError(f"{path}: {error.strerror or error}") from error
    if text.startswith(SQLITE) and text != plain:
        raise StepscopeError(f"{path} is a compressed SQLite file: gunzip it first")
    return plain


def _from_report(path: Path) -> Timeline:
    from stepscope.trace.nsight.sqlite_export import export_report

    with TemporaryDirectory(prefix="stepscope-") as folder:
        return replace(_from_export(export_report(path, Path(folder))), source=str(path))


def _from_export(path: Path) -> Timeline:
    from stepscope.trace.nsight.systems import read_nsys

    return read_nsys(path)


_WORTH_SHARING = 4 << 20  # bytes on disk of all: below, starting processes costs more than it saves


def open_ranks(paths: Path | str | Sequence[Path | str]) -> list[Timeline]:
    """The timelines of files and of folders of files, in order of rank, then of name.

    One that cannot be read leaves a note with the first timeline; StepscopeError where none can.
    """
    files = _files([paths] if isinstance(paths, Path | str) else paths)
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
    timelines[0].quality.notes += _duplicate_ranks(timelines)
    return timelines


def _files(paths: Sequence[Path | str]) -> list[Path]:
    files: list[Path] = []
    for path in map(Path, paths):
        files += trace_files(path) if path.is_dir() else [path]
    return list(dict.fromkeys(files))


def _read_all(files: list[Path]) -> list[Timeline | StepscopeError]:
    size = sum(map(_size, files))
    processes = min(usable_cores(), MOST_PROCESSES, len(files))
    if size >= _WORTH_SHARING and processes > 1:
        try:
            return run_jobs(_yield_timeline, [(file,) for file in files], _only_timeline, processes)
        except OSError:
            pass  # no process can be started: one after the other, then
    return [_open_or_error(file) for file in files]


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


def _open_or_error(file: Path) -> Timeline | StepscopeError:
    try:
        return open_trace(file, processes=1)
    except StepscopeError as error:
        return error


def _yield_timeline(file: Path) -> Iterator[Timeline]:
    yield open_trace(file, processes=1)


def _only_timeline(timelines: Iterable[Timeline]) -> Timeline:
    (timeline,) = timelines
    return timeline


def _rank_order(timeline: Timeline) -> tuple[bool, int, list[int | str], str]:
    """Numbers in names count as numbers, so that rank 10 comes after rank 9."""
    words = re.split(r"(\d+)", Path(timeline.source).name)
    natural = [int(word) if n % 2 else word for n, word in enumerate(words)]
    return timeline.rank is None, timeline.rank or 0, natural, timeline.source


def _duplicate_ranks(timelines: list[Timeline]) -> list[str]:
    ranks = [timeline.rank for timeline in timelines if timeline.rank is not None]
    doubled = sorted({rank for rank in ranks if ranks.count(rank) > 1})
    return [f"several traces claim rank {rank}" for rank in doubled]
