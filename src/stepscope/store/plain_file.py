"""Files of a folder that may be someone else's: only plain ones of a sensible size are read, and
nothing is written through a link."""

import os
import stat
from pathlib import Path

from stepscope.record.errors import BrokenRun

LARGEST_DOCUMENT = 64 << 20
"""Bytes of JSON or text."""


def read_plain(path: Path, largest: int = LARGEST_DOCUMENT) -> bytes:
    """What a file holds. Raises FileNotFoundError, and BrokenRun for a device, a FIFO, a folder,
    what cannot be read and what is larger than `largest` bytes.

    Reads no more than the file's size, which is 0 for the endless ones of /proc.
    """
    try:
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode):
            raise BrokenRun(f"{path} is not a plain file")
        if found.st_size > largest:
            raise BrokenRun(f"{path} has {found.st_size:,} bytes, more than {largest:,}")
        with open(path, "rb") as file:
            return file.read(found.st_size)
    except FileNotFoundError:
        raise
    except OSError as problem:
        raise BrokenRun(f"cannot read {path}: {problem.strerror}") from None


def write_whole(path: Path, data: bytes) -> None:
    """Replace a file. Raises OSError, and leaves what was there then."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(data)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
