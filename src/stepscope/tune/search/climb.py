"""Tries candidates one by one on top of the fixes kept so far: faster, allowed, and still training
the same?"""

from collections.abc import Iterable, Sequence, Set
from dataclasses import replace
from typing import Final

from stepscope.measure.contest import hold_contest
from stepscope.measure.trial.pool import BudgetSpent, Fixes
from stepscope.record.fix_words import sentence
from stepscope.record.proof import ProofState
from stepscope.record.trial import Rejection, RejectReason, StopReason, TrialStatus
from stepscope.stats.verdict import MIN_DIFFERENCE
from stepscope.tune.search.candidates import (
    FIX_KINDS,
    Candidate,
    Rejected,
    by_expected_gain,
    fix_name,
    with_candidate,
)
from stepscope.tune.search.ladder import Ladder


def try_candidate(
    ladder: Ladder, one: Candidate, fixes: Fixes, small_later: bool = False
) -> bool | None:
    """Try a candidate's set against what is kept; returns whether it won.

    None: a small gain, to be settled later as requested. Fixes tried as one that did not win are
    not rejected, except those that do not apply: each still gets its own try.
    """
    present = ladder.fixes
    one = replace(one, predicted=ladder.predict(present, fixes) or one.predicted)
    try:
        found = hold_contest(ladder.pool, present, fixes, one.predicted, small_later)
    except BudgetSpent:
        # Record the gain seen when the budget ran out, if any.
        made = len(ladder.pool.trials(fixes))
        seen = ladder.pool.compare(present, fixes) if made else None
        if seen is not None and seen.ratio >= 1 + MIN_DIFFERENCE:
            unsettled = Rejection(RejectReason.UNSETTLED, trials=made)
            ladder.reject(Rejected(one.label, unsettled, seen))
        raise
    failed = found.failed
    idle = failed is not None and failed.status is TrialStatus.NOT_APPLICABLE
    if failed is not None and failed.fix is not None and idle:
        # A kept fix that no longer applies beside the candidate, which may replace it.
        blame = fix_name(failed.fix)
        for other in present:
            if fix_name(other) == blame != one.name and other in fixes:
                without = tuple(fix for fix in fixes if fix != other)
                return try_candidate(ladder, one, without, small_later)
    if one.along and not found.won:
        if failed is None:
            ladder.beaten[one.label] = (one, ladder.speed)
        elif idle and failed.fix in one.whole:
            assert found.why is not None
            ladder.reject(Rejected(failed.fix, found.why))
        return False
    if found.put_off:
        return None
    ladder.beaten.pop(one.label, None)
    if not found.won:
        ladder.lost(one, found)
        return False
    assert found.comparison is not None
    refused = _too_far(ladder, one, fixes)
    if refused is not None:
        ladder.reject(refused)
        return False
    proof = None
    if ladder.prove is not None:
        proof = ladder.prove(fixes, ladder.kind(fixes, one), ladder.pool.trials(fixes))
        if proof.state is ProofState.DIFFERS:
            why = Rejection(RejectReason.DIFFERS)
            ladder.reject(Rejected(one.fix, why, found.comparison, proof))
            return False
    ladder.keep(one, fixes, found.comparison, proof)
    return True


def _too_far(ladder: Ladder, one: Candidate, fixes: Fixes) -> Rejected | None:
    """Why the set changes more than allowed; only trials show what some fixes change, such as a
    dataset's draws in workers."""
    for trial in ladder.pool.trials(fixes):
        for did in trial.fixes:
            kind, own = did.kind, did.name in map(fix_name, one.whole)
            if own and kind and FIX_KINDS.index(kind) > FIX_KINDS.index(ladder.allow):
                where = "; ".join(map(sentence, did.applied))
                return Rejected(one.fix, Rejection(RejectReason.OBSERVED_KIND, where, kind=kind))
    return None


_FEWEST: Final = 2  # trials a candidate needs to win
_MOVED: Final = 1.15
"""A gain after which fixes that did not help may: the bottleneck has moved."""


def climb(ladder: Ladder, found: Sequence[Candidate]) -> None:
    """Try candidates, the most promising on top of what is kept first; then those whose gain looked
    small, which takes many trials to settle and may grow once others are kept; then once more those
    that were no better, if the ladder has grown since."""
    small = _each(ladder, found, small_later=True)
    for one in _each(ladder, small, small_later=False):
        ladder.reject(Rejected(one.fix, Rejection(RejectReason.REQUIRES, one.after)))
    _again(ladder)


