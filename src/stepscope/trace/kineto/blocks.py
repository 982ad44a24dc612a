"""A trace's text, plain or gzip, read forward in windows and cut into blocks between two events.

Block n holds what lies between the first cut at or after n * size and the first at or after (n +
1) * size, so several readers can each cut their own blocks and still agree. A place that looks
like a cut may lie inside an event's arguments: decoding the block shows it.
"""

import re
import zlib
from collections.abc import Iterator
from itertools import chain, count
from pathlib import Path
from typing import Any, NamedTuple

from stepscope.record.errors import StepscopeError

inflate: Any
try:
    from isal import isal_zlib as inflate
except ImportError:  # no wheel for this machine: four times slower, otherwise the same
    inflate = zlib

GZIP = b"\x1f\x8b"
MOST_EXPANSION = 100  # times; traces compress 10- to 30-fold, a file meant to harm up to 1000-fold
_ALWAYS_READ = 64 << 20  # bytes of text, however far they unfold
_STEP = 1 << 18
_ERRORS = (zlib.error, inflate.error)


class PlainText:
    """A file as it is, read forward."""

    def __init__(self, path: Path) -> None:
        self.damage: str | None = None  # why it ended early, None where it did not
        self._file = path.open("rb", buffering=0)

    def window(self, start: int, stop: int) -> bytes:
        """The bytes from start to stop, fewer at the end. Starts never go back."""
        self._file.seek(start)
        parts = []
        while stop > start and (part := self._file.read(stop - start)):
            parts.append(part)
            start += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        self._file.close()


class GzipText:
    """A gzip file; several members count as one text, what follows the last is passed over."""

    def __init__(self, path: Path) -> None:
        self.damage: str | None = None
        self._file = path.open("rb")
        self._engine: Any = None  # of the member being read
        self._compressed = b""
        self._taken = 0  # of the compressed bytes
        self._start = 0  # where the buffer begins in the text
        self._buffer = bytearray()
        self._ended = False

    def window(self, start: int, stop: int) -> bytes:
        while not self._ended and self._start + len(self._buffer) < stop:
            if self._start + len(self._buffer) <= start:
                self._start += len(self._buffer)
                self._buffer.clear()
            self._buffer += self._more()
            self._check()
        if start > self._start:
            del self._buffer[: start - self._start]
            self._start = start
        return bytes(memoryview(self._buffer)[: max(stop - start, 0)])

    def close(self) -> None:
        self._file.close()

    def _more(self) -> bytes:
        """The next piece of text; b"" may also mean that a member has just ended."""
        if len(self._compressed) < len(GZIP):
            part = self._file.read(_STEP)
            self._taken += len(part)
            self._compressed += part
        if self._engine is None:
            if not self._compressed.startswith(GZIP):
                self._ended = True
                return b""
            self._engine = inflate.decompressobj(31)
        ending = not self._compressed
        try:
            text: bytes = self._engine.decompress(self._compressed, _STEP)
        except _ERRORS:
            self.damage, self._ended = "its compressed data is damaged", True
            return b""
        self._compressed = self._engine.unconsumed_tail
        if self._engine.eof:
            self._compressed = self._engine.unused_data
            self._engine = None
        elif ending and not text:
            self.damage, self._ended = "its compressed data ends too early", True
        return text

    def _check(self) -> None:
        text = self._start + len(self._buffer)
        if text > _ALWAYS_READ and text > MOST_EXPANSION * self._taken:
            raise StepscopeError(
                f"expands to more than {MOST_EXPANSION} times its size (traces: 10 to 30 times);"
                " if you trust it, gunzip it first"
            )


TextSource = PlainText | GzipText


def open_text(path: Path) -> TextSource:
    """A file's text, decompressed where it starts like gzip, whatever its name says."""
    with path.open("rb") as file:
        compressed = file.read(len(GZIP)) == GZIP
    return GzipText(path) if compressed else PlainText(path)


BLOCK = 1 << 19  # its events just fit in the second level of a cache
LARGEST_EVENT = 64 << 20
"""Bytes. A longer stretch without a place to cut is refused, so that memory stays bounded."""

BETWEEN = re.compile(
    rb'\}\s{0,999}(,)\s{0,999}\{\s{0,999}"(?:ph|name|cat|pid|tid|ts|dur|args|s|bp)"\s{0,999}:'
)
_AHEAD = 1 << 13  # longer than any match of BETWEEN


class Share(NamedTuple):
    """The blocks of one of several readers, who take turns."""

    reader: int = 0
    readers: int = 1
    ahead: int = 0  # blocks that the first reads before the others have begun

    def numbers(self) -> Iterator[int]:
        own = range(self.ahead) if self.reader == 0 else ()
        return chain(own, count(self.ahead + self.reader, self.readers))


WHOLE = Share()


def blocks(
    source: TextSource, size: int = BLOCK, share: Share = WHOLE
) -> Iterator[tuple[int, bytearray, bool]]:
    """The number, text and whether it is the last, of every block of a reader.

    Every text but the first starts with the comma between two events. Empty blocks are left out.
    """
    without = 0
    for number in share.numbers():
        start = number * size
        text = source.window(start, start + size + _AHEAD)
        if not text:
            return
        begin = 0
        if number:
            match = BETWEEN.search(text)
            begin = match.start(1) if match and match.start() < size else -1
        without = 0 if begin >= 0 else without + size
        if without > LARGEST_EVENT:  # all of it belongs to readers of other parts, or to no event
            raise _no_boundary(start + size - without * share.readers, start + size)
        if begin >= 0:
            text, end, last = _until_cut(source, start, text, size)
            yield number, bytearray(memoryview(text)[begin:end]), last


def _until_cut(source: TextSource, start: int, text: bytes, size: int) -> tuple[bytes, int, bool]:
    """More text if need be, where the block ends in it, and whether the file ends there."""
    reach = size + _AHEAD
    while not (match := BETWEEN.search(text, min(size, len(text)))):
        if len(text) < reach:
            return text, len(text), True
        if reach > size + LARGEST_EVENT:
            raise _no_boundary(start + size, start + reach)
        reach = size + 2 * (reach - size)
        text = source.window(start, start + reach)
    return text, match.start(1), False


def _no_boundary(start: int, end: int) -> StepscopeError:
    return StepscopeError(
        f"no event boundary in bytes {start:,}–{end:,} (limit {LARGEST_EVENT >> 20} MB per event): "
        "not a trace?"
    )
