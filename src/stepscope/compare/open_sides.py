"""Opens the sides of a comparison that the user names."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from msgspec import Struct

from stepscope.bench.record import ProcessRecord
from stepscope.bench.results import BenchResult
from stepscope.bench.run import RECORDS
from stepscope.compare.sides import (
    Side,
    TrialSpeed,
    TuneSpeeds,
    bench_side,
    run_side,
    trace_side,
    tune_side,
)
from stepscope.compare.verdicts import remember_noise
from stepscope.hardware.noise_floors import NoiseFloor
from stepscope.measure.journal import JOURNAL_FILE
from stepscope.record.errors import StepscopeError, UsageError
from stepscope.results.load import COMPARED, Bench, LoadedResult, Run, Trace, Tune, load
from stepscope.store.folder import RUN_FILE, read_run
from stepscope.store.json_lines import read_record_lines

_ADVICE = "compare its JSON alone instead"


def open_sides(
    base: Sequence[str], other: Sequence[str], cwd: Path
) -> tuple[list[Side], list[Side]]:
    """Both sides. Raises UsageError for anything but results, and if one side mixes kinds.

    If one side is a trace, runs on the other count as their recorded windows.
    """
    found = [[subject for what in side for subject in _opened(what, cwd)] for side in (base, other)]
    recorded = {subject.kind for side in found for subject in side} == {"run", "trace"}
    for side in found:
        kinds = sorted({subject.kind for subject in side})
        if len(kinds) > 1 and not recorded:
            raise UsageError(
                f"one side holds {' and '.join(kinds)}: "
                "several results of a side must be of one kind"
            )
    make = _window_side if recorded else side_of
    ours, theirs = ([make(subject) for subject in side] for side in found)
    return ours, theirs


def _opened(what: str, cwd: Path) -> list[LoadedResult]:
    """The runs in a folder that `run --repeat` filled; else the named result alone."""
    folder = Path(what)
    runs: list[Path] = []
    if folder.is_dir() and not (folder / RUN_FILE).exists():
        numbered = [path for path in folder.iterdir() if path.name.isdigit()]
        runs = [path for path in numbered if (path / RUN_FILE).is_file()]
        runs.sort(key=lambda path: int(path.name))
    found = []
    for path in runs or [folder]:
        subject = load(path if runs else what, cwd, COMPARED)
        if subject.kind == "run" and path.is_dir():  # ids of repeated runs are plain numbers
            subject = subject.replaced(name="/".join(path.parts[-2:]))
        found.append(subject)
    return found


class _JournalLine(Struct, frozen=True):
    trial: TrialSpeed | None = None


def side_of(subject: LoadedResult) -> Side:
    """One result as a side. Raises UsageError if nothing in it was measured."""
    name, folder = subject.name, subject.folder
    if isinstance(subject, Run):
        assert folder is not None
        made = run_side(name, subject.summary, run_series(folder))
        return replace(
            made,
            noise=_noise(folder, made.device or "cpu"),
            timeline=lambda: subject.timeline,
            stacks=lambda: subject.stacks,
        )
    if isinstance(subject, Trace):
        return replace(trace_side(name, subject.analysis), timeline=lambda: subject.timeline)
    # A document on its own lacks the files that lie beside it in a result's folder.
    if isinstance(subject, Tune):
        path = folder / JOURNAL_FILE if folder else None
        lines = read_record_lines(path, _JournalLine, _ADVICE) if path else []
        trials = [line.trial for line in lines if line.trial is not None]
        return tune_side(name, subject.decoded(TuneSpeeds), trials)
    if isinstance(subject, Bench):
        records = read_record_lines(folder / RECORDS, ProcessRecord, _ADVICE) if folder else []
        return bench_side(name, subject.decoded(BenchResult), records)
    raise UsageError(f"{name} is a {subject.kind} result, which cannot be compared")


def _noise(folder: Path, device: str) -> NoiseFloor | None:
    """The noise of its program on that device, as stored in a run."""
    for known in read_run(folder).noise or ():
        if known.device == device and 0 < known.share < math.inf:
            return NoiseFloor(known.share, known.processes)
    return None


def _window_side(subject: LoadedResult) -> Side:
    if not isinstance(subject, Run):
        return side_of(subject)
    window = subject.summary.timeline
    if window is None:
        raise UsageError(f"run {subject.name} has no recorded window to compare with a trace")
    return replace(trace_side(subject.name, window), timeline=lambda: subject.timeline)


def remember_noise_of(folder: Path) -> None:
    """Store what a bench or tune shows of this machine's noise, for later comparisons."""
    try:
        remember_noise((side_of(load(folder, folder, COMPARED)),))
    except StepscopeError:  # nothing was measured
        pass


def run_series(folder: Path) -> tuple[float, ...]:
    """The steady steps of a run, or of the rank that stands for it, outside its window; none if
    there are too few."""
    from stepscope.analyze.run.records import RunRecords
    from stepscope.measure.trial.folder import read_speed

    records = RunRecords(folder)
    speed, _ = read_speed(records.lead, records.run.start_ns)
    return speed.step_ms
