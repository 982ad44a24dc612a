"""Events out of blocks of text: at full speed where all is well, with care where it is not."""

import re

from msgspec import DecodeError, ValidationError

from stepscope.record.errors import StepscopeError
from stepscope.trace.kineto_blocks import BETWEEN, LARGEST_EVENT
from stepscope.trace.kineto_columns import Builder
from stepscope.trace.kineto_events import EXACT, FAST, LAX
from stepscope.trace.kineto_mend import mend
from stepscope.trace.kineto_times import InexactError

SMALL = 1 << 14  # bytes: what is read with care at a time
MOST_OUTSIDE = 64 << 20  # bytes of a trace that are not events
_EVENTS = re.compile(rb'(?<!\\)"traceEvents"\s*:\s*\[')
_NUMBER_AS_TEXT = re.compile(
    rb'"(?:ts|dur|device|correlation|[Ee]xternal id|Sequence number|registers per thread|'
    rb"shared memory|blocks per SM|warps per SM|est\. achieved occupancy %|graph id|graph node id|"
    rb"In msg nelems|Out msg nelems|Group size|Total Reserved|Total Allocated|Device Id|"
    rb'Device Type|Addr)"\s*:\s*"'
)


class Reader:
    """Follows the text of a trace: outside the list of events, or inside."""

    def __init__(self, builder: Builder) -> None:
        self._builder = builder
        self._decoder = FAST
        self.restart(inside=False)

    def restart(self, *, inside: bool) -> None:
        """Begin at the start of a trace, or between two events."""
        self.inside = self._opened = inside
        self.outside = bytearray()  # the trace without its events
        self.rest = b""  # the beginning of an event whose end has not come yet
        self._searched = 0

    def feed(self, text: bytearray, *, last: bool) -> None:
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
                pieces += self._seek(piece)
            elif not self._decoded(piece):
                halves = [] if known else _halves(piece)
                pieces += halves or self._mend(piece, last=last and not pieces)

    def _seek(self, piece: bytearray) -> list[bytearray]:
        """Go on to the list of events; a trace may also be nothing but that list."""
        searched = max(self._searched, len(self.outside) - 64)
        self.outside += piece
        if len(self.outside) > MOST_OUTSIDE:
            raise StepscopeError(
                f"more than {MOST_OUTSIDE >> 20} MB of it are not events, the most that is read"
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
        wrapped = _as_list(piece)
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
            self._builder.chunk.repaired["number written as text"] += count
        return True

    def _mend(self, piece: bytearray, *, last: bool) -> list[bytearray]:
        """Read event by event; what follows the list's end is handed back."""
        mended = mend(piece, last=last)
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
                f"an event has more than {LARGEST_EVENT >> 20} MB, the most that is read"
            )
        self.rest = bytes(rest)


def _halves(piece: bytearray) -> list[bytearray]:
    """Two parts of a large piece, the second first; [] where it is small or cannot be cut."""
    cut = BETWEEN.search(piece, len(piece) // 2) if len(piece) > SMALL else None
    return [piece[cut.start(1) :], piece[: cut.start(1)]] if cut else []


def _as_list(piece: bytearray) -> bytes:
    """A JSON list of the events in a piece, which may start with the comma before them."""
    return b"".join((b"[", memoryview(piece)[piece[:1] == b"," :], b"]"))
