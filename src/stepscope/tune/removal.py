"""Rungs that the later ones have made useless are taken out again."""

from typing import Final

from stepscope.stats.verdict import Comparison
from stepscope.tune.lab import Fixes, Lab
from stepscope.tune.rungs import Rung
from stepscope.tune.standing import Standing

_PROCESSES: Final = 3
_LARGE: Final = 1.5
_AS_GOOD: Final = 0.985  # of the speed, over several processes: no loss that could be claimed
_CLEARLY_LESS: Final = 0.96  # of one process


def prune(standing: Standing) -> None:
    """Every rung but the last two, which were measured beside nearly all others; the one with the
    smallest gain first. What needs a fix that goes is not parted from it."""
    for rung in sorted(standing.search.rungs[:-2], key=lambda one: one.comparison.ratio):
        if _needed(rung, standing.fixes):
            continue
        without = tuple(one for one in standing.fixes if one not in rung.candidate.whole)
        if _surely_of_use(standing, rung, without):
            continue
        found = _not_missed(standing.lab, standing.fixes, without)
        if found is None:
            continue
        proof = None
        if standing.prove is not None:
            trials = standing.lab.trials(without)
            proof = standing.prove(without, standing.kind(without), trials)
            if proof.state == "differs":
                continue
        standing.drop(rung, found, proof)


def _needed(rung: Rung, fixes: Fixes) -> bool:
    """Kept workers need workers."""
    return rung.candidate.name == "workers" and "persistent" in fixes


def _surely_of_use(standing: Standing, rung: Rung, without: Fixes) -> bool:
    """No trial is spent where a loss is predicted or, without a prediction, the gain was large."""
    seen = standing.see(standing.fixes, without) if rung.candidate.predicted is not None else None
    return rung.comparison.ratio >= _LARGE if seen is None else seen.high < 1


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
