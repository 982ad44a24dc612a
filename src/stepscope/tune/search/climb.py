"""Tries candidates on top of the fixes kept so far: faster, allowed, and still training the same?
Those that can be switched between two steps are compared inside one process, one after the other;
the others, and what that leaves open, between processes."""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from typing import Final

from msgspec.structs import replace as replace_fields

from stepscope.analyze.run.document import InPlaceContest
from stepscope.measure.contest import (
    EXPECTED,
    ContestResult,
    failed_trial,
    hold_contest,
    not_better,
)
from stepscope.measure.trial.pool import BudgetSpent, Fixes
from stepscope.measure.trial.record import Trial
from stepscope.record.facts import AutoStop
from stepscope.record.fix import FixOutcome, FixState
from stepscope.record.fix_words import reason_words, sentence
from stepscope.record.proof import Proof, ProofState
from stepscope.record.trial import Rejection, RejectReason, StopReason, TrialStatus
from stepscope.stats.paired import MIN_GAIN
from stepscope.stats.verdict import MIN_DIFFERENCE, Comparison, Verdict, verdict_for_interval
from stepscope.tune.search.candidates import (
    FIX_KINDS,
    Candidate,
    Rejected,
    by_expected_gain,
    exclude_each_other,
    fix_name,
    with_candidate,
)
from stepscope.tune.search.ladder import HeldContest, Ladder


def try_candidate(
    ladder: Ladder, one: Candidate, fixes: Fixes, small_later: bool = False
) -> bool | None:
    """Try a candidate's set against what is kept; returns whether it won.

    None: a small gain, to be settled later as requested. Fixes tried as one that did not win are
    not rejected, except those that do not apply: each still gets its own try.
    """
    present, budget = ladder.fixes, ladder.pool.budget
    one = replace(one, predicted=ladder.predict(present, fixes) or one.predicted)
    steps, spent_s = budget.steps, budget.spent
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
    if found.comparison is not None:
        took = budget.steps - steps, budget.spent - spent_s
        ladder.search.contests.append(HeldContest(one.whole, found.comparison, *took, False))
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
    return _join(ladder, one, fixes, found.comparison)


def _join(
    ladder: Ladder, one: Candidate, fixes: Fixes, found: Comparison, in_place: bool = False
) -> bool:
    """Keep a candidate that has won, unless it changes more than allowed or training differs."""
    trials = ladder.pool.trials(fixes)
    refused = _too_far(ladder, one, (did for trial in trials for did in trial.fixes))
    if refused is not None:
        ladder.reject(refused)
        return False
    proof = None
    if ladder.prove is not None:
        proof = ladder.prove(fixes, ladder.kind(fixes, one), trials)
        if proof.state is ProofState.DIFFERS:
            ladder.reject(Rejected(one.fix, Rejection(RejectReason.DIFFERS), found, proof))
            return False
    ladder.keep(one, fixes, found, proof, in_place)
    return True


def _too_far(ladder: Ladder, one: Candidate, outcomes: Iterable[FixOutcome]) -> Rejected | None:
    """Why the set changes more than allowed; only trials show what some fixes change, such as a
    dataset's draws in workers."""
    for did in outcomes:
        kind, own = did.kind, did.name in map(fix_name, one.whole)
        if own and kind and FIX_KINDS.index(kind) > FIX_KINDS.index(ladder.allow):
            where = "; ".join(map(sentence, did.applied))
            return Rejected(one.fix, Rejection(RejectReason.OBSERVED_KIND, where, kind=kind))
    return None


_MOST_BROKEN: Final = 3  # processes that contests in place may cost


def hold_in_place(ladder: Ladder, ready: Sequence[Candidate]) -> list[Candidate]:
    """Compare candidates inside one process, in this order and each on top of those that won before
    it. Returns those still open: they are tried again, inside another process if the trial broke
    off or a winner was refused, else between processes."""
    present = ladder.fixes
    trial = ladder.pool.contests(present, [one.whole for one in ready], ladder.allow)
    left = {one.whole: one for one in ready}
    winners = {tuple(one.candidate): _comparison(one) for one in trial.contests if one.kept}
    together, proof = _verified(ladder, {left[fixes]: found for fixes, found in winners.items()})
    for held in trial.contests:
        one = left.pop(tuple(held.candidate))
        found = _comparison(held)
        told = HeldContest(one.whole, found, held.steps, held.seconds, True)
        ladder.search.contests.append(told)
        ladder.search.untried = [fix for fix in ladder.search.untried if fix != one.fix]
        if held.kept and together:
            del winners[one.whole]
            covers = replace_fields(proof, whole_ladder=True) if proof and winners else proof
            one, fixes = _on_top(ladder, one)
            ladder.keep(one, fixes, found, covers, in_place=True)
        elif held.kept and not _won_in_place(ladder, one, found):
            return [*left.values()]  # the others were compared on top of it
        if not held.kept and not _lost_in_place(ladder, one, held, trial):
            left[one.whole] = one
            ladder.left_open[one.whole] = ladder.fixes
    _broken_off(ladder, trial, left)
    return [*left.values()]


