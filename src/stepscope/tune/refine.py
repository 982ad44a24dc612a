"""Other values of the fixes that helped."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from stepscope.tune.attempt import attempt
from stepscope.tune.candidates import Candidate
from stepscope.tune.standing import Standing

Others = Callable[[str, str], Sequence[str]]
"""What to try in place of a fix's value, by name and value: `values.other_values`."""
_MOST: Final = 4  # values that are accepted one after another
_ENOUGH: Final = 5  # trials that must be affordable: gains are small here


def refine(
    standing: Standing, others: Others, extra_s: Callable[[str], float] = lambda fix: 0.0
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
    standing: Standing, one: Candidate, others: Others, extra_s: Callable[[str], float]
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
        if attempt(standing, candidate, fixes):
            return candidate
    return None
