"""Rungs that the later ones have made useless are taken out again."""

from dataclasses import replace
from typing import Final

from stepscope.stats.verdict import Comparison
from stepscope.tune.candidates import Candidate
from stepscope.tune.lab import Fixes, Lab
from stepscope.tune.rungs import Rung
from stepscope.tune.standing import Standing

_PROCESSES: Final = 3
_LARGE: Final = 1.5
_AS_GOOD: Final = 0.985  # of the speed, over several processes: no loss that could be claimed
_CLEARLY_LESS: Final = 0.96  # of one process


def prune(standing: Standing) -> None:
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


def _take_out(standing: Standing, one: Candidate) -> None:
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
        if proof.state == "differs":
            return
    standing.drop(one, found, proof)


def _without(fixes: Fixes, gone: Fixes) -> Fixes:
    return tuple(one for one in fixes if one not in gone)


def _needed(one: Candidate, without: Fixes) -> bool:
    """Kept workers need workers, and so does memory that they use again."""
    return one.name == "workers" and not {"persistent", "recycle"}.isdisjoint(without)


def _surely_of_use(standing: Standing, rung: Rung) -> bool:
    """No trial is spent where a loss is predicted or, without a prediction, the gain was large."""
    one = rung.candidate
    loss = None if one.predicted is None else _predicted_loss(standing, one.whole)
    return rung.comparison.ratio >= _LARGE if loss is None else loss


def _predicted_loss(standing: Standing, gone: Fixes) -> bool | None:
    """None where nothing is predicted."""
    seen = standing.see(standing.fixes, _without(standing.fixes, gone))
    return None if seen is None else seen.high < 1


def _not_missed(lab: Lab, present: Fixes, without: Fixes) -> Comparison | None:
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
        if not (trial.ok and trial.step_ms):
            return None
