"""A grid from its first process to its last: in rounds, so that bad minutes are shared by all."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepscope.bench import child
from stepscope.bench.grid import points
from stepscope.bench.point import Point
from stepscope.bench.request import Request
from stepscope.bench.results import Results
from stepscope.record.errors import UsageError

Measure = Callable[[Point, Path, float | None], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a grid stands. `record` is what just finished; None before a process starts."""

    point: Point
    round: int
    done: int
    left: int
    left_s: float | None
    """Estimate for what is left; None before anything is known."""
    record: dict[str, Any] | None = None


def run(
    request: Request,
    results: Results,
    on_progress: Callable[[Progress], None],
    measure: Measure | None = None,
    every: Sequence[Point] | None = None,
) -> None:
    """Measure what is missing in the results. A point that did not work is not tried again.

    `every` are the points, if they are not those of the request's own grid; `measure` stands in
    for `child.measure`.

    Raises UsageError when the first program to answer refuses its arguments: then the request is
    wrong, and the others would be refused as well.
    """
    every = points(request) if every is None else every
    while pending := list(_pending(every, request.rounds, results.records)):
        point, number = pending[0]
        left_s = estimate(pending, results.records)
        done = len(results.records)
        on_progress(Progress(point, number, done, len(pending), left_s))
        place = results.process_folder(done + 1)
        record = (measure or child.measure)(point, place, request.timeout_s)
        if record["exit_code"] == child.USAGE and not any(_is_ok(r) for r in results.records):
            raise UsageError(record["why"])
        results.append({**record, "round": number})
        on_progress(Progress(point, number, done + 1, len(pending) - 1, None, record))


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


def estimate(
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
    return bool(record["status"] == "ok")
