"""Which source lines own memory, from torch's CUDA allocation history and memray's recording.

CUDA's history is a ring: allocations before its first entry are inferred from frees of unknown
addresses and from blocks alive at the end. Memory counts until its free is requested, as in torch's
own counter. memray's recording survives SIGKILL; the parent reduces it.
"""

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple, TypedDict

from stepscope.record.errors import BrokenRun, MissingExtra
from stepscope.record.frames import Frame, Owner, find_owner
from stepscope.store.json_file import write_json

CUDA_LINES: Final = "memory-cuda.json"
CPU_LINES: Final = "memory-cpu.json"
CPU_RAW: Final = "memory.memray"
CPU_MARKS: Final = "memory-marks.txt"
_Line = tuple[str, int, str]


@dataclass(frozen=True)
class LineBytes:
    """Bytes owned by one line of the program.

    `file` is "" if no frame of the program was on the stack: on CUDA mostly memory of the backward
    pass, which torch runs on its own thread.
    """

    file: str
    line: int
    function: str
    detail: str  # the library code that asked for most of it, as `module.function`
    bytes: int
    count: int  # blocks; for growth, the additional ones


@dataclass(frozen=True)
class MemoryLines:
    """Who owned the memory at its peak, and which lines grew between the first mark and the last
    (net bytes). Sizes are as requested, before the allocator rounds them up."""

    device: str
    peak_bytes: int
    at_peak: list[LineBytes]
    growth: list[LineBytes]
    allocator_peak_bytes: int | None = None  # the allocator's own counter; None: it has none
    retries: int | None = None  # allocations that succeeded only after emptying the cache
    truncated: bool = False  # the history does not cover the whole run


def _sum_by_line(blocks: Iterable[tuple[Owner, int, int]]) -> list[LineBytes]:
    """Add up (owner, bytes, count) per line of the program, largest first."""
    sizes: defaultdict[_Line, Counter[str]] = defaultdict(Counter)
    counts: Counter[_Line] = Counter()
    for who, size, count in blocks:
        line = who.file, who.line, who.function
        sizes[line][who.detail] += size
        counts[line] += count
    rows = []
    for line, asked in sizes.items():
        detail = max(asked, key=lambda name: (asked[name], name))
        rows.append(LineBytes(*line, detail, asked.total(), counts[line]))
    return _largest_first(rows)


def _growth_by_line(before: list[LineBytes], after: list[LineBytes]) -> list[LineBytes]:
    """Lines that own more bytes after than before, by how much, largest first."""
    had = {(row.file, row.line, row.function): (row.bytes, row.count) for row in before}
    rows = []
    for row in after:
        size, count = had.get((row.file, row.line, row.function), (0, 0))
        if row.bytes > size:
            rows.append(replace(row, bytes=row.bytes - size, count=row.count - count))
    return _largest_first(rows)


def _largest_first(rows: list[LineBytes]) -> list[LineBytes]:
    return sorted(rows, key=lambda row: (-row.bytes, row.file, row.line, row.function))


class HistoryFrame(TypedDict, total=False):
    """A frame of torch's allocation history."""

    name: str
    filename: str
    line: int


class HistoryEntry(TypedDict, total=False):
    """An entry of torch's allocation history, or a block of a snapshot's segment."""

    action: str
    addr: int
    size: int
    time_us: int
    frames: Sequence[HistoryFrame]  # innermost first
    state: str
    address: int
    requested_size: int


class _Block(NamedTuple):
    bytes: int
    frames: Sequence[HistoryFrame]  # empty when it was not recorded


def replay_cuda_history(
    entries: Sequence[HistoryEntry],
    blocks: Iterable[HistoryEntry] = (),
    *,
    first_us: float | None = None,
    last_us: float | None = None,
    device: str = "cuda",
) -> MemoryLines:
    """The lines that own the peak of one device's history, and growth between two moments.

    Moments are microseconds since the epoch; None means the history's first or last entry.
    """
    start = _alive_before(entries, blocks)
    total = peak = sum(block.bytes for block in start.values())
    peak_at = 0
    alive = dict(start)
    for index, entry in enumerate(entries):
        total += _apply(alive, entry)
        if total > peak:
            peak, peak_at = total, index + 1
    first = 0 if first_us is None else _position(entries, first_us)
    last = len(entries) if last_us is None else _position(entries, last_us)
    at_peak, before, after = (_lines_alive(start, entries[:n]) for n in (peak_at, first, last))
    return MemoryLines(device, peak, at_peak, _growth_by_line(before, after))


def _alive_before(
    entries: Sequence[HistoryEntry], blocks: Iterable[HistoryEntry]
) -> dict[int, _Block]:
    """What was alive before the first entry."""
    found: dict[int, _Block] = {}
    seen: set[int] = set()
    for entry in entries:
        action = entry.get("action")
        if action == "free_requested" and entry["addr"] not in seen:
            found[entry["addr"]] = _Block(entry["size"], ())
        if action in ("alloc", "free_requested"):
            seen.add(entry["addr"])
    for block in blocks:
        if block.get("state") == "active_allocated" and block["address"] not in seen:
            size = block["requested_size"] if "requested_size" in block else block["size"]
            found[block["address"]] = _Block(size, block.get("frames", ()))
    return found


