"""Decodes one reader's blocks of a trace: fast where all is well, event by event where not."""

import re
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import DecodeError, ValidationError

from stepscope.record.errors import StepscopeError
from stepscope.record.timeline import NOTHING, Column, column_types
from stepscope.trace.format import Repair
from stepscope.trace.kineto.blocks import (
    BETWEEN,
    LARGEST_EVENT,
    WHOLE,
    Share,
    blocks,
    open_text,
)
from stepscope.trace.kineto.chunks import Chunk
from stepscope.trace.kineto.columns import ColumnBuilder
from stepscope.trace.kineto.events import EXACT, FAST, LAX, InexactError
from stepscope.trace.kineto.repair import repair
from stepscope.trace.limits import EventBudget

SMALL_PIECE = 1 << 14  # bytes: what is read with care at a time
MOST_OUTSIDE = 64 << 20  # bytes of a trace that are not events
_EVENTS = re.compile(rb'(?<!\\)"traceEvents"\s*:\s*\[')
_NUMBER_AS_TEXT = re.compile(
    rb'"(?:ts|dur|device|correlation|[Ee]xternal id|Sequence number|registers per thread|'
    rb"shared memory|blocks per SM|warps per SM|est\. achieved occupancy %|graph id|graph node id|"
    rb"In msg nelems|Out msg nelems|Group size|Total Reserved|Total Allocated|Device Id|"
    rb'Device Type|Addr)"\s*:\s*"'
)


class BlockReader:
    """Follows the text of a trace: outside the list of events, or inside."""

    def __init__(self, builder: ColumnBuilder) -> None:
        self._builder = builder
        self._decoder = FAST
        self.restart(inside=False)

    def restart(self, *, inside: bool) -> None:
        """Begin at the start of a trace, or between two events."""
        self.inside = self._opened = inside
        self.outside = bytearray()  # the trace without its events
        self.rest = b""  # the beginning of an event whose end has not come yet
        self._searched = 0

    def read_block(self, text: bytearray, *, last: bool) -> None:
        """Read a block; what cannot be decoded whole is halved until the trouble is small."""
        pieces = [text]
        while pieces:
            piece = pieces.pop()
            known = len(self.rest)
            piece[:0] = self.rest
            self.rest = b""
            if len(piece) < 2 * known and (pieces or not last):
                self._keep(piece)  # a long event is not tried again at every piece of it
            elif not self.inside:
                pieces += self._find_events(piece)
            elif not self._decoded(piece):
                halves = [] if known else _halves(piece)
                pieces += halves or self._mend(piece, last=last and not pieces)

    def _find_events(self, piece: bytearray) -> list[bytearray]:
        """Go on to the list of events; a trace may also be nothing but that list."""
        searched = max(self._searched, len(self.outside) - 64)
        self.outside += piece
        if len(self.outside) > MOST_OUTSIDE:
            raise StepscopeError(
                f"over {MOST_OUTSIDE >> 20} MB of non-event data; refusing to read further"
            )
        if not self._opened and self.outside[:100].lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"[":
            end = self.outside.index(b"[") + 1
        elif found := _EVENTS.search(self.outside, searched):
            end = found.end()
        else:
            return []
        piece = self.outside[end:]
        del self.outside[end:]
        self._searched = end
        self.inside = self._opened = True
        return [piece]

    def _decoded(self, piece: bytearray) -> bool:
        """Whether the piece was a run of whole events, which then are in the builder."""
        # Without the comma that may stand before the first event.
        wrapped = b"".join((b"[", memoryview(piece)[piece[:1] == b"," :], b"]"))
        for decoder in (self._decoder, LAX[self._decoder]):
            try:
                events = decoder.decode(wrapped)
                break
            except ValidationError:
                continue
            except (DecodeError, UnicodeDecodeError, RecursionError):
                return False
        else:
            return False
        try:
            self._builder.add(events)
        except InexactError:
            self._decoder = EXACT
            return self._decoded(piece)
        if decoder is not self._decoder:
            count = len(_NUMBER_AS_TEXT.findall(wrapped))
            self._builder.chunk.repaired[Repair.NUMBER_AS_TEXT] += count
        return True

    def _mend(self, piece: bytearray, *, last: bool) -> list[bytearray]:
        """Read event by event; what follows the list's end is handed back."""
        mended = repair(piece, last=last)
        self._builder.add(mended.events)
        chunk = self._builder.chunk
        chunk.read += sum(mended.dropped.values())
        chunk.repaired += mended.repaired
        chunk.dropped += mended.dropped
        if mended.closed:
            self.inside = False
            self.outside += b"]"
            return [bytearray(mended.rest)]
        self._keep(mended.rest)
        return []

    def _keep(self, rest: bytes | bytearray) -> None:
        if len(rest) > LARGEST_EVENT:
            raise StepscopeError(
                f"an event of over {LARGEST_EVENT >> 20} MB; refusing to read further"
            )
        self.rest = bytes(rest)


