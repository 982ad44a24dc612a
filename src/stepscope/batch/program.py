"""The batch size of an unmodified program: every size is a trial of `--fix batch=N`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, Final

from stepscope.batch.search import BatchSearch, SearchBounds, SearchStop, StopKind
from stepscope.batch.sizes import LEAST_STEPS, SizeMeasurement
from stepscope.measure.speed import FEWEST_STEADY, buffered_steps
from stepscope.measure.trial.record import RunTrial, Trial, TrialRequest
from stepscope.record.errors import StepscopeError, UsageError
from stepscope.record.trial import TrialReason, TrialStatus

Document = Mapping[str, Any]
_NO_LOADER = "no DataLoader in the program forms batches, so the batch size cannot be changed"


@dataclass(frozen=True, slots=True)
class ProgramFacts:
    """The baseline. None: unknown."""

    device: str  # cuda or cpu
    device_name: str | None
    memory_bytes: float | None  # of the GPU, or free host memory for a CPU program
    batch: int  # of the loader that feeds its steps
    samples: int | None  # in an epoch
    drop_last: bool
    buffer: int  # steps that the workers' buffers feed
    optimizers: tuple[tuple[str, float | None], ...]  # name and learning rate


def program_facts(document: Document, available_bytes: float | None) -> ProgramFacts:
    """From a run's document. `available_bytes`: memory that was free before the program started.
    Raises UsageError if the program forms no batches."""
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
    """The loader that feeds the steps: the one with batches as large as a step's, else one that
    shuffles, else the one with most samples. Raises UsageError."""
    forming = [one for one in loaders if (one.get("batch_size") or 0) > 1]
    if not forming:
        if any(one.get("batch_size") == 1 for one in loaders):
            raise UsageError("the DataLoader yields single samples: give it a batch size first")
        raise UsageError(_NO_LOADER)

    def likely(one: Document) -> tuple[bool, bool, float]:
        alike = abs((samples_per_step or 0.0) / one["batch_size"] - 1) < 0.1
        return alike, bool(one.get("shuffle")), one.get("samples") or 0.0

    return max(forming, key=likely)


BatchListener = Callable[[int | None, SizeMeasurement | None], None]
"""Called as each trial starts (None) and ends; the batch size is None until the program's own is
known."""

_FIRST_STEPS: Final = 40
_AGAIN_STEPS: Final = 120
_MOST_STEPS: Final = 400
_SETTLING: Final = 6


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """A request to `stepscope batch`. None: not given."""

    fixes: tuple[str, ...] = ()
    smallest: int | None = None
    largest: int | None = None
    headroom: float = 0.10
    within: float = 0.05
    steps: int | None = None  # per trial; None: by the program's pace and `seconds`
    seconds: float = 2.0  # of steady steps in each trial
    budget_s: float | None = None


@dataclass(frozen=True, slots=True)
class FinishedSearch:
    """A search that has ended, and its program."""

    search: BatchSearch
    bounds: SearchBounds
    program: ProgramFacts
    what: str  # the kind of the program's steps: training, inference or batches
    interrupted: bool = False


def search_program(
    request: BatchRequest,
    run: RunTrial,
    read_facts: Callable[[Trial], ProgramFacts],
    listener: BatchListener,
) -> FinishedSearch:
    """Search for the best batch size. Raises UsageError if the program's cannot be changed."""
    listener(None, None)
    trial = run(TrialRequest(fixes=request.fixes, steps=request.steps or _FIRST_STEPS))
    if not _cut_short(trial):
        _check(trial)
    program = read_facts(trial)
    if _cut_short(trial) and request.steps is None:  # workers had most of its steps buffered
        trial = run(TrialRequest(fixes=request.fixes, steps=_AGAIN_STEPS + 2 * program.buffer))
    own = as_measurement(trial, program.batch)
    if not own.ok and own.status is not TrialStatus.OUT_OF_MEMORY:
        raise UsageError(f"baseline failed: {trial.failure}")
    listener(program.batch, own)
    bounds = _bounds(request, program)
    sizes = _Trials(request, run, listener, program)
    search = BatchSearch(sizes.measure, bounds, own)
    interrupted = False
    try:
        search.run()
    except KeyboardInterrupt:
        search.stop, interrupted = SearchStop(StopKind.INTERRUPTED), True
    return FinishedSearch(search, bounds, program, trial.what, interrupted)


