"""A candidate's chance: is it better, is it allowed, does training still do the same?"""

from dataclasses import replace

from stepscope.stats.verdict import LEAST
from stepscope.tune.budget import BudgetSpent
from stepscope.tune.candidates import KINDS, Candidate, name_of
from stepscope.tune.contest import Contest, contest
from stepscope.tune.lab import Fixes
from stepscope.tune.rungs import UNSETTLED, Rejected
from stepscope.tune.standing import Standing


def attempt(
    standing: Standing, one: Candidate, fixes: Fixes, small_later: bool = False
) -> bool | None:
    """The set with a candidate against what is kept; whether it took its place.

    None: it looks like a small gain and is to be settled later, which was asked for. Of fixes that
    were tried as one and did not win nothing is said, but of one that has nothing to do here: each
    has its own chance.
    """
    present = standing.fixes
    one = replace(one, predicted=standing.see(present, fixes) or one.predicted)
    try:
        found = contest(standing.lab, present, fixes, one.predicted, small_later)
    except BudgetSpent:
        _left_open(standing, one, fixes)
        raise
    if found.failed is not None and found.failed.status == "not_applicable":
        idle = _left_idle(found.failed.blame, one, present, fixes)
        if idle is not None:
            without = tuple(other for other in fixes if other != idle)
            return attempt(standing, one, without, small_later)
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
        if proof.state == "differs":
            standing.reject(Rejected(one.fix, proof.words, "differs", found.comparison, proof))
            return False
    standing.keep(one, fixes, found.comparison, proof)
    return True


def _lost_together(standing: Standing, one: Candidate, found: Contest) -> None:
    failed = found.failed
    if failed is None:
        standing.beaten[one.label] = (one, standing.speed)
    elif failed.status == "not_applicable" and failed.blame in one.whole:
        standing.reject(Rejected(failed.blame, str(found.why), failed.status))


def _left_open(standing: Standing, one: Candidate, fixes: Fixes) -> None:
    """Say what it looked like when the budget ended, where that was a gain."""
    made = len(standing.lab.trials(fixes))
    found = standing.lab.compare(standing.fixes, fixes) if made else None
    if found is not None and found.ratio >= 1 + LEAST:
        words = f"{found.ratio:.2f}× in {made} trial{'s' * (made > 1)}: the budget ended there"
        standing.reject(Rejected(one.label, words, UNSETTLED, found))


def _left_idle(blame: str | None, one: Candidate, present: Fixes, fixes: Fixes) -> str | None:
    """A fix that is kept and has nothing to do beside the candidate, which may replace it."""
    for other in present:
        name = name_of(other)
        if blame is not None and name == name_of(blame) != one.name and other in fixes:
            return other
    return None


def _too_far(standing: Standing, one: Candidate, fixes: Fixes) -> Rejected | None:
    """Only the program shows what some fixes change, such as the draws of a dataset in workers."""
    for trial in standing.lab.trials(fixes):
        for did in trial.fixes:
            kind = did.get("kind")
            if did["name"] not in map(name_of, one.whole) or kind is None:
                continue
            if KINDS.index(kind) > KINDS.index(standing.allow):
                where = "; ".join(did.get("where") or ())
                return Rejected(one.fix, f"needs --allow {kind}: {where}", "not_allowed")
    return None
