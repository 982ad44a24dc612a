"""A file of records, one JSON object a line, each safe once written.

A process killed while it writes leaves a torn last line: readers pass over it, the next writer cuts
it off. Whoever appends holds the lock of the folder (`store.folder.lock`).
"""

import json
import os
from pathlib import Path
from typing import Any

from stepscope.record.errors import UsageError


class Lines:
    """Appends records to a file, made if need be."""

    def __init__(self, path: Path) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._fd = os.open(path, flags, 0o644)
        _cut_torn_line(self._fd)

    def append(self, record: dict[str, Any]) -> None:
        """Keep a record for good. Raises OSError on a full disk, and leaves nothing of it then."""
        line = json.dumps(record, separators=(",", ":")).encode() + b"\n"
        size = os.fstat(self._fd).st_size
        try:
            while line:
                line = line[os.write(self._fd, line) :]
            os.fsync(self._fd)
        except OSError:
            os.ftruncate(self._fd, size)
            raise

    def close(self) -> None:
        os.close(self._fd)


def read_lines(path: Path, advice: str) -> list[dict[str, Any]]:
    """The records of a file, none where there is no file; a torn last line is left out.

    Raises UsageError for other damage, with `advice` on what to do about it.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    found = []
    for number, line in enumerate(lines[:-1], start=1):
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if not isinstance(record, dict):
            raise UsageError(f"{path} is damaged at line {number}: {advice}")
        found.append(record)
    return found


def _cut_torn_line(fd: int) -> None:
    """Take away what a killed process had begun to write."""
    size = os.fstat(fd).st_size
    content = os.pread(fd, size, 0)
    whole = content.rfind(b"\n") + 1
    if whole < size:
        os.ftruncate(fd, whole)
