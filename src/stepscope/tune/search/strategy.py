"""The whole search: baseline, climb, pruning of rungs that no longer help, other values. Stopped
early, it keeps the best so far."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from stepscope.fixes.registry import fix_named
from stepscope.measure.trial.pool import BudgetSpent, Fixes, TrialPool
from stepscope.record.errors import UsageError
from stepscope.record.proof import ProofState
from stepscope.record.trial import Rejection, RejectReason, StopReason
from stepscope.stats.verdict import Comparison
from stepscope.tune.search.candidates import Candidate, Rejected, fix_name
from stepscope.tune.search.climb import climb, try_candidate
from stepscope.tune.search.ladder import Ladder, SearchResult

_PROCESSES: Final = 3
_LARGE: Final = 1.5
_AS_GOOD: Final = 0.985  # of the speed, over several processes: too small a loss to claim
_CLEARLY_LESS: Final = 0.96  # of one process


def _prune(ladder: Ladder) -> None:
    """Try removing every rung but the last two, which were measured with nearly all others;
    smallest gain first. Then each part of fixes tried only as one. A fix that another needs
    stays."""
    for rung in sorted(ladder.search.rungs[:-2], key=lambda one: one.comparison.ratio):
        if rung.in_place and ladder.speed / rung.cumulative.ratio < _LARGE:
            continue  # processes tell less, and little has changed since
        # No trial is spent if a loss is predicted or, without a prediction, the gain was large.
        one = rung.candidate
        loss = None if one.predicted is None else _predicted_loss(ladder, one.whole)
        if not (rung.comparison.ratio >= _LARGE if loss is None else loss):
            _take_out(ladder, one)
    for rung in [*ladder.search.rungs]:
        for part in rung.candidate.whole if rung.candidate.along else ():
            if part in ladder.fixes and not _predicted_loss(ladder, (part,)):
                _take_out(ladder, replace(rung.candidate, fix=part, along=()))


def _take_out(ladder: Ladder, one: Candidate) -> None:
    """Remove a fix if the set is as good without it and training still does the same."""
    without = _without(ladder.fixes, one.whole)
    # Others may not apply without it, as persistent without workers.
    needed = any(fix_named(fix_name(other)).requires == one.name for other in without)
    if not without or needed:
        return
    found = _not_missed(ladder.pool, ladder.fixes, without)
    if found is None:
        return
    proof = None
    if ladder.prove is not None:
        proof = ladder.prove(without, ladder.kind(without), ladder.pool.trials(without))
        if proof.state is ProofState.DIFFERS:
            return
    ladder.withdraw(one, Rejected(one.fix, Rejection(RejectReason.DROPPED), found), proof)


def _without(fixes: Fixes, gone: Fixes) -> Fixes:
    return tuple(one for one in fixes if one not in gone)


def _predicted_loss(ladder: Ladder, gone: Fixes) -> bool | None:
    """Whether a loss is predicted without it; None without a prediction."""
    seen = ladder.predict(ladder.fixes, _without(ladder.fixes, gone))
    return None if seen is None else seen.high < 1


def _not_missed(pool: TrialPool, present: Fixes, without: Fixes) -> Comparison | None:
    """The set without a rung against the current one if it is as good, else None. One slower
    process keeps the rung: keeping it needs no proof."""
    while True:
        known = pool.trials(without)
        found = pool.compare(present, without) if known else None
        if found is not None:
            if found.ratio < _CLEARLY_LESS:
                return None
            if min(len(known), len(pool.trials(present))) >= _PROCESSES:
                return found if found.ratio >= _AS_GOOD else None
        turn = present if known and len(pool.trials(present)) < _PROCESSES else without
        if turn is without and len(known) >= _PROCESSES:
            turn = present
        trial = pool.more(turn)
        if not trial.timed:
            return None


_OtherValues = Callable[[str, str], Sequence[str]]
"""Other values to try for a fix, by its name and value."""
_MOST: Final = 4  # most values accepted one after another
_ENOUGH: Final = 5  # trials that must be affordable, since gains are small here


def refine(
    ladder: Ladder, others: _OtherValues, extra_s: Callable[[str], float] = lambda fix: 0.0
) -> None:
    """Change values only for faster ones. Numbers continue in the direction that helped: once a
    larger one was better, smaller ones are not tried."""
    each = [(rung.candidate, fix) for rung in ladder.search.rungs for fix in rung.candidate.whole]
    for candidate, fix in each:
        one = replace(candidate, fix=fix, along=())
        for _ in range(_MOST):
            better = _better(ladder, one, others, extra_s)
            if better is None:
                break
            one = better


def _better(
    ladder: Ladder, one: Candidate, others: _OtherValues, extra_s: Callable[[str], float]
) -> Candidate | None:
    """The first other value that wins, or None."""
    name, _, value = one.fix.partition("=")
    tried = {rejected.fix for rejected in ladder.search.rejected}
    for other in others(name, value):
        text = f"{name}={other}"
        if text in tried or one.fix not in ladder.fixes:
            continue
        fixes = tuple(text if fix == one.fix else fix for fix in ladder.fixes)
        seen = ladder.predict(ladder.fixes, fixes)
        if (seen is not None and seen.high < 1) or not ladder.pool.affords(fixes, _ENOUGH):
            continue
        candidate = replace(one, fix=text, predicted=seen, extra_s=extra_s(text))
        if try_candidate(ladder, candidate, fixes):
            return candidate
    return None


BASELINE_TRIALS = 2  # processes at first; contests run more if gains are small


def run_search(
    ladder: Ladder,
    found: Sequence[Candidate],
    left_out: Sequence[Rejected] = (),
    others: _OtherValues = lambda name, value: (),
    extra_s: Callable[[str], float] = lambda fix: 0.0,
) -> SearchResult:
    """Raises UsageError if the baseline fails."""
    result = ladder.search
    for one in left_out:
        ladder.reject(one)
    result.untried = [*dict.fromkeys(one.fix for one in found)]
    try:
        while len(ladder.pool.trials(())) < BASELINE_TRIALS:
            ladder.pool.budget.want(ladder.pool.cost_s(()))
            trial = ladder.pool.fresh(())
            if not trial.timed:
                raise UsageError(f"baseline failed: {trial.failure}")
        if ladder.pool.compare((), ()) is None:
            objective = ladder.pool.objective
            raise UsageError(f"--objective {objective}: not measured here; use throughput")
        ladder.pool.begun_s = ladder.pool.budget.spent
        climb(ladder, found)
        _prune(ladder)
        refine(ladder, others, extra_s)
    except BudgetSpent:
        result.stopped = StopReason.BUDGET
        open_ = {one.fix for one in result.rejected if one.why.reason == RejectReason.UNSETTLED}
        result.untried = [fix for fix in result.untried if fix not in open_]
    except KeyboardInterrupt:
        result.stopped = StopReason.INTERRUPTED
    result.baseline = tuple(ladder.pool.trials(()))
    result.trials = ladder.pool.budget.asked
    result.seconds = ladder.pool.budget.spent
    return result
