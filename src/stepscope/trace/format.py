"""A format of recordings (`trace.load.FORMATS` lists them all), and what readers repair and drop:
keys of `Quality.repaired` and `.dropped`."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from stepscope.record.timeline import Timeline


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """One format of recordings."""

    endings: tuple[str, ...]
    """Of file names: they pick the traces of a folder."""
    recognises: Callable[[Path, bytes], bool]
    """Whether a file is one of these, by its path and first 64 bytes."""
    read: Callable[[Path, int | None], Timeline]
    """The timeline of a file, read by this many processes (None: chosen by size).

    Raises StepscopeError.
    """


class Repair(StrEnum):
    """What was repaired in an event."""

    NUMBER_AS_TEXT = "number written as text"
    NUMBER_TOO_LARGE = "number beyond 64 bits left out"
    ABSURD_SIZE = "size beyond an exbibyte left out"
    BAD_UTF8 = "bad UTF-8 in a text"
    CONTROL_CHARACTER = "control character in a text"
    NO_DURATION = "missing duration taken as zero"
    BAD_DURATION = "negative or absurd duration taken as zero"
    OPEN_RANGE = "open ranges closed at the end"


class Drop(StrEnum):
    """Why an event was left out."""

    BAD_JSON = "not valid JSON"
    NO_EVENT = "not an event"
    NO_TIME = "without a usable time"
    ZERO_TIME = "time of zero or less, far from all others"
    UNPAIRED = "begin without end, or end without begin"
