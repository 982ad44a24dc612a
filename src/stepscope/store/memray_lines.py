"""Reduce memray's recording of a program to the lines that own its memory.

Runs in the parent after the program has ended, however it ended: memray writes through a shared
map, so what it recorded survives SIGKILL.
"""

import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from stepscope.record.errors import BrokenRun, MissingExtra
from stepscope.record.frames import Frame, Owner, owner
from stepscope.record.memory import (
    CPU_LINES,
    CPU_MARKS,
    CPU_RAW,
    LineBytes,
    MemoryLines,
    by_line,
    grown,
)

MOMENTS = 16
"""How many moments at each end of the marked stretch are looked at for growth."""


def reduce_memray(folder: Path, *, keep: bool = False) -> MemoryLines | None:
    """Write `memory-cpu.json` from the raw recording, which is then removed unless kept.

    None when nothing was recorded; BrokenRun when it cannot be read.
    """
    raw = folder / CPU_RAW
    if not raw.exists():
        return None
    lines = read_memray(raw, *_marks(folder / CPU_MARKS))
    (folder / CPU_LINES).write_text(json.dumps(lines.to_json()))
    if not keep:
        raw.unlink()
        with suppress(FileNotFoundError):
            (folder / CPU_MARKS).unlink()
    return lines


def read_memray(
    raw: Path, first_ms: int | None = None, last_ms: int | None = None, truncated: bool = False
) -> MemoryLines:
    """The owners of a recording's peak and of its growth between two moments (ms of the epoch)."""
    try:
        import memray
    except ImportError:
        raise MissingExtra("memray", "memory", "--memory") from None
    try:
        with memray.FileReader(raw) as reader:
            peak = list(reader.get_high_watermark_allocation_records(merge_threads=True))
            lives = list(reader.get_temporal_allocation_records(merge_threads=True))
            times = [snapshot.time for snapshot in reader.get_memory_snapshots()]
            before, after = _ends(times, first_ms, last_ms)
            at_peak = by_line((_owner(r), r.size, r.n_allocations) for r in peak)
            growth = grown(_lasting(lives, before), _lasting(lives, after))
    except (OSError, RuntimeError, ValueError) as error:
        raise BrokenRun(f"the memory recording {raw} cannot be read: {error}") from None
    peak_bytes = sum(line.bytes for line in at_peak)
    return MemoryLines("cpu", peak_bytes, at_peak, growth, truncated=truncated)


def _marks(path: Path) -> tuple[int | None, int | None, bool]:
    """First and last mark in ms of the epoch, and whether recording stopped at its size limit."""
    try:
        first, last, stopped = (int(word) for word in path.read_text().split())
    except (OSError, ValueError):
        return None, None, False
    return first, last, bool(stopped)


def _ends(
    times: Sequence[int], first_ms: int | None, last_ms: int | None
) -> tuple[list[int], list[int]]:
    """Indices of snapshots in the first and the last tenth of the stretch between two moments.

    Snapshots fall anywhere in a step, so one alone would take passing memory for growth.
    """
    if not times:
        return [], []
    first = times[0] if first_ms is None else first_ms
    last = times[-1] if last_ms is None else last_ms
    tenth = max(0, last - first) / 10
    return _spread(times, first, first + tenth), _spread(times, last - tenth, last)


def _spread(times: Sequence[int], begin: float, end: float) -> list[int]:
    """Up to MOMENTS indices evenly over the times within [begin, end], at least one."""
    low, high = bisect_left(times, begin), bisect_right(times, end)
    if low >= high:
        return [min(low, len(times) - 1)]
    stride = max(1, (high - low) // MOMENTS)
    return list(range(low, high, stride))[:MOMENTS]


def _lasting(lives: Iterable[Any], moments: list[int]) -> list[LineBytes]:
    """What each line owned at every one of some moments: its least over them."""
    held: dict[Owner, tuple[list[int], list[int]]] = {}
    for record in lives:
        sizes, counts = held.setdefault(_owner(record), ([0] * len(moments), [0] * len(moments)))
        for span in record.intervals:
            begin = bisect_left(moments, span.allocated_before_snapshot)
            gone = span.deallocated_before_snapshot
            end = len(moments) if gone is None else bisect_left(moments, gone)
            for index in range(begin, end):
                sizes[index] += span.n_bytes
                counts[index] += span.n_allocations
    return by_line(
        (who, min(sizes), min(counts)) for who, (sizes, counts) in held.items() if moments
    )


def _owner(record: Any) -> Owner:
    return owner(Frame(*frame) for frame in record.stack_trace())
