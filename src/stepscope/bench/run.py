"""Runs a grid in rounds, so that all points share a bad minute, and keeps every record in the
bench's folder."""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import fsum
from pathlib import Path
from statistics import fmean
from typing import Self

import msgspec

from stepscope.bench import measure_point
from stepscope.bench.grid import BenchRequest, Point, grid_points
from stepscope.bench.record import Measure, ProcessRecord, Records, by_point
from stepscope.bench.results import BenchResult, PointStatus
from stepscope.record.errors import UsageError
from stepscope.store import folder as folders
from stepscope.store.folder import request_difference
from stepscope.store.json_file import write_json
from stepscope.store.json_lines import RecordLog, read_record_lines

REQUEST, RECORDS, DOCUMENT, RUNS = "request.json", "records.jsonl", "bench.json", "processes"
_SCHEMA = "stepscope.bench-request/2"


class BenchFolder:
    """An open results folder, made by `open_bench_folder`; `records` are those finished so far,
    `begun` is the UTC time of the first process. A fresh folder is removed if a UsageError ends the
    benchmark."""

    def __init__(self, folder: Path, fresh: bool) -> None:
        self.folder = folder
        self._fresh = fresh
        self.begun = msgspec.json.decode((folder / REQUEST).read_bytes(), type=_Opened).begun
        self._lock = folders.lock_folder(folder)
        self.records = read_records(folder / RECORDS)
        self._lines = RecordLog(folder / RECORDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None = None, *_: object) -> None:
        self._lines.close()
        if self._fresh and not self.records and kind is not None and issubclass(kind, UsageError):
            shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._lock)

    def append(self, record: ProcessRecord) -> None:
        """Write a record durably. Raises OSError on a full disk."""
        self._lines.append(msgspec.to_builtins(record))
        self.records.append(record)

    def write_result(self, result: BenchResult) -> None:
        """Write the summary beside the records."""
        write_json(self.folder / DOCUMENT, json.loads(result.json_text()))


def open_bench_folder(
    out: Path | None, request: BenchRequest, made_with: Mapping[str, str], force: bool, cwd: Path
) -> BenchFolder:
    """A fresh folder, or one begun by the same request on the same machine. Raises UsageError.
    `made_with`: what results must share to be comparable (torch, device)."""
    begun = datetime.now(UTC).isoformat(timespec="seconds")
    now = _Opened(_SCHEMA, request.identity(), dict(made_with), begun)
    folder = out
    if folder is None:
        folder = folders.create_folder(None, False, cwd, "bench-")
    elif (folder / REQUEST).is_file():
        _check(folder, now, force)
    elif (folder / folders.RUN_FILE).exists():
        raise UsageError(f"{folder} holds a run: name another with --out")
    elif folder.is_dir() and any(folder.iterdir()):
        raise UsageError(f"{folder} is not empty and holds no results: name another with --out")
    else:
        folders.create_folder(folder, False, cwd)
    if fresh := not (folder / REQUEST).is_file():
        write_json(folder / REQUEST, msgspec.to_builtins(now))
    return BenchFolder(folder, fresh)


class _Opened(msgspec.Struct):
    """The request a folder belongs to."""

    schema: str
    asked: dict[str, object]
    made_with: dict[str, str]
    begun: str


def read_records(path: Path) -> list[ProcessRecord]:
    """The records of a grid; a torn last line is left out. Raises UsageError for other damage."""
    return read_record_lines(path, ProcessRecord, "--force starts over, or name another --out")


def _check(out: Path, now: _Opened, force: bool) -> None:
    """Raise UsageError unless the folder can be resumed; empty it with --force."""
    if folders.in_use(out):
        raise UsageError(f"{out} is in use by another bench: name another with --out")
    if force:
        folders.remove_result(out, REQUEST)
        out.mkdir()
        return
    try:
        before = msgspec.json.decode((out / REQUEST).read_bytes(), type=_Opened)
    except msgspec.DecodeError:
        before = _Opened("", {}, {}, "")
    differs = "of another version" if before.schema != now.schema else None
    differs = differs or request_difference(before.asked, now.asked)
    if differs := differs or request_difference(before.made_with, now.made_with):
        raise UsageError(
            f"{out} holds results of another request ({differs}): "
            "--force starts over, or name another --out"
        )


@dataclass(frozen=True, slots=True)
class GridProgress:
    """A grid's progress. `record` is what just finished; None before a process starts."""

    point: Point
    round: int
    done: int
    left: int
    left_s: float | None  # estimate for the rest; None before anything is known
    record: ProcessRecord | None = None


def run_grid(
    request: BenchRequest,
    results: BenchFolder,
    on_progress: Callable[[GridProgress], None],
    measure: Measure | None = None,
    every: Sequence[Point] | None = None,
) -> None:
    """Measure what the results lack. A failed point is not retried.

    `every` are the points, if not the request's own grid; `measure` replaces
    `measure_point.measure`. Raises UsageError if the first program to answer rejects its arguments:
    then the request is wrong and others would be rejected too.
    """
    every = grid_points(request) if every is None else every
    while pending := list(_pending(every, request.rounds, results.records)):
        point, number = pending[0]
        left_s = remaining_seconds(pending, results.records)
        done = len(results.records)
        on_progress(GridProgress(point, number, done, len(pending), left_s))
        place = results.folder / RUNS / f"{done + 1:04d}"
        record = (measure or measure_point.measure)(point, place, request.timeout_s)
        refused = record.exit_code == measure_point.USAGE_EXIT_CODE
        if refused and not any(one.status is PointStatus.OK for one in results.records):
            raise UsageError(record.why)
        results.append(msgspec.structs.replace(record, round=number))
        on_progress(GridProgress(point, number, done + 1, len(pending) - 1, None, record))


def _pending(every: Sequence[Point], rounds: int, records: Records) -> Iterator[tuple[Point, int]]:
    """What remains to be measured, in order, every other round backwards, so that a warming machine
    biases no point."""
    finished = {(record.key, record.round) for record in records}
    hopeless = {record.key for record in records if record.status is not PointStatus.OK}
    for number in range(1, rounds + 1):
        for point in every if number % 2 else reversed(every):
            key = point.key()
            if (key, number) not in finished and key not in hopeless:
                yield point, number


def remaining_seconds(pending: Sequence[tuple[Point, int]], records: Records) -> float | None:
    """Expected seconds for the rest: each point as before, new ones as the median."""
    if not records:
        return None
    usual = fmean(record.seconds for record in records)
    means = {one[0].key: fmean(record.seconds for record in one) for one in by_point(records)}
    return fsum(means.get(point.key(), usual) for point, _ in pending)
