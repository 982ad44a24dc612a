"""The batch size of an unmodified program: every size is a trial of `--fix batch=N`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any, Final

from stepscope.batch.search import BatchSearch, SearchBounds, SearchStop
from stepscope.batch.sizes import (
    LEAST_STEPS,
    NOT_APPLICABLE,
    OUT_OF_MEMORY,
    TOO_SHORT,
    SizeMeasurement,
)
from stepscope.measure.speed import FEWEST_STEADY, buffered_steps
from stepscope.measure.trial import OK, RunTrial, Trial, TrialRequest
from stepscope.record.errors import StepscopeError, UsageError

Document = Mapping[str, Any]
_NO_LOADER = "no DataLoader of the program forms batches: their size cannot be changed from outside"


@dataclass(frozen=True, slots=True)
class ProgramFacts:
    """The program as it is. None: not known."""

    device: str
    """cuda or cpu."""
    device_name: str | None
    memory_bytes: float | None
    """Of the GPU, or what is free for the program on the CPU's side."""
    batch: int
    """Of the loader that feeds its steps."""
    samples: int | None
    """In an epoch."""
    drop_last: bool
    buffer: int
    """Steps fed by what the loader's workers keep ready."""
    optimizers: tuple[tuple[str, float | None], ...]
    """Name and learning rate."""


def read_program_facts(folder: Path, available_bytes: float | None) -> ProgramFacts:
    """Read a run folder. `available_bytes`: memory that was free before the program started.

    Raises UsageError where the program forms no batches.
    """
    from stepscope.analyze.run.records import RunRecords
    from stepscope.analyze.run.summary import summarize

    return program_facts(summarize(RunRecords(folder)), available_bytes)


def program_facts(document: Document, available_bytes: float | None) -> ProgramFacts:
    """The same from a run's document."""
    loader = feeding_loader(document["loaders"], document["steps"]["samples_per_step"])
    gpu = document["gpu"]
    cpu = document["config"]["machine"].get("cpu") or {}
    optimizers = ((one["name"], one.get("lr")) for one in document["config"]["optimizers"])
    return ProgramFacts(
        device="cuda" if gpu else "cpu",
        device_name=gpu["name"] if gpu else cpu.get("model"),
        memory_bytes=gpu["total_bytes"] if gpu else available_bytes,
        batch=loader["batch_size"],
        samples=loader.get("samples"),
        drop_last=bool(loader.get("drop_last")),
        buffer=buffered_steps(loader["num_workers"] or 0, loader["prefetch_factor"]),
        optimizers=tuple(dict.fromkeys(optimizers)),
    )


def feeding_loader(loaders: Sequence[Document], samples_per_step: float | None) -> Document:
    """The loader that feeds the steps: whose batches are as large as a step's, else the one that
    shuffles, else the one with most samples. Raises UsageError."""
    forming = [one for one in loaders if (one.get("batch_size") or 0) > 1]
    if not forming:
        one_by_one = any(one.get("batch_size") == 1 for one in loaders)
        raise UsageError(
            "the program's DataLoader gives samples one by one: give it a batch size first"
            if one_by_one
            else _NO_LOADER
        )

    def likely(one: Document) -> tuple[bool, bool, float]:
        alike = abs((samples_per_step or 0.0) / one["batch_size"] - 1) < 0.1
        return alike, bool(one.get("shuffle")), one.get("samples") or 0.0

    return max(forming, key=likely)


def free_host_bytes() -> float | None:
    """Bytes that a program started now can have without pushing others out, on the CPU's side."""
    from stepscope.hardware.machine import describe_memory

    memory = describe_memory()
    return float(min(memory["available_bytes"], memory["limit_bytes"] or memory["total_bytes"]))


ReadFacts = Callable[[Trial], ProgramFacts]
BatchListener = Callable[[int | None, SizeMeasurement | None], None]
"""Hears of each trial as it starts (None) and ends; its batch size is None as long as the
program's own is not known."""

_FIRST_STEPS: Final = 40
_AGAIN_STEPS: Final = 120
_MOST_STEPS: Final = 400
_SETTLING: Final = 6
_LONGEST_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """What `stepscope batch` was asked for. None: not given."""

    fixes: tuple[str, ...] = ()
    smallest: int | None = None
    largest: int | None = None
    headroom: float = 0.10
    within: float = 0.05
    steps: int | None = None
    """Of each trial; None: by the program's pace and `seconds`."""
    seconds: float = 2.0
    """Of steady steps in each trial."""
    budget_s: float | None = None


@dataclass(frozen=True, slots=True)
class FinishedSearch:
    """A search that has ended, and the program it was about."""

    search: BatchSearch
    bounds: SearchBounds
    seen: ProgramFacts
    what: str
    """training, inference or batches: what the program's steps are."""
    interrupted: bool = False