def _each(ladder: Ladder, found: Sequence[Candidate], small_later: bool) -> list[Candidate]:
    """Try each; returns those put off, and those waiting for a fix that is not kept."""
    left = list(found)
    later: list[Candidate] = []
    search = ladder.search
    too_long = search.untried if search.stopped == StopReason.BUDGET else []
    while left:
        left = without_settled(left, ladder.fixes, _unfit(ladder))
        one = _next(ladder, left)
        if one is None:
            break
        waiting = (other.fix for other in (*left, *later) if not other.along)
        search.untried = [*dict.fromkeys((*too_long, *waiting))]
        left = [other for other in left if other.whole != one.whole]
        fixes = with_candidate(ladder.fixes, one)
        if not ladder.pool.affords(fixes, _FEWEST):
            too_long = [*too_long, *([] if one.along else [one.fix])]
            search.stopped = StopReason.BUDGET
        elif one.predicted is not None and one.predicted.high < 1:
            if not one.along:  # parts are judged on their own
                ladder.beaten[one.label] = (one, ladder.speed)
                why = Rejection(RejectReason.PREDICTED_LOSS, one.predicted.speedup)
                ladder.reject(Rejected(one.fix, why))
        elif try_candidate(ladder, one, fixes, small_later and bool(left or later)) is None:
            later.append(one)
        else:
            left += _rest(ladder, one)
    search.untried = too_long
    return without_settled([*later, *left], ladder.fixes, _unfit(ladder))


def _rest(ladder: Ladder, one: Candidate) -> list[Candidate]:
    """What of it is still untried: its other values if the program broke, or the set without the
    part that does not apply."""
    if one.fix in _unfit(ladder, TrialStatus.BROKE):
        return [replace(one, fix=text, instead=()) for text in one.instead]
    return [one] if one.along and _unfit(ladder) & {*one.whole} else []


def _unfit(ladder: Ladder, state: TrialStatus = TrialStatus.NOT_APPLICABLE) -> set[str]:
    return {one.fix for one in ladder.search.rejected if one.why.state == state}


def _again(ladder: Ladder) -> None:
    """Candidates that lost when the ladder was so much slower that they may help now."""
    while True:
        now = ladder.speed
        slow = [one for one, speed in ladder.beaten.values() if now / speed >= _MOVED]
        one = _next(ladder, without_settled(slow, ladder.fixes, _unfit(ladder)))
        if one is None:
            break
        for other in slow:
            if _new(other, {*ladder.fixes, *_unfit(ladder)}) == one.whole:
                ladder.beaten[other.label] = (other, now)
        fixes = with_candidate(ladder.fixes, one)
        gains = one.predicted is None or one.predicted.high >= 1
        if gains and ladder.pool.affords(fixes, _FEWEST):
            try_candidate(ladder, one, fixes)


def without_settled(
    left: Sequence[Candidate], present: Iterable[str], unfit: Iterable[str] = ()
) -> list[Candidate]:
    """Without fixes already kept or not applicable; each set of fixes once."""
    found: dict[Fixes, Candidate] = {}
    for one in sorted(left, key=lambda one: len(one.along)):
        if new := _new(one, {*present, *unfit}):
            found.setdefault(new, replace(one, fix=new[0], along=new[1:]))
    return list(found.values())


def _new(one: Candidate, settled: Set[str]) -> Fixes:
    return tuple(fix for fix in one.whole if fix not in settled)


def _next(ladder: Ladder, left: Sequence[Candidate]) -> Candidate | None:
    """The next candidate, with its prediction on top of the kept fixes. None: all wait for others.
    Joint candidates come before their parts."""
    present = ladder.fixes
    names = {fix_name(one) for one in present}
    parts = {fix for one in left if one.along for fix in one.whole}
    ready = []
    for one in left:
        if (one.after is None or one.after in names) and (one.along or one.fix not in parts):
            seen = ladder.predict(present, with_candidate(present, one))
            ready.append(replace(one, predicted=seen or one.predicted))
    return next(iter(by_expected_gain(ready, ladder.pool.cost_s(present))), None)
