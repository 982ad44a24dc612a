"""Files of JSON objects, one per line: the child's facts, which several processes append to, and
the journals of tune and bench, whose records are safe once written.

A process killed while writing leaves a torn last line, which readers skip. A journal's writer holds
its folder's lock (`store.folder.lock_folder`).
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from stepscope.record.errors import BrokenRun, UsageError
from stepscope.record.facts import KINDS, Fact, Facts, ProofFact
from stepscope.record.problems import ProblemKind
from stepscope.store.json_file import HeldFile, check_numbers, parse_json, read_plain

T = TypeVar("T")
_FREE_TEXT = ("problem", "wrote_outside", "compile_counters", "fix", "fix_checks", "auto")
"""Facts that quote the program, or errors."""


class FactLog:
    """Appends facts with secrets masked, each in one write: several processes may share the
    file."""

    def __init__(self, path: Path) -> None:
        self._file: HeldFile | None = HeldFile(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, fact: Fact | str, **data: Any) -> None:
        """Append a fact; what fixes report is given by name. Raises OSError on a full disk."""
        name, told = (fact.fact, fact.to_json()) if isinstance(fact, Fact) else (fact, data)
        if name in _FREE_TEXT:
            from stepscope.record.privacy import masked_values  # its patterns take 7 ms to compile

            told = masked_values(told, but=frozenset(("file",)))
        line = json.dumps({"fact": name, **told}, default=str).encode() + b"\n"
        file = self._file
        if file is not None:
            os.write(file.number(), line)

    def close(self) -> None:
        """Later writes are dropped."""
        file, self._file = self._file, None
        if file is not None:
            file.close()


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
            if name != ProofFact.fact:  # the numbers it compares may be infinite
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
    """Appends records to a file, which it creates if necessary."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        size = os.fstat(self._fd).st_size
        whole = os.pread(self._fd, size, 0).rfind(b"\n") + 1
        if whole < size:  # a record that a killed process left half-written
            os.ftruncate(self._fd, whole)

    def append(self, record: Mapping[str, object]) -> None:
        """Write a record durably. On a full disk raises OSError; that and an interrupt leave no
        part of it."""
        line = json.dumps(record, separators=(",", ":")).encode() + b"\n"
        size = os.fstat(self._fd).st_size
        try:
            while line:
                line = line[os.write(self._fd, line) :]
            os.fsync(self._fd)
        except BaseException:
            os.ftruncate(self._fd, size)
            raise

    def close(self) -> None:
        os.close(self._fd)


def read_record_lines(path: Path, kind: type[T], advice: str) -> list[T]:
    """The records of a file, without a torn last line; none if there is no file.

    Raises UsageError for other damage, ending with `advice`.
    """
    try:
        lines = read_plain(path).split(b"\n")
    except FileNotFoundError:
        return []
    import msgspec  # not at the top: the probe imports this module into the user's program

    found = []
    for number, line in enumerate(lines[:-1], start=1):
        try:  # `json` knows NaN, which losses may be
            found.append(msgspec.convert(parse_json(line), kind))
        except ValueError:
            raise UsageError(f"{path} is damaged at line {number}: {advice}") from None
    return found
