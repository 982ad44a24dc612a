"""Two sets of fixes against each other: trials in turn, until one may be called better or not."""

from dataclasses import dataclass, replace
from math import exp, sqrt
from statistics import fmean
from typing import Final

from stepscope.measure.prediction import Prediction
from stepscope.measure.trial import Trial
from stepscope.measure.trial_pool import Fixes, TrialPool, speed_left, trial_costs
from stepscope.record.trial import Rejection, RejectReason
from stepscope.stats.intervals import student_t
from stepscope.stats.verdict import MIN_DIFFERENCE, Comparison, Verdict


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """When trials are looked at, and what is accepted then."""

    processes: int
    """On either side."""
    least: float
    """The gain it takes."""
    fresh: int
    """Trials of the present set that must be of this very contest: a small gain is not to be a
    change of the machine's."""
    wider: float
    """How many times as wide as usual the interval must still clear 2%: looks are several, and
    so are candidates."""


CHECKPOINTS: Final = (
    Checkpoint(2, 1.2, 0, 1.5),
    Checkpoint(2, 1.5, 1, 1.5),
    Checkpoint(3, 1.1, 1, 1.9),
    Checkpoint(5, 1.0, 2, 1.6),
)
"""A fix that does nothing wins at most 3 of 1,000 times under ten kinds of noise, and less than
once in 5,000 where processes differ by 1%: tests/measure/test_trial_contest.py simulates it. Three
processes are too few for a gain under a tenth: where half of all processes are 5% slower by
chance, it would be 16 of 1,000."""
_PATIENT: Final = Checkpoint(10, 1.1, 5, 1.35)
"""Where processes differ by a tenth, five cannot show a gain of a fifth. So many are made only
where the budget has far more."""
_MEMORY: Final = (Checkpoint(2, 1.0, 0, 1.0),)  # peaks repeat
_MANY: Final = 5
_APART: Final = 1.35  # how much wider the interval may be where the sides do not overlap
_SMALL: Final = 1.1  # gains under it take five processes
_HOPED: Final = 1.1  # a predicted gain that one slow process does not speak against
_SURPRISING: Final = 0.87  # so much slower is no fix by itself; a machine may be
_FAR: Final = 1.5  # how many times as fast the slowest is as the fastest of the other side
_BEYOND: Final = 2.5  # and how many times the noise of processes that must be


@dataclass(frozen=True, slots=True)
class ContestResult:
    """How it ended."""

    won: bool
    why: Rejection | None = None
    """None where it was won or is put off."""
    comparison: Comparison | None = None
    failed: Trial | None = None
    """The trial that did not end well, where that decided it."""
    put_off: bool = False
    """It is open: the gain looks small, and it was asked not to settle small ones now."""


def hold_contest(
    pool: TrialPool,
    base: Fixes,
    other: Fixes,
    predicted: Prediction | None = None,
    small_later: bool = False,
) -> ContestResult:
    """Whether `other` is better than `base`, which has trials already.

    One process may end it where it shows no gain; to win it takes two of a gain of a fifth, three
    of a tenth, five of less; up to ten where processes differ much and the budget has room. The
    base has another process at once, and its earlier ones no longer count, where the first one of
    the other is far slower than it, or shows no gain where one was predicted: that may be the
    machine. So may a small gain, and one larger than predicted: beside these too the base has
    another process. What so many could not show any more ends.
    A gain that was predicted needs no wider margin than its interval: it is not one of many.
    `small_later`: leave it open after one process where that shows a small gain.
    """
    hoped = 0.0 if predicted is None else predicted.low
    started, since = len(pool.trials(base)), 0
    first = _one(pool, other)
    if first is not None:
        return first
    found = pool.compare(base, other)
    if found is None:
        return ContestResult(False, Rejection(RejectReason.NO_DATA))
    if _doubtful(found, hoped, pool):
        ended = _one(pool, base)  # the machine may have become slower since
        if ended is not None:
            return ended
        since, found = started, pool.compare(base, other, started) or found
    if not _promising(found, hoped, pool.floor()):
        return ContestResult(False, Rejection(RejectReason.SLOWER_AT_ONCE), found)
    if hoped < _HOPED and not _winnable(pool, base, other, found, since):
        return ContestResult(False, Rejection(RejectReason.WITHIN_NOISE), found)
    small = 1 + MIN_DIFFERENCE <= found.ratio < CHECKPOINTS[0].least and pool.objective != "memory"
    if small_later and small and found.ratio < _SMALL:
        return ContestResult(False, None, found, put_off=True)
    unforeseen = pool.objective != "memory" and found.ratio > (predicted.high if predicted else 1)
    if (small or unforeseen) and since < started:
        ended = _refuted(pool, base, other, since, started)
        if ended is not None:
            return ended
    for checkpoint in _MEMORY if pool.objective == "memory" else (*CHECKPOINTS, _PATIENT):
        if checkpoint is _PATIENT and not _worth_patience(pool, base, other, found):
            break
        of_base = max(since + checkpoint.processes, started + checkpoint.fresh)
        ended = _fill(pool, base, other, of_base, checkpoint.processes)
        if ended is not None:
            return ended
        found = pool.compare(base, other, since)
        assert found is not None
        if hoped >= _HOPED:
            checkpoint = replace(checkpoint, wider=1.0)
        if found.ratio >= checkpoint.least and _clears(pool, base, other, found, checkpoint, since):
            return _judged(pool, base, other, found)
        if found.ratio < 1 + MIN_DIFFERENCE or not _winnable(
            pool, base, other, found, since, hoped
        ):
            break
    return ContestResult(False, _not_better(found), found)


