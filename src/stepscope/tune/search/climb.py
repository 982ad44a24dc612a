"""Candidates tried one by one beside the fixes kept so far: faster, allowed, and still training the
same?
"""

from collections.abc import Iterable, Sequence, Set
from dataclasses import replace
from typing import Final

from stepscope.measure.contest import ContestResult, hold_contest
from stepscope.measure.trial.pool import BudgetSpent, Fixes
from stepscope.record.fix_words import sentence
from stepscope.record.proof import ProofState
from stepscope.record.trial import Rejection, RejectReason, StopReason, TrialStatus
from stepscope.stats.verdict import MIN_DIFFERENCE
from stepscope.tune.search.candidates import (
    FIX_KINDS,
    Candidate,
    by_expected_gain,
    fix_name,
    with_candidate,
)
from stepscope.tune.search.ladder import Ladder, Rejected


def try_candidate(
    standing: Ladder, one: Candidate, fixes: Fixes, small_later: bool = False
) -> bool | None:
    """The set with a candidate against what is kept; whether it took its place.

    None: it looks like a small gain and is to be settled later, which was asked for. Of fixes that
    were tried as one and did not win nothing is said, but of one that has nothing to do here: each
    has its own chance.
    """
    present = standing.fixes
    one = replace(one, predicted=standing.see(present, fixes) or one.predicted)
    try:
        found = hold_contest(standing.lab, present, fixes, one.predicted, small_later)
    except BudgetSpent:
        _left_open(standing, one, fixes)
        raise
    if found.failed is not None and found.failed.status is TrialStatus.NOT_APPLICABLE:
        idle = _left_idle(found.failed.fix, one, present, fixes)
        if idle is not None:
            without = tuple(other for other in fixes if other != idle)
            return try_candidate(standing, one, without, small_later)
    if one.along and not found.won:
        _lost_together(standing, one, found)
        return False
    if found.put_off:
        return None
    standing.beaten.pop(one.label, None)
    if not found.won:
        standing.lost(one, found)
        return False
    assert found.comparison is not None
    refused = _too_far(standing, one, fixes)
    if refused is not None:
        standing.reject(refused)
        return False
    proof = None
    if standing.prove is not None:
        proof = standing.prove(fixes, standing.kind(fixes, one), standing.lab.trials(fixes))
        if proof.state is ProofState.DIFFERS:
            why = Rejection(RejectReason.DIFFERS)
            standing.reject(Rejected(one.fix, why, found.comparison, proof))
            return False
    standing.keep(one, fixes, found.comparison, proof)
    return True


def _lost_together(standing: Ladder, one: Candidate, found: ContestResult) -> None:
    failed = found.failed
    if failed is None:
        standing.beaten[one.label] = (one, standing.speed)
    elif failed.status is TrialStatus.NOT_APPLICABLE and failed.fix in one.whole:
        assert found.why is not None
        standing.reject(Rejected(str(failed.fix), found.why))


def _left_open(standing: Ladder, one: Candidate, fixes: Fixes) -> None:
    """Say what it looked like when the budget ended, where that was a gain."""
    made = len(standing.lab.trials(fixes))
    found = standing.lab.compare(standing.fixes, fixes) if made else None
    if found is not None and found.ratio >= 1 + MIN_DIFFERENCE:
        why = Rejection(RejectReason.UNSETTLED, trials=made)
        standing.reject(Rejected(one.label, why, found))


def _left_idle(blame: str | None, one: Candidate, present: Fixes, fixes: Fixes) -> str | None:
    """A fix that is kept and has nothing to do beside the candidate, which may replace it."""
    for other in present:
        name = fix_name(other)
        if blame is not None and name == fix_name(blame) != one.name and other in fixes:
            return other
    return None


def _too_far(standing: Ladder, one: Candidate, fixes: Fixes) -> Rejected | None:
    """Only the program shows what some fixes change, such as the draws of a dataset in workers."""
    for trial in standing.lab.trials(fixes):
        for did in trial.fixes:
            kind = did.kind
            if did.name not in map(fix_name, one.whole) or kind is None:
                continue
            if FIX_KINDS.index(kind) > FIX_KINDS.index(standing.allow):
                where = "; ".join(map(sentence, did.applied))
                return Rejected(one.fix, Rejection(RejectReason.OBSERVED_KIND, where, kind=kind))
    return None


_FEWEST: Final = 2  # trials in which a candidate can win
_MOVED: Final = 1.15
"""A gain after which what did not help before may: something else holds the step up now."""


