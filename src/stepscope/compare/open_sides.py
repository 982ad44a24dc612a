"""Sides of a comparison from what the user points at."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from stepscope.compare.sides import (
    BenchSide,
    Item,
    RunSide,
    Side,
    TraceSide,
    TuneSide,
    bench_items,
    run_items,
    trace_items,
    tune_items,
)
from stepscope.compare.verdicts import remember_noise
from stepscope.record.errors import StepscopeError, UsageError
from stepscope.results.comparison import ResultKind
from stepscope.results.load import COMPARED, LoadedResult, Run, load, of_document
from stepscope.store.folder import RUN_FILE, read_run
from stepscope.store.json_lines import read_record_lines


def open_sides(base: list[str], other: list[str], cwd: Path) -> tuple[list[Side], list[Side]]:
    """Both sides. Raises UsageError for what is no result, or where one side mixes kinds.

    Where one side is a trace, runs of the other are seen as the windows they recorded.
    """
    found = [[subject for what in side for subject in _opened(what, cwd)] for side in (base, other)]
    kinds = {subject.kind for side in found for subject in side}
    if kinds == {"run", "trace"}:
        found = [[_as_trace(subject) for subject in side] for side in found]
    for side in found:
        if len({subject.kind for subject in side}) > 1:
            raise UsageError(
                f"one side holds {' and '.join(sorted({s.kind for s in side}))}: "
                "several results of a side must be of one kind"
            )
    ours, theirs = ([side_of(subject) for subject in side] for side in found)
    return ours, theirs


def _opened(what: str, cwd: Path) -> list[LoadedResult]:
    """The runs in a folder that `run --repeat` filled; otherwise what was named."""
    folder = Path(what)
    runs: list[Path] = []
    if folder.is_dir() and not (folder / RUN_FILE).exists():
        numbered = [path for path in folder.iterdir() if path.name.isdigit()]
        runs = sorted((path for path in numbered if (path / RUN_FILE).is_file()), key=_number)
    if not runs:
        return [_named(load(what, cwd, COMPARED), folder)]
    return [_named(load(path, cwd, COMPARED), path) for path in runs]


def _named(subject: LoadedResult, path: Path) -> LoadedResult:
    """A run of a folder as its last two parts tell: ids of repeated runs are mere numbers."""
    if subject.kind != "run" or not path.is_dir():
        return subject
    return subject.replaced(name="/".join(path.parts[-2:]))


def _number(path: Path) -> int:
    return int(path.name)


def side_of(subject: LoadedResult) -> Side:
    """One result as a side. Raises UsageError where nothing in it was measured."""
    make, items = _KINDS[ResultKind(subject.kind)]
    return make(
        subject.name, subject.document, items(subject), lambda: subject.timeline,
        lambda: subject.stacks if isinstance(subject, Run) else None,
    )  # fmt: skip


def remember_noise_of(folder: Path) -> None:
    """Keep what a bench or tune tells of this machine's noise for comparisons to come."""
    try:
        remember_noise((side_of(load(folder, folder, COMPARED)),))
    except StepscopeError:  # nothing was measured that could be kept
        pass


def run_series(folder: Path) -> tuple[float, ...]:
    """The steady steps of a run outside its window; none where there are too few."""
    from stepscope.measure.trial.folder import read_speed

    speed, _ = read_speed(folder, read_run(folder).start_ns)
    return speed.step_ms


def _run(subject: LoadedResult) -> tuple[Item, ...]:
    assert subject.folder is not None
    return run_items(subject.document, run_series(subject.folder))


def _tune(subject: LoadedResult) -> tuple[Item, ...]:
    lines = _records(subject, "journal.jsonl")
    return tune_items(subject.document, [one["trial"] for one in lines if "trial" in one])


_KINDS: dict[ResultKind, tuple[type[Side], Callable[[LoadedResult], tuple[Item, ...]]]] = {
    ResultKind.RUN: (RunSide, _run),
    ResultKind.TRACE: (TraceSide, lambda one: trace_items(one.document)),
    ResultKind.TUNE: (TuneSide, _tune),
    ResultKind.BENCH: (
        BenchSide, lambda one: bench_items(one.document, _records(one, "records.jsonl"))
    ),
}  # fmt: skip


def _records(subject: LoadedResult, name: str) -> list[dict[str, Any]]:
    """What lies beside a result's document; none beside a document on its own."""
    folder = subject.folder
    return (
        []
        if folder is None
        else read_record_lines(folder / name, dict[str, Any], "compare its JSON alone instead")
    )


def _as_trace(subject: LoadedResult) -> LoadedResult:
    if subject.kind == "trace":
        return subject
    window = subject.document["timeline"]
    if window is None:
        raise UsageError(f"run {subject.name} has no recorded window to compare with a trace")
    return of_document(
        "trace", subject.name, window, subject.folder, subject.trace, subject.timeline
    )