def _halves(piece: bytearray) -> list[bytearray]:
    """Two parts of a large piece, the second first; [] where it is small or cannot be cut."""
    cut = BETWEEN.search(piece, len(piece) // 2) if len(piece) > SMALL_PIECE else None
    return [piece[cut.start(1) :], piece[: cut.start(1)]] if cut else []


_SPACE = b"\xef\xbb\xbf \t\r\n"
_NOT_TEXT = {
    b"PK\x03\x04": "a zip archive: unpack it first",
    b"(\xb5/\xfd": "compressed with zstd: unpack it first",
    b"\xfd7zXZ": "compressed with xz: unpack it first",
    b"BZh": "compressed with bzip2: unpack it first",
    b"7z\xbc\xaf": "a 7z archive: unpack it first",
    b"SQLite format 3\0": "a compressed SQLite file: gunzip it first",
}


@dataclass(slots=True)
class Part:
    """A block of a trace, read."""

    number: int
    chunk: Chunk
    outside: bytes  # text that is not events; the whole of it in the last of one reader's parts
    inside: bool  # at its end the list of events was still open
    rest: int  # bytes of an event whose end did not come
    size: int  # bytes of text up to its end
    damage: str | None  # why the file ended here, None where it did not or should


def read_parts(path: Path, block_bytes: int, share: Share = WHOLE) -> Iterator[Part]:
    """Every block of a trace, or those of one of several readers: then each is read by itself."""
    with closing(open_text(path)) as source:
        _check_start(source.window(0, 4096), source.damage)
        builder = ColumnBuilder()
        reader = BlockReader(builder)
        size = 0
        alone = share.readers > 1
        for number, text, last in blocks(source, block_bytes, share):
            size = number * block_bytes + len(text)
            if alone:
                reader.restart(inside=number > 0)
            reader.read_block(text, last=last)
            outside = bytes(reader.outside) if last or alone else b""
            rest, damage = len(reader.rest), source.damage if last else None
            yield Part(number, builder.flush(), outside, reader.inside, rest, size, damage)


def fit_together(parts: list[Part]) -> bool:
    """Whether blocks that were read by themselves were all cut between two events."""
    return bool(parts) and all(part.inside and not part.rest for part in parts[:-1])


def _check_start(head: bytes, damage: str | None) -> None:
    start = head.lstrip(_SPACE)[:1]
    if not head.strip(_SPACE):
        raise StepscopeError(f"{damage}: nothing could be read" if damage else "the file is empty")
    for mark, what in _NOT_TEXT.items():
        if head.startswith(mark):
            raise StepscopeError(what)
    if start == b"<":
        raise StepscopeError("a web page or XML, not a trace: was the download refused?")
    if start not in (b"{", b"["):
        raise StepscopeError("not a trace: expected JSON, gzip or an Nsight Systems export")


class GrowingColumn:
    """A column that is extended without a second copy of it in memory."""

    def __init__(self, dtype: type) -> None:
        self._array: Column = np.empty(0, dtype)
        self._size = 0

    def __getstate__(self) -> tuple[None, dict[str, Any]]:
        """For another process: without the room to grow."""
        return None, {"_array": self._array[: self._size], "_size": self._size}

    def extend(self, values: Column | None, count: int) -> None:
        """Add `count` values; None: nothing is known of them."""
        size = self._size + count
        if size > len(self._array):
            self._array.resize(size + size // 4, refcheck=False)
        missing = NOTHING if self._array.dtype != np.uint8 else 0
        self._array[self._size : size] = missing if values is None else values
        self._size = size

    def take(self) -> Column:
        """The column, of which this keeps nothing."""
        array, self._array = self._array, np.empty(0, self._array.dtype)
        array.resize(self._size, refcheck=False)
        self._size = 0
        return array


@dataclass(slots=True)
class CollectedParts:
    """What one reader read. The columns of its parts stand one after the other in `columns`."""

    parts: list[Part] = field(default_factory=list)
    rows: list[dict[type, int]] = field(default_factory=list)  # of each part, by table
    columns: dict[type, dict[str, GrowingColumn]] = field(default_factory=dict)

    def add(self, part: Part) -> None:
        chunk, part.chunk.columns = part.chunk.columns, {}
        rows = {}
        for table, columns in chunk.items():
            rows[table] = len(next(iter(columns.values())))
            growing = self.columns.setdefault(
                table, {name: GrowingColumn(dtype) for name, dtype in column_types(table).items()}
            )
            for name, column in growing.items():
                column.extend(columns.get(name), rows[table])
        self.rows.append(rows)
        self.parts.append(part)


def collect_parts(parts: Iterable[Part], budget: EventBudget) -> CollectedParts:
    """All parts of a reader; StepscopeError where there are too many events to hold."""
    collected = CollectedParts()
    total = 0
    for part in parts:
        collected.add(part)
        total += sum(collected.rows[-1].values()) + len(part.chunk.halves)
        budget.check(total)
    return collected
