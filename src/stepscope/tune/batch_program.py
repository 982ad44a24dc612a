"""The batch size of an unmodified program: every size is a trial of `--fix batch=N`."""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import Final

from stepscope.record.errors import StepscopeError, UsageError
from stepscope.tune.ask import Ask
from stepscope.tune.batch_bounds import Bounds, Stop
from stepscope.tune.batch_measured import NOT_APPLICABLE, OUT_OF_MEMORY, TOO_SHORT, Measured
from stepscope.tune.batch_search import Search
from stepscope.tune.batch_seen import NO_LOADER, Seen
from stepscope.tune.batch_sizes import LEAST_STEPS
from stepscope.tune.speed import LEAST
from stepscope.tune.trial import OK, Run, Trial

Look = Callable[[Trial], Seen]
Hear = Callable[[int | None, Measured | None], None]
"""Hears of each trial as it starts (None) and ends; its batch size is None as long as the
program's own is not known."""

_FIRST_STEPS: Final = 40
_AGAIN_STEPS: Final = 120
_MOST_STEPS: Final = 400
_SETTLING: Final = 6
_LONGEST_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Wanted:
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
class Searched:
    """A search that has ended, and the program it was about."""

    search: Search
    bounds: Bounds
    seen: Seen
    what: str
    """training, inference or batches: what the program's steps are."""
    interrupted: bool = False


def search_program(wanted: Wanted, run: Run, look: Look, hear: Hear) -> Searched:
    """Find out about batch sizes. Raises UsageError where the program's cannot be changed."""
    hear(None, None)
    trial = run(Ask(fixes=wanted.fixes, steps=wanted.steps or _FIRST_STEPS))
    if not _cut_short(trial):
        _check(trial)
    seen = look(trial)
    if _cut_short(trial) and wanted.steps is None:  # workers had most of its steps ready
        trial = run(Ask(fixes=wanted.fixes, steps=_AGAIN_STEPS + 2 * seen.buffer))
    own = measured(trial, seen.batch)
    if not own.ok and own.status != OUT_OF_MEMORY:
        raise UsageError(f"the program as it is: {own.why}")
    hear(seen.batch, own)
    bounds = _bounds(wanted, seen)
    sizes = _Trials(wanted, run, hear, seen)
    search = Search(sizes.measure, bounds, own)
    try:
        search.run()
    except KeyboardInterrupt:
        search.stop = Stop("interrupted", "it was interrupted")
        return Searched(search, bounds, seen, trial.what, interrupted=True)
    return Searched(search, bounds, seen, trial.what)


class _Trials:
    """Measures a size by a trial of its own."""

    def __init__(self, wanted: Wanted, run: Run, hear: Hear, seen: Seen) -> None:
        self._wanted = wanted
        self._run = run
        self._hear = hear
        self._seen = seen
        self._applied = False

    def measure(self, batch: int, step_ms: float | None) -> Measured:
        """With the fix, except at the program's own size, where it has nothing to do."""
        self._hear(batch, None)
        own = batch == self._seen.batch
        fixes = self._wanted.fixes if own else (f"batch={batch}", *self._wanted.fixes)
        trial = self._run(Ask(fixes=fixes, steps=self._steps(step_ms)))
        if _cut_short(trial) and self._wanted.steps is None:
            trial = self._run(Ask(fixes=fixes, steps=_AGAIN_STEPS + 2 * self._seen.buffer))
        got = measured(trial, batch)
        if (
            got.status == NOT_APPLICABLE
            and not self._applied
            and "samples only" not in str(got.why)
        ):
            raise UsageError(f"the batch size cannot be changed: {got.why or NO_LOADER}")
        self._applied |= not own and got.ok
        self._hear(batch, got)
        return got

    def _steps(self, step_ms: float | None) -> int:
        """Enough for `seconds` of steady steps behind what workers had ready."""
        if self._wanted.steps is not None:
            return self._wanted.steps
        steady = ceil(self._wanted.seconds * 1e3 / step_ms) + _SETTLING if step_ms else 0
        return 2 * self._seen.buffer + min(_MOST_STEPS, max(LEAST_STEPS, steady))


def measured(trial: Trial, batch: int) -> Measured:
    """A trial as a measurement of a batch size."""
    status, why = trial.status, trial.why
    if status == "broke" and "does not fit into memory" in (why or ""):
        status = OUT_OF_MEMORY
    if _few(trial) and trial.steps < trial.ask.steps:
        count = f"{trial.steps} step{'' if trial.steps == 1 else 's'}"
        status, why = TOO_SHORT, f"the program ends after {count}, before its speed shows"
    elif status == OK and not trial.samples_per_step:
        status, why = "failed", "its steps do not show how many samples they take"
    return Measured(
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
    return len(trial.step_ms) < LEAST and (trial.ok or ended_well)


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


def _bounds(wanted: Wanted, seen: Seen) -> Bounds:
    """Raises UsageError for limits that leave nothing to try."""
    if wanted.largest is not None and wanted.largest < seen.batch:
        raise UsageError(f"--max {wanted.largest} is below the program's own batch of {seen.batch}")
    start = max(seen.batch, wanted.smallest or 0)
    if seen.samples is not None and start > seen.samples:
        raise UsageError(f"--min {start}: an epoch has {seen.samples} samples only")
    return Bounds(
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
