"""The folder of a grid: what was asked, and a record per finished process, safe at any moment."""

import json
import os
import shutil
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from stepscope.bench.request import Request
from stepscope.record.errors import UsageError
from stepscope.store import folder as folders
from stepscope.store.identity import difference
from stepscope.store.lines import Lines, read_lines

REQUEST, RECORDS, DOCUMENT, RUNS = "request.json", "records.jsonl", "bench.json", "processes"
_SCHEMA = "stepscope.bench-request/1"


class Results:
    """An open results folder; `records` are those finished so far. Use `open_results`.

    `begun` is when its first process was about to start, in UTC. A fresh folder is taken away
    again when a UsageError ends what was to fill it.
    """

    def __init__(self, folder: Path, fresh: bool) -> None:
        self.folder = folder
        self._fresh = fresh
        self.begun = str(json.loads((folder / REQUEST).read_text())["begun"])
        self._lock = folders.lock(folder)
        path = folder / RECORDS
        self.records = read_records(path)
        self._lines = Lines(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None = None, *_: object) -> None:
        self._lines.close()
        if self._fresh and not self.records and kind is not None and issubclass(kind, UsageError):
            shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._lock)

    def append(self, record: dict[str, Any]) -> None:
        """Keep a record for good. Raises OSError on a full disk."""
        self._lines.append(record)
        self.records.append(record)

    def process_folder(self, number: int) -> Path:
        """A folder for what one process leaves behind."""
        return self.folder / RUNS / f"{number:04d}"

    def write_document(self, document: Mapping[str, Any]) -> None:
        """Keep the summed-up results beside the records."""
        _write(self.folder / DOCUMENT, document)


def open_results(
    out: Path | None, request: Request, made_with: Mapping[str, Any], force: bool, cwd: Path
) -> Results:
    """A fresh folder, or one that the same request began on the same machine. Raises UsageError.

    `made_with`: what results must have in common to stand in one table (torch, device).
    """
    identity = {"schema": _SCHEMA, "asked": request.identity(), "made_with": dict(made_with)}
    if out is None:
        folder = folders.create(None, False, cwd, "bench-")
    else:
        folder = out
        if _is_bench(out):
            _check(out, identity, force)
        else:
            _make(out, cwd)
    fresh = not _is_bench(folder)
    if fresh:
        begun = datetime.now(UTC).isoformat(timespec="seconds")
        _write(folder / REQUEST, {**identity, "begun": begun})
    return Results(folder, fresh)


def read_records(path: Path) -> list[dict[str, Any]]:
    """The records of a grid; a torn last line is left out. Raises UsageError for other damage."""
    return read_lines(path, "--force begins anew, or name another --out")


def _is_bench(out: Path) -> bool:
    return (out / REQUEST).is_file()


def _make(out: Path, cwd: Path) -> None:
    if out.is_dir() and any(out.iterdir()) and not (out / folders.FACTS).exists():
        raise UsageError(f"{out} holds something else than results: name another with --out")
    if (out / folders.FACTS).exists():
        raise UsageError(f"{out} holds a run: name another with --out")
    folders.create(out, False, cwd)


def _check(out: Path, identity: Mapping[str, Any], force: bool) -> None:
    """Raise UsageError unless the folder may be gone on with; empty it where that was asked."""
    if folders.in_use(out):
        raise UsageError(f"{out} is in use by a grid under way: name another with --out")
    if force:
        shutil.rmtree(out)
        out.mkdir()
        return
    try:
        before = json.loads((out / REQUEST).read_text())
    except ValueError:
        before = {}
    differs = _difference(before, identity)
    if differs:
        raise UsageError(
            f"{out} holds results of another request ({differs}): "
            "--force begins anew, or name another --out"
        )


def _difference(before: Any, now: Mapping[str, Any]) -> str | None:
    """The first thing in which two requests differ, in a few words; None if in nothing."""
    if not isinstance(before, dict) or before.get("schema") != now["schema"]:
        return "of another version"
    parts = ("asked", "made_with")
    return next(filter(None, (difference(before.get(p, {}), now[p]) for p in parts)), None)


def _write(path: Path, data: Mapping[str, Any]) -> None:
    """Whole or not at all."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(data, indent=1, allow_nan=False) + "\n")
    part.replace(path)