def _worth_patience(pool: TrialPool, base: Fixes, other: Fixes, found: Comparison) -> bool:
    """Whether it looks like enough, and what it still takes is little beside the budget."""
    lack = {side: max(0, _PATIENT.processes - len(pool.trials(side))) for side in (base, other)}
    seconds = sum(pool.cost_s(side, count) for side, count in lack.items())
    return found.ratio >= _PATIENT.least and pool.spares(seconds)


def _doubtful(found: Comparison, hoped: float, pool: TrialPool) -> bool:
    """Whether one process that shows no gain may be the machine's doing."""
    if pool.objective == "memory" or _promising(found, hoped, pool.floor()):
        return False
    return hoped >= _HOPED or found.ratio < _SURPRISING


def _refuted(
    pool: TrialPool, base: Fixes, other: Fixes, since: int, started: int
) -> ContestResult | None:
    """One more process of the base, beside a gain that may be the machine's: the end, where it is
    none against all of the base's or against this one."""
    ended = _one(pool, base)
    if ended is not None:
        return ended
    for earlier in (since, started):
        found = pool.compare(base, other, earlier)
        assert found is not None
        if found.ratio < 1 or not _winnable(pool, base, other, found, earlier):
            return ContestResult(False, _not_better(found), found)
    return None


def _promising(found: Comparison, hoped: float, floor: float | None) -> bool:
    """A gain of less than 2% is never claimed; one slow process does not refute a prediction."""
    if found.ratio >= 1 + MIN_DIFFERENCE:
        return True
    return hoped >= _HOPED and found.ratio * (1 + (floor or 0.0)) >= hoped


def _clears(
    pool: TrialPool,
    base: Fixes,
    other: Fixes,
    found: Comparison,
    checkpoint: Checkpoint,
    since: int,
) -> bool:
    """FASTER, and so were the interval wider; or every process is better than every one of the
    other side: far better, one of them fresh, or one of many, as chance does once in 252 times."""
    if found.verdict is not Verdict.FASTER:
        return False
    if _low(found, checkpoint.wider) > 1 + MIN_DIFFERENCE:
        return True
    ours, theirs = trial_costs(pool.trials(base)[since:], pool.trials(other), pool.objective)
    apart = min(map(fmean, ours)) / max(map(fmean, theirs))
    if checkpoint.fresh and apart >= max(_FAR, exp(_BEYOND * (pool.spread() or 0.0))):
        return True
    return checkpoint.processes >= _MANY and apart > 1 and _low(found, _APART) > 1 + MIN_DIFFERENCE


def _low(found: Comparison, wider: float) -> float:
    return float(found.ratio * (found.low / found.ratio) ** wider)


def _winnable(
    pool: TrialPool, base: Fixes, other: Fixes, found: Comparison, since: int, hoped: float = 0.0
) -> bool:
    """Whether the last checkpoint could still show the gain, were it larger than seen by as much as
    chance takes away or adds."""
    spread = pool.spread()
    if spread is None:
        return True
    sides = len(pool.trials(base)) - since, len(pool.trials(other))
    likely = found.ratio * exp(spread * sqrt(sum(1 / side for side in sides)))
    wider = 1.0 if hoped >= _HOPED else _APART
    if likely * exp(-wider * _reach(_MANY, spread)) > 1 + MIN_DIFFERENCE:
        return True
    if not _worth_patience(pool, base, other, found):
        return False
    return likely * exp(-wider * _reach(_PATIENT.processes, spread)) > 1 + MIN_DIFFERENCE


def _reach(processes: int, spread: float) -> float:
    """How far from the truth a ratio may be, a logarithm, with so many on either side."""
    return float(student_t(2 * processes - 2) * spread * sqrt(2 / processes))


def _fill(
    pool: TrialPool, base: Fixes, other: Fixes, of_base: int, of_other: int
) -> ContestResult | None:
    """Trials in turn until there are so many of both; the end, where one did not go well."""
    last = other
    while True:
        lacks = {
            base: of_base - len(pool.trials(base)),
            other: of_other - len(pool.trials(other)),
        }
        if max(lacks.values()) <= 0:
            return None
        turn = base if last is other else other
        if lacks[turn] <= 0:
            turn = base if turn is other else other
        if ended := _one(pool, turn):
            return ended
        last = turn


def _one(pool: TrialPool, fixes: Fixes) -> ContestResult | None:
    trial = pool.more(fixes)
    if trial.timed:
        return None
    why = Rejection(RejectReason.TRIAL_FAILED, trial.failure, fix=trial.fix, status=trial.status)
    return ContestResult(False, why, failed=trial)


def _judged(pool: TrialPool, base: Fixes, other: Fixes, found: Comparison) -> ContestResult:
    if pool.objective == "memory":
        left = speed_left(pool.trials(base), pool.trials(other))
        if left is not None:
            return ContestResult(False, Rejection(RejectReason.TOO_SLOW, 1 - left), found)
    return ContestResult(True, None, found)


def _not_better(found: Comparison) -> Rejection:
    clear = found.verdict is not Verdict.FASTER and found.ratio < 1 + MIN_DIFFERENCE
    return Rejection(RejectReason.NOT_BETTER if clear else RejectReason.NOT_CLEAR)
