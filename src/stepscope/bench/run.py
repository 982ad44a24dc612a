"""A grid from its first process to its last: in rounds, so that a bad minute is shared by all
points, every record kept in the bench's folder.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from stepscope.bench import measure_point
from stepscope.bench.grid import BenchRequest, Point, grid_points
from stepscope.bench.results import BenchResult, PointStatus
from stepscope.record.errors import UsageError
from stepscope.store import folder as folders
from stepscope.store.folder import request_difference
from stepscope.store.json_lines import RecordLog, read_record_lines

REQUEST, RECORDS, DOCUMENT, RUNS = "request.json", "records.jsonl", "bench.json", "processes"
_SCHEMA = "stepscope.bench-request/1"


class BenchFolder:
    """An open results folder; `records` are those finished so far. Use `open_bench_folder`.

    `begun` is when its first process was about to start, in UTC. A fresh folder is taken away
    again when a UsageError ends what was to fill it.
    """

    def __init__(self, folder: Path, fresh: bool) -> None:
        self.folder = folder
        self._fresh = fresh
        self.begun = str(json.loads((folder / REQUEST).read_text())["begun"])
        self._lock = folders.lock_folder(folder)
        path = folder / RECORDS
        self.records = read_records(path)
        self._lines = RecordLog(path)

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

    def write_result(self, result: BenchResult) -> None:
        """Keep the summed-up results beside the records."""
        _write(self.folder / DOCUMENT, result.to_json())


def open_bench_folder(
    out: Path | None, request: BenchRequest, made_with: Mapping[str, Any], force: bool, cwd: Path
) -> BenchFolder:
    """A fresh folder, or one that the same request began on the same machine. Raises UsageError.

    `made_with`: what results must have in common to stand in one table (torch, device).
    """
    identity = {"schema": _SCHEMA, "asked": request.identity(), "made_with": dict(made_with)}
    if out is None:
        folder = folders.create_folder(None, False, cwd, "bench-")
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
    return BenchFolder(folder, fresh)


def read_records(path: Path) -> list[dict[str, Any]]:
    """The records of a grid; a torn last line is left out. Raises UsageError for other damage."""
    return read_record_lines(path, dict[str, Any], "--force begins anew, or name another --out")


def _is_bench(out: Path) -> bool:
    return (out / REQUEST).is_file()


def _make(out: Path, cwd: Path) -> None:
    if out.is_dir() and any(out.iterdir()) and not (out / folders.RUN_FILE).exists():
        raise UsageError(f"{out} holds something else than results: name another with --out")
    if (out / folders.RUN_FILE).exists():
        raise UsageError(f"{out} holds a run: name another with --out")
    folders.create_folder(out, False, cwd)


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
    return next(filter(None, (request_difference(before.get(p, {}), now[p]) for p in parts)), None)


def _write(path: Path, data: Mapping[str, Any]) -> None:
    """Whole or not at all."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(data, indent=1, allow_nan=False) + "\n")
    part.replace(path)


Measure = Callable[[Point, Path, float | None], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class GridProgress:
    """Where a grid stands. `record` is what just finished; None before a process starts."""

    point: Point
    round: int
    done: int
    left: int
    left_s: float | None
    """Estimate for what is left; None before anything is known."""
    record: dict[str, Any] | None = None


def run_grid(
    request: BenchRequest,
    results: BenchFolder,
    on_progress: Callable[[GridProgress], None],
    measure: Measure | None = None,
    every: Sequence[Point] | None = None,
) -> None:
    """Measure what is missing in the results. A point that did not work is not tried again.

    `every` are the points, if they are not those of the request's own grid; `measure` stands in
    for `child.measure`.

    Raises UsageError when the first program to answer refuses its arguments: then the request is
    wrong, and the others would be refused as well.
    """
    every = grid_points(request) if every is None else every
    while pending := list(_pending(every, request.rounds, results.records)):
        point, number = pending[0]
        left_s = remaining_seconds(pending, results.records)
        done = len(results.records)
        on_progress(GridProgress(point, number, done, len(pending), left_s))
        place = results.process_folder(done + 1)
        record = (measure or measure_point.measure)(point, place, request.timeout_s)
        if record["exit_code"] == measure_point.USAGE_EXIT_CODE and not any(
            _is_ok(r) for r in results.records
        ):
            raise UsageError(record["why"])
        results.append({**record, "round": number})
        on_progress(GridProgress(point, number, done + 1, len(pending) - 1, None, record))


def _pending(
    every: Sequence[Point], rounds: int, records: Sequence[dict[str, Any]]
) -> Iterator[tuple[Point, int]]:
    """What is to be measured, in order: every other round backwards, so that a machine that grows
    warmer wrongs no point."""
    finished = {(record["key"], record["round"]) for record in records}
    hopeless = {record["key"] for record in records if not _is_ok(record)}
    for number in range(1, rounds + 1):
        for point in every if number % 2 else reversed(every):
            key = point.key()
            if (key, number) not in finished and key not in hopeless:
                yield point, number


def remaining_seconds(
    pending: Sequence[tuple[Point, int]], records: Sequence[dict[str, Any]]
) -> float | None:
    """Seconds the rest will take: each point as long as before, new ones as long as the usual."""
    if not records:
        return None
    taken: dict[str, list[float]] = {}
    for record in records:
        taken.setdefault(record["key"], []).append(record["seconds"])
    usual = sum(record["seconds"] for record in records) / len(records)
    means = {key: sum(seconds) / len(seconds) for key, seconds in taken.items()}
    return float(sum(means.get(point.key(), usual) for point, _ in pending))


def _is_ok(record: dict[str, Any]) -> bool:
    return bool(record["status"] == PointStatus.OK)