def search_program(
    wanted: BatchRequest, run: RunTrial, look: ReadFacts, hear: BatchListener
) -> FinishedSearch:
    """Find out about batch sizes. Raises UsageError where the program's cannot be changed."""
    hear(None, None)
    trial = run(TrialRequest(fixes=wanted.fixes, steps=wanted.steps or _FIRST_STEPS))
    if not _cut_short(trial):
        _check(trial)
    seen = look(trial)
    if _cut_short(trial) and wanted.steps is None:  # workers had most of its steps ready
        trial = run(TrialRequest(fixes=wanted.fixes, steps=_AGAIN_STEPS + 2 * seen.buffer))
    own = as_measurement(trial, seen.batch)
    if not own.ok and own.status != OUT_OF_MEMORY:
        raise UsageError(f"the program as it is: {own.why}")
    hear(seen.batch, own)
    bounds = _bounds(wanted, seen)
    sizes = _Trials(wanted, run, hear, seen)
    search = BatchSearch(sizes.measure, bounds, own)
    try:
        search.run()
    except KeyboardInterrupt:
        search.stop = SearchStop("interrupted", "it was interrupted")
        return FinishedSearch(search, bounds, seen, trial.what, interrupted=True)
    return FinishedSearch(search, bounds, seen, trial.what)


class _Trials:
    """Measures a size by a trial of its own."""

    def __init__(
        self, wanted: BatchRequest, run: RunTrial, hear: BatchListener, seen: ProgramFacts
    ) -> None:
        self._wanted = wanted
        self._run = run
        self._hear = hear
        self._seen = seen
        self._applied = False

    def measure(self, batch: int, step_ms: float | None) -> SizeMeasurement:
        """With the fix, except at the program's own size, where it has nothing to do."""
        self._hear(batch, None)
        own = batch == self._seen.batch
        fixes = self._wanted.fixes if own else (f"batch={batch}", *self._wanted.fixes)
        trial = self._run(TrialRequest(fixes=fixes, steps=self._steps(step_ms)))
        if _cut_short(trial) and self._wanted.steps is None:
            trial = self._run(TrialRequest(fixes=fixes, steps=_AGAIN_STEPS + 2 * self._seen.buffer))
        got = as_measurement(trial, batch)
        if (
            got.status == NOT_APPLICABLE
            and not self._applied
            and "samples only" not in str(got.why)
        ):
            raise UsageError(f"the batch size cannot be changed: {got.why or _NO_LOADER}")
        self._applied |= not own and got.ok
        self._hear(batch, got)
        return got

    def _steps(self, step_ms: float | None) -> int:
        """Enough for `seconds` of steady steps behind what workers had ready."""
        if self._wanted.steps is not None:
            return self._wanted.steps
        steady = ceil(self._wanted.seconds * 1e3 / step_ms) + _SETTLING if step_ms else 0
        return 2 * self._seen.buffer + min(_MOST_STEPS, max(LEAST_STEPS, steady))


def as_measurement(trial: Trial, batch: int) -> SizeMeasurement:
    """A trial as a measurement of a batch size."""
    status, why = trial.status, trial.why
    if status == "broke" and "does not fit into memory" in (why or ""):
        status = OUT_OF_MEMORY
    if _few(trial) and trial.steps < trial.ask.steps:
        count = f"{trial.steps} step{'' if trial.steps == 1 else 's'}"
        status, why = TOO_SHORT, f"the program ends after {count}, before its speed shows"
    elif status == OK and not trial.samples_per_step:
        status, why = "failed", "its steps do not show how many samples they take"
    return SizeMeasurement(
        batch,
        status,
        why,
        trial.step_ms,
        trial.samples_per_step or 0.0,
        trial.peak_memory_bytes,
        trial.energy_j_per_step,
        trial.steps,
        trial.seconds,
    )


def _few(trial: Trial) -> bool:
    """Whether a trial has nothing to tell but that too few of its steps were steady."""
    ended_well = trial.status in (OK, "failed") and trial.steps > 0 and "steady" in str(trial.why)
    return len(trial.step_ms) < FEWEST_STEADY and (trial.ok or ended_well)


def _cut_short(trial: Trial) -> bool:
    """Whether more steps would help it, because the program had not ended by itself."""
    return _few(trial) and trial.steps >= trial.ask.steps


def _check(trial: Trial) -> None:
    """Raise for a program that does not run as it is."""
    if trial.status == NOT_APPLICABLE:
        raise UsageError(f"--fix {trial.blame or ''} does not apply: {trial.why}")
    if trial.status == "broke":
        raise UsageError(f"the program does not run with --fix {trial.blame or ''}: {trial.why}")
    if trial.status not in (OK, OUT_OF_MEMORY):
        problem = StepscopeError(f"the program as it is: {trial.why}")
        problem.exit_code = 1
        raise problem


def _bounds(wanted: BatchRequest, seen: ProgramFacts) -> SearchBounds:
    """Raises UsageError for limits that leave nothing to try."""
    if wanted.largest is not None and wanted.largest < seen.batch:
        raise UsageError(f"--max {wanted.largest} is below the program's own batch of {seen.batch}")
    start = max(seen.batch, wanted.smallest or 0)
    if seen.samples is not None and start > seen.samples:
        raise UsageError(f"--min {start}: an epoch has {seen.samples} samples only")
    return SearchBounds(
        start=start,
        smallest=wanted.smallest,
        largest=wanted.largest,
        samples=seen.samples,
        memory_bytes=seen.memory_bytes,
        fills=seen.device == "cuda",
        headroom=wanted.headroom,
        within=wanted.within,
        budget_s=wanted.budget_s,
        longest_s=_LONGEST_S,
    )
