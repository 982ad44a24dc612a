"""Two sets of fixes against each other: trials in turn, until one may be called better or not."""

from dataclasses import dataclass, replace
from math import exp, sqrt
from statistics import fmean
from typing import Final

from stepscope.measure.prediction import Prediction
from stepscope.measure.trial import Trial
from stepscope.measure.trial_pool import Fixes, TrialPool, speed_left, trial_costs
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
once in 5,000 where processes differ by 1%: tests/tune/test_tune_contest.py simulates it. Three
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
    """How it ended. `why`: in one line, None where it was won."""

    won: bool
    why: str | None
    comparison: Comparison | None = None
    failed: Trial | None = None
    """The trial that did not end well, where that decided it."""
    put_off: bool = False
    """It is open: the gain looks small, and it was asked not to settle small ones now."""


def hold_contest(
    lab: TrialPool,
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
    started, since = len(lab.trials(base)), 0
    first = _one(lab, other)
    if first is not None:
        return first
    found = lab.compare(base, other)
    if found is None:
        return ContestResult(False, f"trials do not tell about {lab.objective}")
    if _doubtful(found, hoped, lab):
        ended = _one(lab, base)  # the machine may have become slower since
        if ended is not None:
            return ended
        since, found = started, lab.compare(base, other, started) or found
    if not _promising(found, hoped, lab.floor()):
        return ContestResult(False, f"not {_better(lab)} in one trial: {found.ratio:.2f}×", found)
    if hoped < _HOPED and not _winnable(lab, base, other, found, since):
        words = f"too little to tell from the noise of processes: {found.ratio:.2f}×"
        return ContestResult(False, words, found)
    small = 1 + MIN_DIFFERENCE <= found.ratio < CHECKPOINTS[0].least and lab.objective != "memory"
    if small_later and small and found.ratio < _SMALL:
        return ContestResult(False, None, found, put_off=True)
    unforeseen = lab.objective != "memory" and found.ratio > (predicted.high if predicted else 1)
    if (small or unforeseen) and since < started:
        ended = _refuted(lab, base, other, since, started)
        if ended is not None:
            return ended
    for look in _MEMORY if lab.objective == "memory" else (*CHECKPOINTS, _PATIENT):
        if look is _PATIENT and not _worth_patience(lab, base, other, found):
            break
        of_base = max(since + look.processes, started + look.fresh)
        ended = _fill(lab, base, other, of_base, look.processes)
        if ended is not None:
            return ended
        found = lab.compare(base, other, since)
        assert found is not None
        if hoped >= _HOPED:
            look = replace(look, wider=1.0)
        if found.ratio >= look.least and _clears(lab, base, other, found, look, since):
            return _judged(lab, base, other, found)
        if found.ratio < 1 + MIN_DIFFERENCE or not _winnable(lab, base, other, found, since, hoped):
            break
    return ContestResult(False, _not_better(found, lab), found)


def _worth_patience(lab: TrialPool, base: Fixes, other: Fixes, found: Comparison) -> bool:
    """Whether it looks like enough, and what it still takes is little beside the budget."""
    lack = {side: max(0, _PATIENT.processes - len(lab.trials(side))) for side in (base, other)}
    seconds = sum(lab.cost_s(side, count) for side, count in lack.items())
    return found.ratio >= _PATIENT.least and lab.spares(seconds)


def _doubtful(found: Comparison, hoped: float, lab: TrialPool) -> bool:
    """Whether one process that shows no gain may be the machine's doing."""
    if lab.objective == "memory" or _promising(found, hoped, lab.floor()):
        return False
    return hoped >= _HOPED or found.ratio < _SURPRISING


def _refuted(
    lab: TrialPool, base: Fixes, other: Fixes, since: int, started: int
) -> ContestResult | None:
    """One more process of the base, beside a gain that may be the machine's: the end, where it is
    none against all of the base's or against this one."""
    ended = _one(lab, base)
    if ended is not None:
        return ended
    for earlier in (since, started):
        found = lab.compare(base, other, earlier)
        assert found is not None
        if found.ratio < 1 or not _winnable(lab, base, other, found, earlier):
            return ContestResult(False, _not_better(found, lab), found)
    return None


def _promising(found: Comparison, hoped: float, floor: float | None) -> bool:
    """A gain of less than 2% is never claimed; one slow process does not refute a prediction."""
    if found.ratio >= 1 + MIN_DIFFERENCE:
        return True
    return hoped >= _HOPED and found.ratio * (1 + (floor or 0.0)) >= hoped


def _clears(
    lab: TrialPool, base: Fixes, other: Fixes, found: Comparison, look: Checkpoint, since: int
) -> bool:
    """FASTER, and so were the interval wider; or every process is better than every one of the
    other side: far better, one of them fresh, or one of many, as chance does once in 252 times."""
    if found.verdict is not Verdict.FASTER:
        return False
    if _low(found, look.wider) > 1 + MIN_DIFFERENCE:
        return True
    ours, theirs = trial_costs(lab.trials(base)[since:], lab.trials(other), lab.objective)
    apart = min(map(fmean, ours)) / max(map(fmean, theirs))
    if look.fresh and apart >= max(_FAR, exp(_BEYOND * (lab.spread() or 0.0))):
        return True
    return look.processes >= _MANY and apart > 1 and _low(found, _APART) > 1 + MIN_DIFFERENCE


def _low(found: Comparison, wider: float) -> float:
    return float(found.ratio * (found.low / found.ratio) ** wider)


def _winnable(
    lab: TrialPool, base: Fixes, other: Fixes, found: Comparison, since: int, hoped: float = 0.0
) -> bool:
    """Whether the last look could still show the gain, were it larger than seen by as much as
    chance takes away or adds."""
    spread = lab.spread()
    if spread is None:
        return True
    sides = len(lab.trials(base)) - since, len(lab.trials(other))
    likely = found.ratio * exp(spread * sqrt(sum(1 / side for side in sides)))
    wider = 1.0 if hoped >= _HOPED else _APART
    if likely * exp(-wider * _reach(_MANY, spread)) > 1 + MIN_DIFFERENCE:
        return True
    if not _worth_patience(lab, base, other, found):
        return False
    return likely * exp(-wider * _reach(_PATIENT.processes, spread)) > 1 + MIN_DIFFERENCE


def _reach(processes: int, spread: float) -> float:
    """How far from the truth a ratio may be, a logarithm, with so many on either side."""
    return float(student_t(2 * processes - 2) * spread * sqrt(2 / processes))


def _fill(
    lab: TrialPool, base: Fixes, other: Fixes, of_base: int, of_other: int
) -> ContestResult | None:
    """Trials in turn until there are so many of both; the end, where one did not go well."""
    last = other
    while True:
        lacks = {
            base: of_base - len(lab.trials(base)),
            other: of_other - len(lab.trials(other)),
        }
        if max(lacks.values()) <= 0:
            return None
        turn = base if last is other else other
        if lacks[turn] <= 0:
            turn = base if turn is other else other
        if ended := _one(lab, turn):
            return ended
        last = turn


def _one(lab: TrialPool, fixes: Fixes) -> ContestResult | None:
    trial = lab.more(fixes)
    if trial.ok and trial.step_ms:
        return None
    return ContestResult(False, trial.why or "too few steps to tell", failed=trial)


def _judged(lab: TrialPool, base: Fixes, other: Fixes, found: Comparison) -> ContestResult:
    if lab.objective == "memory":
        left = speed_left(lab.trials(base), lab.trials(other))
        if left is not None:
            return ContestResult(False, f"less memory, but {1 - left:.0%} slower", found)
    return ContestResult(True, None, found)


def _not_better(found: Comparison, lab: TrialPool) -> str:
    what = _better(lab)
    span = f"{found.ratio:.2f}× ({found.low:.2f}–{found.high:.2f})"
    if found.verdict is Verdict.FASTER or found.ratio >= 1 + MIN_DIFFERENCE:
        return f"not clearly {what}: {span}"
    return f"not {what}: {span}"


def _better(lab: TrialPool) -> str:
    return {"memory": "less memory", "energy": "less energy"}.get(lab.objective, "faster")
