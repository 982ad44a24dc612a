"""Replay of an allocator's history: who owned the memory when it was fullest.

Entries and blocks have the shape of torch's CUDA memory snapshot. The history is a ring: what was
allocated before its first entry is inferred from the frees of unknown addresses and from the
blocks still alive at the end. Memory counts until its free is requested, as torch's counter does.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from stepscope.record.frames import Frame, Owner, owner
from stepscope.record.memory import LineBytes, MemoryLines, by_line, grown

Entry = dict[str, Any]


class _Block(NamedTuple):
    bytes: int
    frames: Sequence[dict[str, Any]]  # innermost first; empty when it was not recorded


def replay(
    entries: Sequence[Entry],
    blocks: Iterable[Entry] = (),
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
    return MemoryLines(
        device=device,
        peak_bytes=peak,
        at_peak=_lines(start, entries[:peak_at]),
        growth=grown(_lines(start, entries[:first]), _lines(start, entries[:last])),
    )


def _alive_before(entries: Sequence[Entry], blocks: Iterable[Entry]) -> dict[int, _Block]:
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


def _apply(alive: dict[int, _Block], entry: Entry) -> int:
    """Carry one entry out. Returns the change in bytes."""
    action = entry.get("action")
    if action == "alloc":
        old = alive.get(entry["addr"])
        alive[entry["addr"]] = _Block(entry["size"], entry.get("frames", ()))
        return int(entry["size"]) - (old.bytes if old else 0)
    if action == "free_requested":
        gone = alive.pop(entry["addr"], None)
        return -gone.bytes if gone else 0
    return 0


def _position(entries: Sequence[Entry], moment_us: float) -> int:
    """How many entries lie before a moment; all of them where torch gave no times."""
    for index, entry in enumerate(entries):
        if entry.get("time_us", 0) > moment_us:
            return index
    return len(entries)


def _lines(start: dict[int, _Block], entries: Sequence[Entry]) -> list[LineBytes]:
    alive = dict(start)
    for entry in entries:
        _apply(alive, entry)
    return by_line((_owner(block.frames), block.bytes, 1) for block in alive.values())


def _owner(frames: Sequence[dict[str, Any]]) -> Owner:
    return owner(
        Frame(str(f.get("name", "")), str(f.get("filename", "")), int(f.get("line", 0)))
        for f in frames
    )