def _comparison(held: InPlaceContest) -> Comparison:
    verdict = verdict_for_interval(held.low, held.high, MIN_GAIN)
    verdict = Verdict.FASTER if held.kept else verdict
    return Comparison(held.ratio, held.low, held.high, MIN_GAIN, verdict)


def _verified(ladder: Ladder, winners: Mapping[Candidate, Comparison]) -> tuple[bool, Proof | None]:
    """Whether several winners are kept by one process that has all of them from its start, and its
    proof; else each has a process of its own."""
    pool, present, allowed = ladder.pool, ladder.fixes, True
    fixes = present
    for one in winners:
        fixes = with_candidate(fixes, one)
    if len(winners) < 2 or not pool.affords(fixes, 1):
        return False, None
    try:
        trial = pool.more(fixes)
    except BudgetSpent:
        _unsettled(ladder, winners)
        raise
    between = pool.compare(present, fixes) if trial.timed else None
    if between is None or between.verdict is Verdict.SLOWER:
        return False, None
    allowed = not any(_too_far(ladder, one, trial.fixes) for one in winners)
    if not allowed or ladder.prove is None:
        return allowed, None
    proof = ladder.prove(fixes, ladder.kind(fixes, *winners), pool.trials(fixes))
    return proof.state is not ProofState.DIFFERS, proof


def _won_in_place(ladder: Ladder, one: Candidate, found: Comparison) -> bool:
    """Whether a winner is kept: a process that has it from its start must run, and show the same
    training and no loss."""
    pool, present = ladder.pool, ladder.fixes
    one, fixes = _on_top(ladder, one)
    try:
        trial = None if pool.trials(fixes) else pool.more(fixes)
    except BudgetSpent:
        _unsettled(ladder, {one: found})
        raise
    if trial is not None and not trial.timed:
        ladder.lost(one, ContestResult(False, failed_trial(trial), found, trial))
        return False
    between = pool.compare(present, fixes)
    if between is not None and between.verdict is Verdict.SLOWER:
        ladder.lost(one, ContestResult(False, not_better(between), between))
        return False
    return _join(ladder, one, fixes, found, in_place=True)


def _on_top(ladder: Ladder, one: Candidate) -> tuple[Candidate, Fixes]:
    """A candidate with its prediction on top of what is kept, and the set with it."""
    fixes = with_candidate(ladder.fixes, one)
    return replace(one, predicted=ladder.predict(ladder.fixes, fixes) or one.predicted), fixes


def _unsettled(ladder: Ladder, winners: Mapping[Candidate, Comparison]) -> None:
    """Record gains that no trial could confirm any more."""
    for one, found in winners.items():
        ladder.reject(Rejected(one.label, Rejection(RejectReason.UNSETTLED), found))


def _lost_in_place(ladder: Ladder, one: Candidate, held: InPlaceContest, trial: Trial) -> bool:
    """Whether a candidate that was not kept is done with; processes may tell more of one that was
    not decided, if a large gain is still possible."""
    ladder.beaten.pop(one.label, None)
    own = [did for did in trial.fixes if did.name in map(fix_name, one.whole)]
    if _idle(ladder, one, own):
        return True
    refused = _too_far(ladder, one, own)
    if refused is not None:
        ladder.reject(refused)
        return True
    expected = one.prior if one.predicted is None else one.predicted.speedup
    if not held.decided and expected >= EXPECTED and held.high >= expected:
        return False
    found = _comparison(held)
    if one.along:  # each part still gets its own try
        ladder.beaten[one.label] = (one, ladder.speed)
    else:
        ladder.lost(one, ContestResult(False, not_better(found), found))
    return True


def _idle(ladder: Ladder, one: Candidate, outcomes: Iterable[FixOutcome]) -> bool:
    """Reject what has nothing to act on here; whether there was any."""
    idle = [did for did in outcomes if did.state is FixState.NOT_APPLICABLE]
    for did in idle:
        text = next(fix for fix in one.whole if fix_name(fix) == did.name)
        status = TrialStatus.NOT_APPLICABLE
        why = Rejection(RejectReason.TRIAL_FAILED, reason_words(did)[0], status=status)
        ladder.reject(Rejected(text, why))
    return bool(idle)


