"""A real trace, repeated until it is large: times, ids and step numbers shifted each time.

Works on the text, so that spacing and the order of fields stay as the profiler wrote them.
"""

import argparse
import gzip
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

# What must differ between repetitions. Of a time only the whole microseconds are captured, so
# that its nanoseconds stay exact.
_SHIFTED = re.compile(
    rb'"(ts|id|External id|Ev Idx|correlation|Sequence number|Python id|Python parent id)": ?(\d+)'
    rb"|(ProfilerStep#)(\d+)"
)
_EVENT = re.compile(rb"(?<=\n  \}),\n")
_LASTING = re.compile(rb'"ts": ?(\d+)[.\d]*, ?"dur": ?(\d+)')
_ONCE = re.compile(rb'"ph": ?"M"|"cat": ?"Trace"|"s": ?"g"')  # says something of the whole file
_GAP_US = 1000
_BLOCK_BYTES = 1 << 24


class Shifting:
    """Text cut at its numbers, and by how much each grows from one repetition to the next."""

    def __init__(self, text: bytes) -> None:
        self.pieces: list[bytes] = []
        self.numbers: list[int] = []
        kinds: list[bytes] = []
        at = 0
        for match in _SHIFTED.finditer(text):
            group = 2 if match[1] else 4
            self.pieces.append(text[at : match.start(group)])
            self.numbers.append(int(match[group]))
            kinds.append(match[1] or match[3])
            at = match.end(group)
        self.end = text[at:]
        spans = {kind: self._span(kinds, kind) for kind in set(kinds)}
        spans[b"ts"] = _lasts_us(text)
        # A launch's arrow bears the same number as its correlation: both move together.
        shared = max(spans.get(kind, 0) for kind in (b"id", b"correlation", b"External id"))
        spans |= dict.fromkeys((b"id", b"correlation", b"External id"), shared)
        self.shifts = [spans[kind] for kind in kinds]

    def _span(self, kinds: list[bytes], kind: bytes) -> int:
        values = [n for n, k in zip(self.numbers, kinds, strict=True) if k == kind]
        return max(values) - min(values) + 1

    def repetition(self, number: int) -> Iterator[bytes]:
        """The text's pieces, shifted so many times; 0 is the text itself."""
        for piece, value, shift in zip(self.pieces, self.numbers, self.shifts, strict=True):
            yield piece
            yield b"%d" % (value + number * shift)
        yield self.end


def write_big(source: Path, out: Path, megabytes: float) -> int:
    """Writes at least one repetition of a `.json.gz` trace to a `.json`; gives how many."""
    head, events, tail = _parts(gzip.decompress(source.read_bytes()))
    repeated = [event for event in events if not _ONCE.search(event)]
    once = [event for event in events if _ONCE.search(event)]
    text = b",\n".join(repeated)
    times = max(1, round((megabytes * 1e6 - len(head) - len(tail)) / len(text)))
    shifting = Shifting(text)
    with out.open("wb") as file:
        file.write(head)
        for number in range(times):
            file.write(b"".join(shifting.repetition(number)))
            file.write(b",\n")
        file.write(b",\n".join(once))
        file.write(tail)
    return times


def write_gzip(plain: Path) -> Path:
    """The same file compressed beside it."""
    out = plain.with_name(plain.name + ".gz")
    with plain.open("rb") as file, gzip.open(out, "wb", compresslevel=6) as packed:
        shutil.copyfileobj(file, packed, _BLOCK_BYTES)
    return out


def _lasts_us(text: bytes) -> int:
    """From the first start to the last end, and a gap: no repetition reaches into the next."""
    times = [(int(match[1]), int(match[2])) for match in _LASTING.finditer(text)]
    return max(ts + dur for ts, dur in times) - min(ts for ts, _ in times) + _GAP_US


def _parts(text: bytes) -> tuple[bytes, list[bytes], bytes]:
    """What stands before the events, the events, and what stands behind them."""
    opening = re.search(rb'"traceEvents": ?\[\n', text)
    closing = text.rfind(b"\n  ]")
    if opening is None or closing < opening.end():
        raise RuntimeError("the source is not laid out as Kineto writes traces")
    return text[: opening.end()], _EVENT.split(text[opening.end() : closing]), text[closing:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("megabytes", type=float)
    parser.add_argument("--gzip", action="store_true", help="the same beside it, compressed")
    options = parser.parse_args()
    times = write_big(options.source, options.out, options.megabytes)
    if options.gzip:
        write_gzip(options.out)
    print(json.dumps({"repetitions": times}))


if __name__ == "__main__":
    main()
