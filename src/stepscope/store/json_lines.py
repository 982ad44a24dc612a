"""Files of JSON objects, one a line: the facts the child learns, which several processes append to,
and the journals of tune and bench, each record safe once written.

A process killed while it writes leaves a torn last line: readers skip it. Whoever appends to a
journal holds the lock of the folder (`store.folder.lock_folder`).
"""

import json
import os
from collections import defaultdict
from pathlib import Path
from typing import Any

from stepscope.record.errors import UsageError


class FactLog:
    """Appends facts; every line has a `fact` that names its kind."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def write(self, fact: str, **data: Any) -> None:
        """One fact. Raises OSError on a full disk."""
        line = json.dumps({"fact": fact, **data}, default=str)
        os.write(self._fd, line.encode() + b"\n")


def read_facts(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Facts by kind, in order of writing; a torn last line is passed over."""
    facts: dict[str, list[dict[str, Any]]] = defaultdict(list)
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return facts
    for line in lines:
        try:
            data = json.loads(line)
        except ValueError:
            continue
        if isinstance(data, dict) and isinstance(data.get("fact"), str):
            facts[data.pop("fact")].append(data)
    return facts


class RecordLog:
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


def read_record_lines(path: Path, advice: str) -> list[dict[str, Any]]:
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