def _broken_off(ladder: Ladder, trial: Trial, left: dict[Fixes, Candidate]) -> None:
    """What a trial tells of candidates whose contests have no result."""
    last = left.get(trial.trying)
    if not trial.ok and last is not None:
        ladder.ended_early += 1
        ladder.in_place = ladder.ended_early < _MOST_BROKEN
        if trial.status in (TrialStatus.BROKE, TrialStatus.OUT_OF_MEMORY):
            del left[last.whole]
            if not last.along:  # its parts are still to be tried
                ladder.lost(last, ContestResult(False, failed_trial(trial), failed=trial))
        else:  # perhaps by itself: a process of its own tells
            ladder.left_open[last.whole] = ladder.fixes
        return
    ladder.in_place = trial.ok and trial.stopped in (None, AutoStop.DONE, AutoStop.OUT_OF_TIME)
    again = trial.stopped is AutoStop.OUT_OF_TIME and bool(trial.contests)
    for one in [*left.values()]:
        own = [did for did in trial.fixes if did.name in map(fix_name, one.whole)]
        if one is not last and _idle(ladder, one, own):
            del left[one.whole]
        elif own or not again:
            ladder.left_open[one.whole] = ladder.fixes


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
        ready = _next(ladder, left)
        if not ready:
            break
        one = ready[0]
        waiting = (other.fix for other in (*left, *later) if not other.along)
        search.untried = [*dict.fromkeys((*too_long, *waiting))]
        under_way = {other.whole for other in ready}
        left = [other for other in left if other.whole not in under_way]
        fixes = with_candidate(ladder.fixes, one)
        if _in_place(ladder, one) and not _predicted_loss(one):
            left += hold_in_place(ladder, ready)
            left += [other for each in ready for other in _rest(ladder, each)]
        elif not ladder.pool.affords(fixes, _FEWEST):
            too_long = [*too_long, *([] if one.along else [one.fix])]
            search.stopped = StopReason.BUDGET
        elif one.predicted is not None and _predicted_loss(one):
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
    unfit = _unfit(ladder) & {*one.whole}
    several = not one.switchable or len(one.whole) - len(unfit) > 1  # one alone is tried as such
    return [one] if one.along and unfit and several else []


def _unfit(ladder: Ladder, state: TrialStatus = TrialStatus.NOT_APPLICABLE) -> set[str]:
    return {one.fix for one in ladder.search.rejected if one.why.state == state}


def _again(ladder: Ladder) -> None:
    """Candidates that lost when the ladder was so much slower that they may help now."""
    while True:
        now = ladder.speed
        slow = [one for one, speed in ladder.beaten.values() if now / speed >= _MOVED]
        ready = _next(ladder, without_settled(slow, ladder.fixes, _unfit(ladder)))
        if not ready:
            break
        one, under_way = ready[0], {other.whole for other in ready}
        for other in slow:
            if _new(other, {*ladder.fixes, *_unfit(ladder)}) in under_way:
                ladder.beaten[other.label] = (other, now)
        fixes = with_candidate(ladder.fixes, one)
        if _predicted_loss(one):
            continue
        if _in_place(ladder, one):
            while ready:
                left = without_settled(hold_in_place(ladder, ready), ladder.fixes, _unfit(ladder))
                ready = [other for other in left if _in_place(ladder, other)]
        elif ladder.pool.affords(fixes, _FEWEST):
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


def _next(ladder: Ladder, left: Sequence[Candidate]) -> list[Candidate]:
    """The next candidate, with its prediction on top of the kept fixes, and those to be compared in
    the same process, in order. Empty: all wait for others. Joint candidates come before their
    parts."""
    present = ladder.fixes
    names = {fix_name(one) for one in present}
    held = {one.whole for one in left if _in_place(ladder, one)}
    parts = {fix for one in left if one.along for fix in one.whole}
    ready = []
    for one in left:
        part = one.fix in parts and not one.along and one.whole not in held
        if (one.after is None or one.after in names) and not part:
            seen = ladder.predict(present, with_candidate(present, one))
            ready.append(replace(one, predicted=seen or one.predicted))
    clear_s = ladder.pool.clear_s(present) if held else None
    ready = by_expected_gain(ready, ladder.pool.cost_s(present), clear_s)
    if not ready or ready[0].whole not in held:
        return ready[:1]
    together = [one for one in ready if one.whole in held and not _predicted_loss(one)]
    return _joint_first(together) or ready[:1]


def _joint_first(found: Sequence[Candidate]) -> list[Candidate]:
    """The same, with joint candidates before their parts."""
    order: dict[Fixes, Candidate] = {}
    for one in found:
        joint = [other for other in found if other.along and one.fix in other.whole]
        order |= {each.whole: each for each in ((*joint, one) if not one.along else (one,))}
    return [*order.values()]


def _in_place(ladder: Ladder, one: Candidate) -> bool:
    """Whether a candidate is to be compared inside a process of what is kept."""
    present = ladder.fixes
    return (
        ladder.in_place
        and one.switchable
        and ladder.left_open.get(one.whole) != present
        and not any(exclude_each_other(new, kept) for new in one.whole for kept in present)
        and ladder.pool.holds_contests(present)
    )


def _predicted_loss(one: Candidate) -> bool:
    return one.predicted is not None and one.predicted.high < 1
