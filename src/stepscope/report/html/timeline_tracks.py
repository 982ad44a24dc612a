"""What the timeline in the page shows: tracks of events, in the order they stand there."""

from dataclasses import dataclass, field

import numpy as np

from stepscope.record.timeline import NOTHING, Column
from stepscope.report.text import safe

_LONGEST = 500  # characters of a name that anybody reads

HOST_KINDS = ("operator", "annotation", "Python", "runtime call", "profiler")
"""In the order of HostKind."""


@dataclass(frozen=True, slots=True)
class Track:
    """Events of one thread, stream or the like, ordered by start; of two that start together the
    longer comes first. Times are the timeline's own nanoseconds."""

    kind: str
    """step, phase, idle, stream, copy or thread."""
    label: str
    device: int | None
    start: Column
    duration: Column
    name: Column
    """Into Words.names."""
    category: Column
    """Into Words.categories."""
    detail: Column
    """Into Words.details; NOTHING where there is none."""
    source: Column
    """The row of the timeline's host events (threads) or device events; NOTHING elsewhere."""

    def __len__(self) -> int:
        return len(self.start)


@dataclass(slots=True)
class Interned:
    """Texts by number, each once."""

    texts: list[str] = field(default_factory=list)
    _known: dict[str, int] = field(default_factory=dict)

    def number(self, text: str) -> int:
        """Of a text as it can be shown."""
        shown = readable(text)
        found = self._known.get(shown)
        if found is None:
            found = self._known[shown] = len(self.texts)
            self.texts.append(shown)
        return found

    def numbers(self, texts: list[str], used: Column) -> Column:
        """For a column of indices into texts the same as numbers here; NOTHING stays."""
        table = np.full(len(texts) + 1, NOTHING, np.int64)
        for index in np.unique(used[used >= 0]).tolist():
            table[index] = self.number(texts[index])
        numbered: Column = table[used]
        return numbered


@dataclass(slots=True)
class Words:
    """All text of a timeline."""

    names: Interned = field(default_factory=Interned)
    details: Interned = field(default_factory=Interned)
    categories: Interned = field(default_factory=Interned)


def readable(text: str) -> str:
    """Strangers' text on one line, without control characters and of bounded length."""
    line = " ".join(text.splitlines()) if "\n" in text or "\r" in text else text
    whole = safe(line).encode("utf-8", "replace").decode("utf-8")
    return whole if len(whole) <= _LONGEST else whole[: _LONGEST - 1] + "…"


def device_name(device: int) -> str:
    """`GPU 0`; work whose stream was not recorded has no number."""
    return f"GPU {device}" if device >= 0 else "unknown device"
