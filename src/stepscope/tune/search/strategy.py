"""The whole search: baseline, climb, pruning of rungs that no longer help, other values. Stopped
early, it keeps the best so far.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from stepscope.fixes.registry import fix_named
from stepscope.measure.trial.pool import BudgetSpent, Fixes, TrialPool
from stepscope.record.errors import UsageError
from stepscope.record.proof import ProofState
from stepscope.record.trial import RejectReason, StopReason
from stepscope.stats.verdict import Comparison
from stepscope.tune.search.candidates import Candidate, NotTried, fix_name
from stepscope.tune.search.climb import climb, try_candidate
from stepscope.tune.search.ladder import Ladder, Rejected, Rung, SearchResult

_PROCESSES: Final = 3
_LARGE: Final = 1.5
_AS_GOOD: Final = 0.985  # of the speed, over several processes: no loss that could be claimed
_CLEARLY_LESS: Final = 0.96  # of one process


def _prune(standing: Ladder) -> None:
    """Every rung but the last two, which were measured beside nearly all others; the one with the
    smallest gain first. Then each part of what was tried as one, and never apart. What needs a fix
    that goes is not parted from it."""
    for rung in sorted(standing.search.rungs[:-2], key=lambda one: one.comparison.ratio):
        if not _surely_of_use(standing, rung):
            _take_out(standing, rung.candidate)
    for rung in [*standing.search.rungs]:
        for part in rung.candidate.whole if rung.candidate.along else ():
            if part in standing.fixes and not _predicted_loss(standing, (part,)):
                _take_out(standing, replace(rung.candidate, fix=part, along=()))


def _take_out(standing: Ladder, one: Candidate) -> None:
    """Where all is as good without it, and training still does the same."""
    without = _without(standing.fixes, one.whole)
    if not without or _needed(one, without):
        return
    found = _not_missed(standing.lab, standing.fixes, without)
    if found is None:
        return
    proof = None
    if standing.prove is not None:
        trials = standing.lab.trials(without)
        proof = standing.prove(without, standing.kind(without), trials)
        if proof.state is ProofState.DIFFERS:
            return
    standing.drop(one, found, proof)


def _without(fixes: Fixes, gone: Fixes) -> Fixes:
    return tuple(one for one in fixes if one not in gone)


def _needed(one: Candidate, without: Fixes) -> bool:
    """Whether one of the others has nothing to do without it, as kept workers without workers."""
    return any(fix_named(fix_name(other)).requires == one.name for other in without)


def _surely_of_use(standing: Ladder, rung: Rung) -> bool:
    """No trial is spent where a loss is predicted or, without a prediction, the gain was large."""
    one = rung.candidate
    loss = None if one.predicted is None else _predicted_loss(standing, one.whole)
    return rung.comparison.ratio >= _LARGE if loss is None else loss


def _predicted_loss(standing: Ladder, gone: Fixes) -> bool | None:
    """None where nothing is predicted."""
    seen = standing.see(standing.fixes, _without(standing.fixes, gone))
    return None if seen is None else seen.high < 1


def _not_missed(lab: TrialPool, present: Fixes, without: Fixes) -> Comparison | None:
    """The set without a rung against the present one, where it is as good; None where it is not.

    One process that is slower keeps the rung: that needs no proof, it is how things stand.
    """
    while True:
        known = lab.trials(without)
        found = lab.compare(present, without) if known else None
        if found is not None:
            if found.ratio < _CLEARLY_LESS:
                return None
            if min(len(known), len(lab.trials(present))) >= _PROCESSES:
                return found if found.ratio >= _AS_GOOD else None
        turn = present if known and len(lab.trials(present)) < _PROCESSES else without
        if turn is without and len(known) >= _PROCESSES:
            turn = present
        trial = lab.more(turn)
        if not trial.timed:
            return None


_OtherValues = Callable[[str, str], Sequence[str]]
"""What to try in place of a fix's value, by name and value: `values.other_values`."""
_MOST: Final = 4  # values that are accepted one after another
_ENOUGH: Final = 5  # trials that must be affordable: gains are small here


def refine(
    standing: Ladder, others: _OtherValues, extra_s: Callable[[str], float] = lambda fix: 0.0
) -> None:
    """A value is changed only for one that is faster. Numbers go on in the direction that helped:
    once a larger one was better, smaller ones are not asked for."""
    each = [(rung.candidate, fix) for rung in standing.search.rungs for fix in rung.candidate.whole]
    for candidate, fix in each:
        one = replace(candidate, fix=fix, along=())
        for _ in range(_MOST):
            better = _better(standing, one, others, extra_s)
            if better is None:
                break
            one = better


def _better(
    standing: Ladder, one: Candidate, others: _OtherValues, extra_s: Callable[[str], float]
) -> Candidate | None:
    """The first other value that takes its place; None where none does."""
    name, _, value = one.fix.partition("=")
    tried = {rejected.fix for rejected in standing.search.rejected}
    for other in others(name, value):
        text = f"{name}={other}"
        if text in tried or one.fix not in standing.fixes:
            continue
        fixes = tuple(text if fix == one.fix else fix for fix in standing.fixes)
        seen = standing.see(standing.fixes, fixes)
        if (seen is not None and seen.high < 1) or not standing.lab.affords(fixes, _ENOUGH):
            continue
        candidate = replace(one, fix=text, predicted=seen, extra_s=extra_s(text))
        if try_candidate(standing, candidate, fixes):
            return candidate
    return None


BASELINE_TRIALS = 2
"""Processes to begin with; contests ask for more where gains are small."""


def run_search(
    standing: Ladder,
    found: Sequence[Candidate],
    left_out: Sequence[NotTried] = (),
    others: _OtherValues = lambda name, value: (),
    extra_s: Callable[[str], float] = lambda fix: 0.0,
) -> SearchResult:
    """Raises UsageError where the baseline fails."""
    result = standing.search
    for one in left_out:
        standing.reject(Rejected(one.fix, one.why))
    result.untried = [*dict.fromkeys(one.fix for one in found)]
    try:
        _baseline(standing.lab)
        standing.lab.begun_s = standing.lab.budget.spent
        climb(standing, found)
        _prune(standing)
        refine(standing, others, extra_s)
    except BudgetSpent:
        result.stopped = StopReason.BUDGET
        open_ = {one.fix for one in result.rejected if one.why.reason == RejectReason.UNSETTLED}
        result.untried = [fix for fix in result.untried if fix not in open_]
    except KeyboardInterrupt:
        result.stopped = StopReason.INTERRUPTED
    result.baseline = tuple(standing.lab.trials(()))
    result.trials = standing.lab.budget.asked
    result.seconds = standing.lab.budget.spent
    return result


def _baseline(lab: TrialPool) -> None:
    while len(lab.trials(())) < BASELINE_TRIALS:
        trial = lab.fresh(())
        if not trial.timed:
            raise UsageError(f"baseline failed: {trial.failure}")
    if lab.compare((), ()) is None:
        raise UsageError(f"--objective {lab.objective}: not measured here; use throughput")
