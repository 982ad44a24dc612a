"""Kineto and Chrome JSON traces, plain or gzip, as a timeline with notes on its quality.

Memory stays bounded: an event may have up to 64 MB (`LARGEST_EVENT`), all that is not events up
to 64 MB, a gzip file may expand 100-fold (`MOST_EXPANSION`), a timeline may hold as many events as
fit in the memory that is free (`limits.event_budget`). However long, text is read in pieces.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from stepscope.record.errors import StepscopeError
from stepscope.record.timeline import NOTHING, HostKind, Quality, Timeline
from stepscope.trace.format import TraceFormat
from stepscope.trace.kineto.blocks import BLOCK, GZIP, Share
from stepscope.trace.kineto.merge import TraceHeader, merge_readers, read_header
from stepscope.trace.kineto.reader import (
    CollectedParts,
    Part,
    collect_parts,
    fit_together,
    read_parts,
)
from stepscope.trace.limits import EventBudget, check_file, event_budget
from stepscope.trace.workers import run_jobs, usable_cores


def _note_quality(timeline: Timeline, last: Part, about: TraceHeader) -> None:
    """Add notes to a timeline's quality; StepscopeError where it has no events at all."""
    host, device, quality = timeline.host, timeline.device, timeline.quality
    if not quality.kept:
        raise StepscopeError(_why_nothing(quality, last))
    if last.inside or last.damage or not about.whole:
        quality.truncated = True
        quality.notes.append(
            f"{last.damage or 'the file is cut short'} after {last.size / 1e6:,.1f} MB of text and "
            f"{quality.read:,} events, which cover {timeline.span[1] / 1e6:,.1f} ms"
        )
    linked = device.launch != NOTHING
    calls = host.correlation[(host.kind == HostKind.RUNTIME) & (host.correlation >= 0)]
    first = int(calls.min()) if len(calls) else 0
    early = ~linked & (device.correlation >= 0) & (device.correlation < first)
    for alone, what in (
        (early, "were launched before the recording began"),
        (~linked & ~early, "have no recorded launch"),
    ):
        if count := int(alone.sum()):
            quality.notes.append(f"{count:,} of {len(device):,} device events {what}")
    lead = host.start[device.launch[linked]] - device.start[linked]
    if (lead > 0).any():
        quality.notes.append(
            f"{int((lead > 0).sum()):,} device events start up to {int(lead.max()) / 1000:,.1f} µs "
            "before their launch: host and device clocks differ"
        )
    times = host.start if len(host) else device.start
    if (np.diff(times) > 3600 * 10**9).any():
        quality.notes.append("gap of over an hour between events: some timestamps may be wrong")


def _why_nothing(quality: Quality, last: Part) -> str:
    if last.damage:
        return f"{last.damage}: no event could be read"
    if quality.read:
        reasons = sorted({**quality.dropped, **quality.ignored}.items(), key=lambda item: -item[1])
        listed = "; ".join(f"{count:,} {reason}" for reason, count in reasons[:3])
        return f"no operators, kernels or memory events in it ({listed})"
    return 'JSON, but not a trace: no events ("traceEvents")'


MOST_PROCESSES = 4
_WORTH_SHARING = 128 << 20  # bytes of text: below, one process is done before others have begun
_HEAD_START = 32 << 20  # bytes of text that this process reads while others start
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
        _check_holes(path)
        size = _text_bytes(path)
        if processes is None:
            processes = 1 if size < _WORTH_SHARING else min(usable_cores(), MOST_PROCESSES)
        ahead = min(_HEAD_START, size // 8) // block_bytes
        shares = [Share(reader, processes, ahead) for reader in range(processes)]
        readers = _read_in_parallel(path, block_bytes, shares) if processes > 1 else None
        if readers is None:
            readers = [collect_parts(read_parts(path, block_bytes), event_budget())]
        parts = _in_order(readers)
        about = read_header(b"".join(part.outside for part in parts))
        timeline = merge_readers(str(path), readers, about)
        _mark_ranges(timeline)
        _note_quality(timeline, parts[-1], about)
        return timeline
    except OSError as error:
        raise StepscopeError(f"{path}: {error.strerror or error}") from error
    except StepscopeError as error:
        raise StepscopeError(f"{path}: {error}") from error


_RANGES = ("ProfilerStep#", "Optimizer.step#", "Optimizer.zero_grad#", "enumerate(DataLoader)#")


def _mark_ranges(timeline: Timeline) -> None:
    """torch's own ranges are annotations, also where an old torch (1.8) calls them operators."""
    host, named = timeline.host, timeline.named(*_RANGES)
    if named.any():
        host.kind[(host.kind == HostKind.OPERATOR) & np.append(named, False)[host.name]] = (
            HostKind.ANNOTATION
        )


def _check_holes(path: Path) -> None:
    """StepscopeError where much of a file was never written: zeros inside of gzip can be events
    over and over, as many as the hole is long."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        if size < _WORTH_SHARING or not hasattr(os, "SEEK_HOLE"):
            return
        hole = file.seek(0, os.SEEK_HOLE)  # the file's end where there is none
    if hole < size:
        raise StepscopeError(f"nothing was written at byte {hole:,} of {size:,}: not a whole trace")


def _text_bytes(path: Path) -> int:
    """About, where it is compressed."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(0)
        return size * (_USUAL_COMPRESSION if file.read(2) == GZIP else 1)


def _read_in_parallel(
    path: Path, block_bytes: int, shares: list[Share]
) -> list[CollectedParts] | None:
    """What each of several readers read, this process being the first; None where one must do it.

    That is so where blocks were cut inside an event, or no process can be started.
    """
    from concurrent.futures import ThreadPoolExecutor  # imports logging

    budget = event_budget().shared(len(shares))
    own, *jobs = [(path, block_bytes, share, budget) for share in shares]
    results: list[CollectedParts | StepscopeError] = []
    with ThreadPoolExecutor(1) as thread:
        others = thread.submit(run_jobs, _yield_collected, jobs, next, len(jobs))
        try:
            results += _yield_collected(*own)
        except StepscopeError as error:
            results.append(error)
    try:
        results += others.result()
    except OSError:
        return None
    readers = [reader for reader in results if isinstance(reader, CollectedParts)]
    for failure in results:
        if isinstance(failure, StepscopeError):
            raise failure
    return readers if fit_together(_in_order(readers)) else None


def _yield_collected(
    path: Path, block_bytes: int, share: Share, budget: EventBudget
) -> Iterator[CollectedParts]:
    """All at once: handing over block by block would take turns with the reading done here."""
    yield collect_parts(read_parts(path, block_bytes, share), budget)


def _in_order(readers: list[CollectedParts]) -> list[Part]:
    parts = [part for reader in readers for part in reader.parts]
    return sorted(parts, key=lambda part: part.number)


CHROME_JSON = TraceFormat(
    endings=(".json", ".json.gz"),
    recognises=lambda path, head: True,  # the reader says what is wrong with anything else
    read=lambda path, processes: read_kineto(path, processes=processes),
)