@dataclass(slots=True)
class _Trials:
    """Measures each size with its own trial."""

    request: BatchRequest
    run: RunTrial
    listener: BatchListener
    program: ProgramFacts
    applied: bool = False

    def measure(self, batch: int, step_ms: float | None) -> SizeMeasurement:
        """With the fix, except at the program's own size, where it changes nothing."""
        self.listener(batch, None)
        own = batch == self.program.batch
        fixes = self.request.fixes if own else (f"batch={batch}", *self.request.fixes)
        steps = self.request.steps
        if steps is None:  # enough for `seconds` of steady steps after the buffered ones
            steady = ceil(self.request.seconds * 1e3 / step_ms) + _SETTLING if step_ms else 0
            steps = 2 * self.program.buffer + min(_MOST_STEPS, max(LEAST_STEPS, steady))
        trial = self.run(TrialRequest(fixes=fixes, steps=steps))
        if _cut_short(trial) and self.request.steps is None:
            steps = _AGAIN_STEPS + 2 * self.program.buffer
            trial = self.run(TrialRequest(fixes=fixes, steps=steps))
        got = as_measurement(trial, batch)
        refused = got.status is TrialStatus.NOT_APPLICABLE and not self.applied
        if refused and got.reason is not TrialReason.EPOCH_TOO_SMALL:
            raise UsageError(f"the batch size cannot be changed: {got.detail or _NO_LOADER}")
        self.applied |= not own and got.ok
        self.listener(batch, got)
        return got


def as_measurement(trial: Trial, batch: int) -> SizeMeasurement:
    """A trial as a measurement of a batch size."""
    status, reason = trial.status, trial.reason
    if _few(trial) and trial.steps < trial.request.steps:
        status, reason = TrialStatus.TOO_SHORT, TrialReason.TOO_FEW_STEADY
    elif trial.ok and not trial.samples_per_step:
        status, reason = TrialStatus.FAILED, TrialReason.NO_SAMPLE_COUNT
    return SizeMeasurement(
        batch,
        status,
        reason,
        trial.detail,
        trial.step_ms,
        trial.samples_per_step or 0.0,
        trial.peak_memory_bytes,
        trial.energy_j_per_step,
        trial.steps,
        trial.seconds,
    )


def _few(trial: Trial) -> bool:
    """Whether a trial's only fault is too few steady steps."""
    few = trial.ok or (trial.reason is TrialReason.TOO_FEW_STEADY and trial.steps > 0)
    return len(trial.step_ms) < FEWEST_STEADY and few


def _cut_short(trial: Trial) -> bool:
    """Whether more steps would help, because the program did not end by itself."""
    return _few(trial) and trial.steps >= trial.request.steps


def _check(trial: Trial) -> None:
    """Raise if the program does not run on its own."""
    fix = f"--fix {trial.fix or ''}"
    if trial.status is TrialStatus.NOT_APPLICABLE:
        raise UsageError(f"{fix} does not apply: {trial.failure}")
    if trial.status is TrialStatus.BROKE:
        raise UsageError(f"the program fails with {fix}: {trial.failure}")
    if trial.status not in (TrialStatus.OK, TrialStatus.OUT_OF_MEMORY):
        problem = StepscopeError(f"baseline failed: {trial.failure}")
        problem.exit_code = 1
        raise problem


def _bounds(request: BatchRequest, program: ProgramFacts) -> SearchBounds:
    """Raises UsageError for limits that leave nothing to try."""
    if request.largest is not None and request.largest < program.batch:
        limit = f"--max {request.largest}"
        raise UsageError(f"{limit} is below the program's own batch of {program.batch}")
    start = max(program.batch, request.smallest or 0)
    if program.samples is not None and start > program.samples:
        raise UsageError(f"--min {start}: an epoch has only {program.samples} samples")
    return SearchBounds(
        start=start,
        smallest=request.smallest,
        largest=request.largest,
        samples=program.samples,
        memory_bytes=program.memory_bytes,
        fills=program.device == "cuda",
        headroom=request.headroom,
        within=request.within,
        budget_s=request.budget_s,
        longest_s=60.0,
    )
