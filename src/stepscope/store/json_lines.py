"""Files of JSON objects, one a line: the facts the child learns, which several processes append to,
and the journals of tune and bench, each record safe once written.

A process killed while it writes leaves a torn last line: readers skip it. Whoever appends to a
journal holds the lock of the folder (`store.folder.lock_folder`).
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from stepscope.record.errors import BrokenRun, UsageError
from stepscope.record.facts import KINDS, Fact, Facts, ProofFact
from stepscope.record.problems import ProblemKind
from stepscope.store.json_file import check_numbers, parse_json, read_plain

T = TypeVar("T")
_FREE_TEXT = ("problem", "wrote_outside", "compile_counters", "fix", "fix_checks")
"""Facts that quote the program, or errors."""


class FactLog:
    """Appends facts, each written whole at once: several processes may share the file. Secrets in
    them are masked."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def write(self, fact: Fact | str, **data: Any) -> None:
        """One fact; what fixes report is given by name. Raises OSError on a full disk."""
        name, told = (fact.fact, fact.to_json()) if isinstance(fact, Fact) else (fact, data)
        if name in _FREE_TEXT:
            from stepscope.record.privacy import masked_values  # its patterns take 7 ms to make

            told = masked_values(told, but=frozenset(("file",)))
        line = json.dumps({"fact": name, **told}, default=str)
        os.write(self._fd, line.encode() + b"\n")


def read_facts(path: Path) -> Facts:
    """The facts of a run; unknown kinds and torn lines are skipped. Raises BrokenRun."""
    try:
        lines = read_plain(path).splitlines()
    except FileNotFoundError:
        return Facts()
    facts: list[Fact] = []
    fixes: list[dict[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        try:
            data = parse_json(line)
        except ValueError:
            continue
        name = data.pop("fact", None) if isinstance(data, dict) else None
        try:
            if name != ProofFact.fact:  # what it compares may be infinite
                check_numbers(data)
            if name == "fix":
                fixes.append(data)
            elif isinstance(name, str) and name in KINDS:
                facts.append(KINDS[name].from_json(_upgraded(name, data)))
        except (RecursionError, ValueError) as problem:
            raise BrokenRun(f"{path}, line {number}: {problem}") from None
    return Facts(facts, fixes)


def _upgraded(name: str, data: dict[str, Any]) -> dict[str, Any]:
    """Version 1 kept problems as sentences, and waits as sites named "sync:item"."""
    if name == "problem" and "text" in data:
        return {"kind": ProblemKind.OTHER, "detail": data["text"]}
    if name == "site" and "kind" not in data and isinstance(data.get("what"), str):
        kind, _, wait = data["what"].partition(":")
        return {**data, "kind": kind, "wait": wait or None}
    return data


class RecordLog:
    """Appends records to a file, made if need be."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        size = os.fstat(self._fd).st_size
        whole = os.pread(self._fd, size, 0).rfind(b"\n") + 1
        if whole < size:  # what a killed process had begun to write
            os.ftruncate(self._fd, whole)

    def append(self, record: Mapping[str, object]) -> None:
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


def read_record_lines(path: Path, kind: type[T], advice: str) -> list[T]:
    """The records of a file, none where there is no file; a torn last line is left out.

    Raises UsageError for other damage, with `advice` on what to do about it.
    """
    try:
        lines = read_plain(path).split(b"\n")
    except FileNotFoundError:
        return []
    import msgspec  # not at the top: the probe writes facts in the user's program

    found = []
    for number, line in enumerate(lines[:-1], start=1):
        try:  # `json` knows NaN, which losses may be
            found.append(msgspec.convert(parse_json(line), kind))
        except ValueError:
            raise UsageError(f"{path} is damaged at line {number}: {advice}") from None
    return found
