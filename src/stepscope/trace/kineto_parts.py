"""One reader's share of a trace."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from stepscope.record.errors import StepscopeError
from stepscope.trace.bytes_in import open_bytes
from stepscope.trace.kineto_blocks import blocks
from stepscope.trace.kineto_chunk import Chunk
from stepscope.trace.kineto_columns import Builder
from stepscope.trace.kineto_reader import Reader

_SPACE = b"\xef\xbb\xbf \t\r\n"


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


def read_parts(path: Path, part: int, parts: int, block_bytes: int) -> Iterator[Part]:
    """Every block of a trace, or each `parts`-th from `part`: then each is read by itself."""
    with open_bytes(path) as source:
        _check_start(source.window(0, 4096), source.damage)
        builder = Builder()
        reader = Reader(builder)
        size = 0
        for number, text, last in blocks(source, block_bytes, part, parts):
            size = number * block_bytes + len(text)
            if parts > 1:
                reader.restart(inside=number > 0)
            reader.feed(text, last=last)
            outside = bytes(reader.outside) if last or parts > 1 else b""
            yield Part(
                number,
                builder.flush(),
                outside,
                reader.inside,
                len(reader.rest),
                size,
                source.damage if last else None,
            )


def fit_together(parts: list[Part]) -> bool:
    """Whether blocks that were read by themselves were all cut between two events."""
    return bool(parts) and all(part.inside and not part.rest for part in parts[:-1])


def _check_start(head: bytes, damage: str | None) -> None:
    start = head.lstrip(_SPACE)[:1]
    if not head.strip(_SPACE):
        raise StepscopeError(f"{damage}: nothing could be read" if damage else "is empty")
    if start == b"<":
        raise StepscopeError("is a web page or XML, not a trace: was the download refused?")
    if start not in (b"{", b"["):
        raise StepscopeError("is not a trace: neither JSON nor anything else that can be read")
