"""Which source lines own memory: the shape shared by CUDA's history and memray's."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Final

from stepscope.record.errors import BrokenRun
from stepscope.record.frames import Owner

CUDA_LINES: Final = "memory-cuda.json"
CPU_LINES: Final = "memory-cpu.json"
CPU_RAW: Final = "memory.memray"
CPU_MARKS: Final = "memory-marks.txt"


@dataclass(frozen=True)
class LineBytes:
    """Bytes owned by one line of the program.

    `file` is "" when no frame of it was on the stack: on CUDA mostly memory of the backward pass,
    which torch runs on a thread of its own.
    """

    file: str
    line: int
    function: str
    detail: str  # the library code that asked for most of it, as `module.function`
    bytes: int
    count: int  # blocks; for growth, how many more of them


@dataclass(frozen=True)
class MemoryLines:
    """Who owned the memory at its peak, and which lines kept growing between the first mark and
    the last (net bytes). Sizes are as requested, before the allocator rounds them up."""

    device: str
    peak_bytes: int
    at_peak: list[LineBytes]
    growth: list[LineBytes]
    allocator_peak_bytes: int | None = None  # by the allocator's own counter; None: it has none
    retries: int | None = None  # allocations that succeeded only after emptying the cache
    truncated: bool = False  # the history does not cover the whole run

    def to_json(self) -> dict[str, Any]:
        """Plain data for the run folder."""
        return asdict(self)


def memory_lines(data: Any) -> MemoryLines:
    """Read back what `to_json` gave. Raises BrokenRun when it has another shape."""
    try:
        fields = {**data, "at_peak": _lines(data["at_peak"]), "growth": _lines(data["growth"])}
        return MemoryLines(**fields)
    except (TypeError, KeyError, ValueError) as error:
        raise BrokenRun(f"the memory lines of this run cannot be read: {error}") from None


def _lines(items: Iterable[dict[str, Any]]) -> list[LineBytes]:
    return [LineBytes(**item) for item in items]


def by_line(blocks: Iterable[tuple[Owner, int, int]]) -> list[LineBytes]:
    """Add up (owner, bytes, count) per line of the program, largest first."""
    totals: dict[tuple[str, int, str], list[int]] = {}
    details: dict[tuple[str, int, str], dict[str, int]] = {}
    for who, size, count in blocks:
        key = (who.file, who.line, who.function)
        total = totals.setdefault(key, [0, 0])
        total[0] += size
        total[1] += count
        asked = details.setdefault(key, {})
        asked[who.detail] = asked.get(who.detail, 0) + size
    rows = [
        LineBytes(*key, _largest(details[key]), size, count)
        for key, (size, count) in totals.items()
    ]
    return _largest_first(rows)


def grown(before: list[LineBytes], after: list[LineBytes]) -> list[LineBytes]:
    """Lines that own more bytes after than before, by how much, largest first."""
    had = {(row.file, row.line, row.function): row for row in before}
    rows = []
    for row in after:
        old = had.get((row.file, row.line, row.function))
        more = row.bytes - (old.bytes if old else 0)
        if more > 0:
            count = row.count - (old.count if old else 0)
            rows.append(LineBytes(row.file, row.line, row.function, row.detail, more, count))
    return _largest_first(rows)


def _largest(sizes: dict[str, int]) -> str:
    return max(sizes, key=lambda name: (sizes[name], name))


def _largest_first(rows: list[LineBytes]) -> list[LineBytes]:
    return sorted(rows, key=lambda row: (-row.bytes, row.file, row.line, row.function))
