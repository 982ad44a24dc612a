"""Cutting a trace into blocks where one event ends and the next begins.

Block n holds what lies between the first such place at or after n * size and the first at or after
(n + 1) * size, so several readers can each cut their own blocks and still agree. A place that looks
right may lie inside an event's arguments: whether it does shows when the block is decoded.
"""

import re
from collections.abc import Iterator

from stepscope.record.errors import StepscopeError
from stepscope.trace.bytes_in import Source

BLOCK = 1 << 20
LARGEST_EVENT = 64 << 20
"""Bytes. A longer stretch without a place to cut is refused, so that memory stays bounded."""

BETWEEN = re.compile(
    rb'\}\s{0,999}(,)\s{0,999}\{\s{0,999}"(?:ph|name|cat|pid|tid|ts|dur|args|s|bp)"\s{0,999}:'
)
_AHEAD = 1 << 13  # longer than any match of BETWEEN


def blocks(
    source: Source, size: int = BLOCK, part: int = 0, parts: int = 1
) -> Iterator[tuple[int, bytearray, bool]]:
    """The number, text and whether it is the last, of every block, or each `parts`-th from `part`.

    Every text but the first starts with the comma between two events. Empty blocks are left out.
    """
    number = part
    while True:
        start = number * size
        text = source.window(start, start + size + _AHEAD)
        if not text:
            return
        begin = 0
        if number:
            match = BETWEEN.search(text)
            begin = match.start(1) if match and match.start() < size else -1
        if begin >= 0:
            text, end, last = _until_cut(source, start, text, size)
            yield number, bytearray(memoryview(text)[begin:end]), last
        number += parts


def _until_cut(source: Source, start: int, text: bytes, size: int) -> tuple[bytes, int, bool]:
    """More text if need be, where the block ends in it, and whether the file ends there."""
    reach = size + _AHEAD
    while not (match := BETWEEN.search(text, min(size, len(text)))):
        if len(text) < reach:
            return text, len(text), True
        if reach > size + LARGEST_EVENT:
            raise StepscopeError(
                f"no event ends between byte {start + size:,} and byte {start + reach:,}: events "
                f"may have up to {LARGEST_EVENT >> 20} MB; is this a trace?"
            )
        reach = size + 2 * (reach - size)
        text = source.window(start, start + reach)
    return text, match.start(1), False