def climb(standing: Ladder, found: Sequence[Candidate]) -> None:
    """Try candidates, the most promising beside what is kept first; then those whose gain looked
    small, which takes many trials to settle and may be larger once others are kept; then once
    more those that were no better, where the ladder has grown since."""
    small = _each(standing, found, small_later=True)
    for one in _each(standing, small, small_later=False):
        standing.reject(Rejected(one.fix, Rejection(RejectReason.REQUIRES, one.after)))
    _again(standing)


def _each(standing: Ladder, found: Sequence[Candidate], small_later: bool) -> list[Candidate]:
    """Those that were put off, and those that wait for a fix that is not kept."""
    left = list(found)
    later: list[Candidate] = []
    search = standing.search
    too_long = search.untried if search.stopped == StopReason.BUDGET else []
    while left:
        left = without_settled(left, standing.fixes, _unfit(standing))
        one = _next(standing, left)
        if one is None:
            break
        waiting = (other.fix for other in (*left, *later) if not other.along)
        search.untried = [*dict.fromkeys((*too_long, *waiting))]
        left = [other for other in left if other.whole != one.whole]
        fixes = with_candidate(standing.fixes, one)
        if not standing.lab.affords(fixes, _FEWEST):
            too_long = [*too_long, *([] if one.along else [one.fix])]
            search.stopped = StopReason.BUDGET
        elif one.predicted is not None and one.predicted.high < 1:
            _leave(standing, one)
        elif try_candidate(standing, one, fixes, small_later and bool(left or later)) is None:
            later.append(one)
        else:
            left += _rest(standing, one)
    search.untried = too_long
    return without_settled([*later, *left], standing.fixes, _unfit(standing))


def _rest(standing: Ladder, one: Candidate) -> list[Candidate]:
    """What was not tried of it: its other values where the program broke, the set without the part
    that has nothing to do."""
    if one.fix in _ended_as(standing, TrialStatus.BROKE):
        return [replace(one, fix=text, instead=()) for text in one.instead]
    return [one] if one.along and _unfit(standing) & {*one.whole} else []


def _unfit(standing: Ladder) -> set[str]:
    return _ended_as(standing, TrialStatus.NOT_APPLICABLE)


def _ended_as(standing: Ladder, state: TrialStatus) -> set[str]:
    return {one.fix for one in standing.search.rejected if one.state == state}


def _again(standing: Ladder) -> None:
    """Whatever lost beside a ladder that was so much slower that it may matter now."""
    while True:
        now = standing.speed
        slow = [one for one, speed in standing.beaten.values() if now / speed >= _MOVED]
        one = _next(standing, without_settled(slow, standing.fixes, _unfit(standing)))
        if one is None:
            break
        for other in slow:
            if _new(other, {*standing.fixes, *_unfit(standing)}) == one.whole:
                standing.beaten[other.label] = (other, now)
        fixes = with_candidate(standing.fixes, one)
        gains = one.predicted is None or one.predicted.high >= 1
        if gains and standing.lab.affords(fixes, _FEWEST):
            try_candidate(standing, one, fixes)


def without_settled(
    left: Sequence[Candidate], present: Iterable[str], unfit: Iterable[str] = ()
) -> list[Candidate]:
    """Without what is kept already and what has nothing to do here; each set of fixes once."""
    found: dict[Fixes, Candidate] = {}
    for one in sorted(left, key=lambda one: len(one.along)):
        if new := _new(one, {*present, *unfit}):
            found.setdefault(new, replace(one, fix=new[0], along=new[1:]))
    return list(found.values())


def _new(one: Candidate, settled: Set[str]) -> Fixes:
    return tuple(fix for fix in one.whole if fix not in settled)


def _next(standing: Ladder, left: Sequence[Candidate]) -> Candidate | None:
    """With what is predicted of it beside the fixes that are kept. None: all wait for others.

    What is to be tried together comes before its parts."""
    present = standing.fixes
    names = {fix_name(one) for one in present}
    parts = {fix for one in left if one.along for fix in one.whole}
    ready = [
        replace(one, predicted=standing.see(present, with_candidate(present, one)) or one.predicted)
        for one in left
        if (one.after is None or one.after in names) and (one.along or one.fix not in parts)
    ]
    return next(iter(by_expected_gain(ready, standing.lab.cost_s(present))), None)


def _leave(standing: Ladder, one: Candidate) -> None:
    assert one.predicted is not None
    if one.along:
        return  # its parts speak for themselves
    standing.beaten[one.label] = (one, standing.speed)
    why = Rejection(RejectReason.PREDICTED_LOSS, one.predicted.speedup)
    standing.reject(Rejected(one.fix, why))