def _apply(alive: dict[int, _Block], entry: HistoryEntry) -> int:
    """Apply one entry. Returns the change in bytes."""
    action = entry.get("action")
    if action not in ("alloc", "free_requested"):
        return 0
    gone = alive.pop(entry["addr"], None)
    freed = gone.bytes if gone else 0
    if action == "free_requested":
        return -freed
    alive[entry["addr"]] = _Block(entry["size"], entry.get("frames", ()))
    return entry["size"] - freed


def _position(entries: Sequence[HistoryEntry], moment_us: float) -> int:
    """How many entries precede a moment; all of them if torch gave no times."""
    later = (i for i, entry in enumerate(entries) if entry.get("time_us", 0) > moment_us)
    return next(later, len(entries))


def _lines_alive(start: dict[int, _Block], entries: Sequence[HistoryEntry]) -> list[LineBytes]:
    alive = dict(start)
    for entry in entries:
        _apply(alive, entry)
    owned = []
    for block in alive.values():
        frames = block.frames
        stack = (Frame(f.get("name", ""), f.get("filename", ""), f.get("line", 0)) for f in frames)
        owned.append((find_owner(stack), block.bytes, 1))
    return _sum_by_line(owned)


MAX_SNAPSHOTS = 16
"""How many moments at each end of the marked stretch are compared for growth."""


def reduce_memray(folder: Path, *, keep: bool = False) -> MemoryLines | None:
    """Write `memory-cpu.json` from the raw recording, then remove that unless `keep`.

    None if nothing was recorded; raises BrokenRun if it cannot be read.
    """
    raw = folder / CPU_RAW
    if not raw.exists():
        return None
    lines = read_memray(raw, *_marks(folder / CPU_MARKS))
    write_json(folder / CPU_LINES, asdict(lines), indent=None)
    if not keep:
        raw.unlink()
        (folder / CPU_MARKS).unlink(missing_ok=True)
    return lines


def read_memray(
    raw: Path, first_ms: int | None = None, last_ms: int | None = None, truncated: bool = False
) -> MemoryLines:
    """The owners of a recording's peak and of its growth between two moments (ms since the
    epoch)."""
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
            at_peak = _sum_by_line((_owner_of_record(r), r.size, r.n_allocations) for r in peak)
            growth = _growth_by_line(_lasting(lives, before), _lasting(lives, after))
    except (OSError, RuntimeError, ValueError) as error:
        raise BrokenRun(f"cannot read the memory recording {raw}: {error}") from None
    peak_bytes = sum(line.bytes for line in at_peak)
    return MemoryLines("cpu", peak_bytes, at_peak, growth, truncated=truncated)


def _marks(path: Path) -> tuple[int | None, int | None, bool]:
    """First and last mark in ms since the epoch, and whether recording stopped at its size
    limit."""
    try:
        first, last, stopped = (int(word) for word in path.read_text().split())
    except (OSError, ValueError):
        return None, None, False
    return first, last, bool(stopped)


def _ends(
    times: Sequence[int], first_ms: int | None, last_ms: int | None
) -> tuple[list[int], list[int]]:
    """Indices of snapshots in the first and last tenth of the time between two moments.

    Snapshots fall anywhere in a step, so a single one would mistake passing memory for growth.
    """
    if not times:
        return [], []
    first = times[0] if first_ms is None else first_ms
    last = times[-1] if last_ms is None else last_ms
    tenth = max(0, last - first) / 10
    return _spread(times, first, first + tenth), _spread(times, last - tenth, last)


def _spread(times: Sequence[int], begin: float, end: float) -> list[int]:
    """Up to MAX_SNAPSHOTS indices evenly over the times within [begin, end], at least one."""
    low, high = bisect_left(times, begin), bisect_right(times, end)
    if low >= high:
        return [min(low, len(times) - 1)]
    stride = max(1, (high - low) // MAX_SNAPSHOTS)
    return list(range(low, high, stride))[:MAX_SNAPSHOTS]


def _lasting(lives: Iterable[Any], moments: list[int]) -> list[LineBytes]:
    """What each line owned throughout some moments: its minimum over them."""
    held: dict[Owner, tuple[list[int], list[int]]] = {}
    for record in lives:
        nothing = [0] * len(moments), [0] * len(moments)
        sizes, counts = held.setdefault(_owner_of_record(record), nothing)
        for span in record.intervals:
            begin = bisect_left(moments, span.allocated_before_snapshot)
            gone = span.deallocated_before_snapshot
            end = len(moments) if gone is None else bisect_left(moments, gone)
            for index in range(begin, end):
                sizes[index] += span.n_bytes
                counts[index] += span.n_allocations
    return _sum_by_line(
        (who, min(sizes), min(counts)) for who, (sizes, counts) in held.items() if moments
    )


def _owner_of_record(record: Any) -> Owner:
    return find_owner(Frame(*frame) for frame in record.stack_trace())
