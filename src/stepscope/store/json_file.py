"""JSON documents, written atomically, and read safely whatever they hold. A folder may come from a
stranger: only plain files of a sensible size are read, and nothing is written through a link."""

import json
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from stepscope.record.errors import BrokenRun


def write_json(path: Path, document: Any, indent: int | None = 1) -> None:
    """Replace a file by a document. On failure raises OSError and leaves the old file."""
    write_whole(path, f"{json.dumps(document, indent=indent)}\n".encode())


def json_text(document: Any) -> str:
    """A document as commands print it, indented. Raises ValueError where a number is not finite."""
    import msgspec

    text = json.dumps(document, allow_nan=False)  # an indent would cost it five times as long
    try:
        return msgspec.json.format(text, indent=1)
    except msgspec.DecodeError:  # half a character, as file names may hold
        return json.dumps(document, indent=1)


def read_json(path: Path) -> Any:
    """The document of a file. Raises FileNotFoundError and BrokenRun."""
    try:
        return parse_json(read_plain(path))
    except ValueError as problem:
        raise BrokenRun(f"{path} cannot be read: {problem}") from None


def read_finite_json(path: Path) -> Any:
    """Likewise, checking all numbers with `check_numbers`."""
    document = read_json(path)
    try:
        check_numbers(document)
    except (RecursionError, ValueError) as problem:
        raise BrokenRun(f"{path}: {problem}") from None
    return document


def parse_json(text: bytes) -> Any:
    """Parse a document. Raises ValueError, also if it is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def check_numbers(value: Any, below: float = 2.0**63) -> None:
    """Raise ValueError if a number is not finite or its magnitude is not `below` the limit."""
    if (where := _out_of_range(value, below)) is not None:
        raise ValueError(f"Number out of range - at `${where}`")


def _out_of_range(value: Any, below: float) -> str | None:
    """The path to the first such number, or None."""
    if isinstance(value, int | float):
        return None if abs(value) < below else ""
    parts: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, dict):
        parts = value.items()
    elif isinstance(value, list | tuple):
        parts = enumerate(value)
    for key, part in parts:
        kind = type(part)
        if kind is str or ((kind is int or kind is float) and -below < part < below):
            continue  # most are: saves a call for each
        if (at := _out_of_range(part, below)) is not None:
            return f".{key}{at}" if isinstance(value, dict) else f"[{key}]{at}"
    return None


LARGEST_DOCUMENT = 64 << 20
"""Bytes of JSON or text."""


def read_plain(path: Path, largest: int = LARGEST_DOCUMENT) -> bytes:
    """Read a plain file. Raises FileNotFoundError, and BrokenRun for a device, FIFO or folder, an
    unreadable file, or one larger than `largest` bytes.

    Reads no more than the file's size, which is 0 for endless files in /proc.
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
    """Replace a file. On failure raises OSError and leaves the old one."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(data)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


class HeldFile:
    """A file held open in the program's process. A program may close every descriptor
    there is, as daemons do: its number may then be one of the program's own files."""

    def __init__(self, path: Path, flags: int) -> None:
        self._path = path
        self._flags = (flags | os.O_CLOEXEC) & ~(os.O_CREAT | os.O_EXCL)
        self._open(flags | os.O_CLOEXEC)

    def _open(self, flags: int) -> None:
        self._number = os.open(self._path, flags, 0o644)
        self._file: tuple[int, int] | None = self._file_at(self._number)

    @staticmethod
    def _file_at(number: int) -> tuple[int, int] | None:
        try:
            found = os.fstat(number)
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def is_held(self) -> bool:
        """Whether the descriptor still is this file's."""
        return self._file is not None and self._file_at(self._number) == self._file

    def number(self) -> int:
        """The descriptor, a new one if the program has closed it. Raises OSError."""
        if not self.is_held():
            self._open(self._flags)
        return self._number

    def close(self) -> None:
        if self.is_held():
            os.close(self._number)
        self._file = None
