"""What a format of recordings says of itself; `trace.load.FORMATS` lists them all."""

from collections.abc import Callable
from dataclasses import dataclass
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
    """The timeline of a file, read by so many processes (None: as many as it is worth).

    Raises StepscopeError.
    """
