"""Fixes added one by one while they help."""

from collections.abc import Iterable, Sequence, Set
from dataclasses import replace
from typing import Final

from stepscope.tune.attempt import attempt
from stepscope.tune.budget import BUDGET
from stepscope.tune.candidates import Candidate, beside, name_of, ordered
from stepscope.tune.lab import Fixes
from stepscope.tune.rungs import Rejected
from stepscope.tune.standing import Standing

_FEWEST: Final = 2  # trials in which a candidate can win
_MOVED: Final = 1.15
"""A gain after which what did not help before may: something else holds the step up now."""


def climb(standing: Standing, found: Sequence[Candidate]) -> None:
    """Try candidates, the most promising beside what is kept first; then those whose gain looked
    small, which takes many trials to settle and may be larger once others are kept; then once
    more those that were no better, where the ladder has grown since."""
    small = _each(standing, found, small_later=True)
    for one in _each(standing, small, small_later=False):
        words = f"nothing to do without {one.after}"
        standing.reject(Rejected(one.fix, words, "left_out"))
    _again(standing)


def _each(standing: Standing, found: Sequence[Candidate], small_later: bool) -> list[Candidate]:
    """Those that were put off, and those that wait for a fix that is not kept."""
    left = list(found)
    later: list[Candidate] = []
    search = standing.search
    too_long = search.untried if search.stopped == BUDGET else []
    while left:
        left = trimmed(left, standing.fixes, _unfit(standing))
        one = _next(standing, left)
        if one is None:
            break
        waiting = (other.fix for other in (*left, *later) if not other.along)
        search.untried = [*dict.fromkeys((*too_long, *waiting))]
        left = [other for other in left if other.whole != one.whole]
        fixes = beside(standing.fixes, one)
        if not standing.lab.affords(fixes, _FEWEST):
            too_long = [*too_long, *([] if one.along else [one.fix])]
            search.stopped = BUDGET
        elif one.predicted is not None and one.predicted.high < 1:
            _leave(standing, one)
        elif attempt(standing, one, fixes, small_later and bool(left or later)) is None:
            later.append(one)
        else:
            left += _rest(standing, one)
    search.untried = too_long
    return trimmed([*later, *left], standing.fixes, _unfit(standing))


def _rest(standing: Standing, one: Candidate) -> list[Candidate]:
    """What was not tried of it: its other values where the program broke, the set without the part
    that has nothing to do."""
    if one.fix in _ended_as(standing, "broke"):
        return [replace(one, fix=text, instead=()) for text in one.instead]
    return [one] if one.along and _unfit(standing) & {*one.whole} else []


def _unfit(standing: Standing) -> set[str]:
    return _ended_as(standing, "not_applicable")


def _ended_as(standing: Standing, state: str) -> set[str]:
    return {one.fix for one in standing.search.rejected if one.state == state}


def _again(standing: Standing) -> None:
    """Whatever lost beside a ladder that was so much slower that it may matter now."""
    while True:
        now = standing.speed
        slow = [one for one, speed in standing.beaten.values() if now / speed >= _MOVED]
        one = _next(standing, trimmed(slow, standing.fixes, _unfit(standing)))
        if one is None:
            break
        for other in slow:
            if _new(other, {*standing.fixes, *_unfit(standing)}) == one.whole:
                standing.beaten[other.label] = (other, now)
        fixes = beside(standing.fixes, one)
        gains = one.predicted is None or one.predicted.high >= 1
        if gains and standing.lab.affords(fixes, _FEWEST):
            attempt(standing, one, fixes)


def trimmed(
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


def _next(standing: Standing, left: Sequence[Candidate]) -> Candidate | None:
    """With what is predicted of it beside the fixes that are kept. None: all wait for others.

    What is to be tried together comes before its parts."""
    present = standing.fixes
    names = {name_of(one) for one in present}
    parts = {fix for one in left if one.along for fix in one.whole}
    ready = [
        replace(one, predicted=standing.see(present, beside(present, one)) or one.predicted)
        for one in left
        if (one.after is None or one.after in names) and (one.along or one.fix not in parts)
    ]
    return next(iter(ordered(ready, standing.lab.cost_s(present))), None)


def _leave(standing: Standing, one: Candidate) -> None:
    assert one.predicted is not None
    if one.along:
        return  # its parts speak for themselves
    words = f"predicted to gain nothing ({one.predicted.speedup:.2f}×)"
    standing.beaten[one.label] = (one, standing.speed)
    standing.reject(Rejected(one.fix, words, "left_out"))
