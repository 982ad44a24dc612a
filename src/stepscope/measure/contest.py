"""A contest between two sets of fixes: alternating trials until one is clearly better or not."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, sqrt
from statistics import fmean
from typing import Final

from stepscope.measure.prediction import Prediction
from stepscope.measure.trial.pool import (
    FAR_SLOWER,
    Fixes,
    TrialPool,
    compare_trials,
    speed_left,
    trial_costs,
)
from stepscope.measure.trial.record import Trial
from stepscope.record.trial import Rejection, RejectReason, TrialStatus
from stepscope.stats.intervals import student_t
from stepscope.stats.verdict import MIN_DIFFERENCE, Comparison, Verdict


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """When trials are evaluated, and what is accepted then."""

    processes: int  # on either side
    least: float  # the gain it takes
    fresh: int
    """Trials of the present set that must come from this contest, so that a small gain is not a
    change of the machine."""
    wider: float
    """The factor by which the interval is widened before it must clear 2%, since there are several
    checkpoints and candidates."""


CHECKPOINTS: Final = (
    Checkpoint(2, 1.2, 0, 1.5),
    Checkpoint(2, 1.5, 1, 1.5),
    Checkpoint(3, 1.1, 1, 1.9),
    Checkpoint(5, 1.0, 2, 1.6),
)
"""A fix that does nothing wins at most 3 of 1,000 times under ten kinds of noise, and less than
once in 5,000 where processes differ by 1%: tests/measure/test_trial_contest.py simulates it. Three
processes are too few for a gain under a tenth: if half of all processes are 5% slower by chance, 16
of 1,000 would win."""
_PATIENT: Final = Checkpoint(10, 1.1, 5, 1.35)
"""If processes differ by a tenth, five cannot show a gain of a fifth. This many are run only if the
budget holds far more."""
_MEMORY: Final = (Checkpoint(2, 1.0, 0, 1.0),)  # peaks repeat
_MANY: Final = 5
_APART: Final = 1.35  # how much wider the interval may be if the sides do not overlap
_SMALL: Final = 1.1  # gains under it take five processes
EXPECTED: Final = 1.1  # a predicted gain that one slow process does not refute
_FAR: Final = 1.5  # least ratio of the slowest process to the other side's fastest
_BEYOND: Final = 2.5  # and least multiple of the noise between processes


@dataclass(frozen=True, slots=True)
class ContestResult:
    """How a contest ended."""

    won: bool
    why: Rejection | None = None  # None if it was won or put off
    comparison: Comparison | None = None
    failed: Trial | None = None  # the failed trial, if one decided it
    put_off: bool = False
    """It is still open: the gain looks small, and small ones are to be settled later."""


def hold_contest(
    pool: TrialPool,
    base: Fixes,
    other: Fixes,
    predicted: Prediction | None = None,
    small_later: bool = False,
) -> ContestResult:
    """Whether `other` is better than `base`, which already has trials.

    One process that shows no gain may end it. To win takes two for a gain of a fifth, three for a
    tenth, five for less, and up to ten if processes differ a lot and the budget allows. If the
    other's first process is far slower than the base, or lacks a predicted gain, the machine may
    have changed: the base gets another process at once, and its earlier ones no longer count. The
    base also gets another beside a small gain or one larger than predicted. A contest that can no
    longer be won ends. A predicted gain needs no wider margin than its interval: it is not one of
    many guesses. `small_later`: leave it open if the first process shows a small gain.
    """
    try:
        return _Contest(pool, base, other, predicted).decide(small_later)
    except _TrialFailed as ended:
        return ContestResult(False, failed_trial(ended.trial), failed=ended.trial)


def failed_trial(trial: Trial) -> Rejection:
    """Why a candidate is rejected by a trial that failed."""
    failed = RejectReason.TRIAL_FAILED
    return Rejection(failed, trial.failure, fix=trial.fix, status=trial.status)


class _TrialFailed(Exception):  # noqa: N818
    def __init__(self, trial: Trial) -> None:
        super().__init__()
        self.trial = trial


class _Contest:
    """Its methods raise _TrialFailed if a trial fails."""

    def __init__(
        self, pool: TrialPool, base: Fixes, other: Fixes, predicted: Prediction | None
    ) -> None:
        self.pool, self.base, self.other, self.predicted = pool, base, other, predicted
        self.predicted_low = predicted.low if predicted else 0.0
        self.started = len(pool.trials(base))
        self.since = 0  # index of the base's first trial that counts

    def decide(self, small_later: bool) -> ContestResult:
        pool, timed = self.pool, self.pool.objective != "memory"
        if (hopeless := self.first_trial()) is not None:
            return hopeless
        found = pool.compare(self.base, self.other)
        if found is None:
            return ContestResult(False, Rejection(RejectReason.NO_DATA))
        unexpected = self.predicted_low >= EXPECTED or found.ratio < FAR_SLOWER
        if timed and unexpected and not self.promising(found):
            self.add_trial(self.base)  # the machine may have become slower since
            self.since = self.started
            found = pool.compare(self.base, self.other, self.since) or found
        if not self.promising(found):
            return ContestResult(False, Rejection(RejectReason.SLOWER_AT_ONCE), found)
        if self.predicted_low < EXPECTED and not self.winnable(found, self.since):
            return ContestResult(False, Rejection(RejectReason.WITHIN_NOISE), found)
        small = timed and 1 + MIN_DIFFERENCE <= found.ratio < CHECKPOINTS[0].least
        if small_later and small and found.ratio < _SMALL:
            return ContestResult(False, None, found, put_off=True)
        unforeseen = timed and found.ratio > (self.predicted.high if self.predicted else 1)
        if (small or unforeseen) and self.since < self.started:
            # One more base process, for a gain the machine may explain. The contest ends if there
            # is no gain over all the base's processes or over this one.
            self.add_trial(self.base)
            for earlier in (self.since, self.started):
                again = pool.compare(self.base, self.other, earlier)
                assert again is not None
                if again.ratio < 1 or not self.winnable(again, earlier):
                    return ContestResult(False, not_better(again), again)
        return self.run_checkpoints(found, (*CHECKPOINTS, _PATIENT) if timed else _MEMORY)

    def run_checkpoints(
        self, found: Comparison, checkpoints: Sequence[Checkpoint]
    ) -> ContestResult:
        pool, base, other = self.pool, self.base, self.other
        for checkpoint in checkpoints:
            if checkpoint is _PATIENT and not self.worth_patience(found):
                break
            of_base = max(self.since + checkpoint.processes, self.started + checkpoint.fresh)
            self.fill(of_base, checkpoint.processes)
            compared = pool.compare(base, other, self.since)
            assert compared is not None
            found = compared
            wider = 1.0 if self.predicted_low >= EXPECTED else _APART
            if found.ratio >= checkpoint.least and self.clears(found, checkpoint):
                left = None
                if pool.objective == "memory":
                    left = speed_left(pool.trials(base), pool.trials(other))
                if left is not None:
                    return ContestResult(False, Rejection(RejectReason.TOO_SLOW, 1 - left), found)
                return ContestResult(True, None, found)
            if found.ratio < 1 + MIN_DIFFERENCE or not self.winnable(found, self.since, wider):
                break
        return ContestResult(False, not_better(found), found)

    def first_trial(self) -> ContestResult | None:
        """Run the other's first trial. If it was ended early, far slower, and the base has not
        become as slow since, that is the result."""
        trial = self.pool.more(self.other, against=self.base)
        if trial.status is TrialStatus.FAR_SLOWER:
            self.add_trial(self.base)
            now = self.pool.trials(self.base)[self.started :]
            found = compare_trials(now, [trial], self.pool.objective, self.pool.floor())
            if found is not None and found.ratio < 1 / (1 + MIN_DIFFERENCE):
                share = trial.steps / max(1, trial.request.steps)
                return ContestResult(False, Rejection(RejectReason.FAR_SLOWER, share), found)
            trial = self.pool.more(self.other)
        if not trial.timed:
            raise _TrialFailed(trial)
        return None

    def add_trial(self, fixes: Fixes) -> None:
        trial = self.pool.more(fixes)
        if not trial.timed:
            raise _TrialFailed(trial)

    def fill(self, of_base: int, of_other: int) -> None:
        """Alternate trials until both sides have this many."""
        pool, base, other = self.pool, self.base, self.other
        last = other
        while True:
            lacks = {base: of_base - len(pool.trials(base))}
            lacks[other] = of_other - len(pool.trials(other))
            if max(lacks.values()) <= 0:
                return
            turn, rest = (base, other) if last is other else (other, base)
            last = turn if lacks[turn] > 0 else rest
            self.add_trial(last)

    def worth_patience(self, found: Comparison) -> bool:
        """Whether the gain looks sufficient and the remaining cost is small beside the budget."""
        pool, sides = self.pool, (self.base, self.other)
        lack = {side: max(0, _PATIENT.processes - len(pool.trials(side))) for side in sides}
        seconds = sum(pool.cost_s(side, count) for side, count in lack.items())
        return found.ratio >= _PATIENT.least and pool.spares(seconds)

    def promising(self, found: Comparison) -> bool:
        """A gain of less than 2% is never claimed; one slow process does not refute a
        prediction."""
        reach = found.ratio * (1 + (self.pool.floor() or 0.0))
        predicted = self.predicted_low >= EXPECTED and reach >= self.predicted_low
        return found.ratio >= 1 + MIN_DIFFERENCE or predicted

    def clears(self, found: Comparison, checkpoint: Checkpoint) -> bool:
        """FASTER even with the wider interval; or every process beats every one of the other side:
        by far with a fresh one, or with as many as chance allows once in 252 times."""

        def low(wider: float) -> float:
            return float(found.ratio * (found.low / found.ratio) ** wider)

        if found.verdict is not Verdict.FASTER:
            return False
        if low(1.0 if self.predicted_low >= EXPECTED else checkpoint.wider) > 1 + MIN_DIFFERENCE:
            return True
        pool = self.pool
        counted = pool.trials(self.base)[self.since :]
        ours, theirs = trial_costs(counted, pool.trials(self.other), pool.objective)
        apart = min(map(fmean, ours)) / max(map(fmean, theirs))
        if checkpoint.fresh and apart >= max(_FAR, exp(_BEYOND * (pool.spread() or 0.0))):
            return True
        return checkpoint.processes >= _MANY and apart > 1 and low(_APART) > 1 + MIN_DIFFERENCE

    def winnable(self, found: Comparison, since: int, wider: float = _APART) -> bool:
        """Whether the last checkpoint could still show the gain if it were larger than seen by as
        much as chance explains."""
        spread = self.pool.spread()
        if spread is None:
            return True
        ours, theirs = len(self.pool.trials(self.base)) - since, len(self.pool.trials(self.other))
        likely = found.ratio * exp(spread * sqrt(1 / ours + 1 / theirs))

        def shown_by(processes: int) -> bool:
            reach = student_t(2 * processes - 2) * spread * sqrt(2 / processes)
            return likely * exp(-wider * reach) > 1 + MIN_DIFFERENCE

        return shown_by(_MANY) or (self.worth_patience(found) and shown_by(_PATIENT.processes))


def not_better(found: Comparison) -> Rejection:
    """Why a contest with this result was not won."""
    clear = found.verdict is not Verdict.FASTER and found.ratio < 1 + MIN_DIFFERENCE
    return Rejection(RejectReason.NOT_BETTER if clear else RejectReason.NOT_CLEAR)
