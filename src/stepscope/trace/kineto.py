"""Reads Kineto and Chrome JSON traces, plain or gzip, into a timeline.

Memory stays bounded: an event may have up to 64 MB (`LARGEST_EVENT`), all that is not events up to
64 MB, a gzip file may expand 400-fold (`MOST_EXPANSION`), a timeline may hold 50 million events.
"""

from pathlib import Path

from stepscope.record.errors import StepscopeError
from stepscope.record.timeline import Timeline
from stepscope.trace.bytes_in import GZIP, check_file
from stepscope.trace.kineto_blocks import BLOCK
from stepscope.trace.kineto_collect import Collected, collect
from stepscope.trace.kineto_header import read_about
from stepscope.trace.kineto_merge import merge
from stepscope.trace.kineto_parts import Part, fit_together, read_parts
from stepscope.trace.kineto_quality import describe
from stepscope.trace.workers import available, gather

MOST_PROCESSES = 4
_WORTH_SHARING = 48 << 20  # bytes of text: below, starting processes costs more than it saves
_USUAL_COMPRESSION = 12


def read_kineto(
    path: Path | str, *, processes: int | None = None, block_bytes: int = BLOCK
) -> Timeline:
    """The timeline of a trace; None processes: as many as its size is worth, up to four.

    What is damaged is left out and counted in `quality`; StepscopeError where nothing is left.
    """
    path = Path(path)
    check_file(path)
    try:
        if processes is None:
            processes = _worth(path)
        readers = _shared(path, processes, block_bytes) if processes > 1 else None
        if readers is None:
            readers = [collect(read_parts(path, 0, 1, block_bytes))]
        return _timeline(path, readers)
    except OSError as error:
        raise StepscopeError(f"{path}: {error.strerror or error}") from error
    except StepscopeError as error:
        raise StepscopeError(f"{path}: {error}") from error


def _worth(path: Path) -> int:
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(0)
        size *= _USUAL_COMPRESSION if file.read(2) == GZIP else 1
    return 1 if size < _WORTH_SHARING else min(available(), MOST_PROCESSES)


def _shared(path: Path, processes: int, block_bytes: int) -> list[Collected] | None:
    """What each of several readers read; None where one process must do it.

    That is so where blocks were cut inside an event, or no process can be started.
    """
    jobs = [(path, part, processes, block_bytes) for part in range(processes)]
    try:
        results = gather(read_parts, jobs, collect, processes)
    except OSError:
        return None
    readers = []
    for reader in results:
        if isinstance(reader, StepscopeError):
            raise reader
        readers.append(reader)
    return readers if fit_together(_in_order(readers)) else None


def _in_order(readers: list[Collected]) -> list[Part]:
    parts = [part for reader in readers for part in reader.parts]
    return sorted(parts, key=lambda part: part.number)


def _timeline(path: Path, readers: list[Collected]) -> Timeline:
    parts = _in_order(readers)
    about = read_about(b"".join(part.outside for part in parts))
    timeline = merge(str(path), readers, about)
    describe(timeline, parts[-1], about)
    return timeline
