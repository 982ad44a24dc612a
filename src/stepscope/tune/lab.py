"""Trials made so far by their set of fixes, and how further ones are made."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from stepscope.stats.verdict import Comparison
from stepscope.tune.ask import Ask
from stepscope.tune.budget import Budget, usual_seconds
from stepscope.tune.gain import compared, floor_of
from stepscope.tune.trial import Trial

Fixes = tuple[str, ...]
_CONFIRM: Final = 3  # processes of the baseline and of the ladder that the end needs


class Lab:
    """The bench a search works at. `extra_s` says how much longer a trial takes with a fix."""

    def __init__(
        self,
        budget: Budget,
        ask: Ask,
        objective: str = "throughput",
        reserve_s: float = 0.0,
        extra_s: Callable[[str], float] = lambda fix: 0.0,
        steps_of: Callable[[Fixes], int] | None = None,
    ) -> None:
        self.budget = budget
        self.objective = objective
        self.best: Fixes = ()
        """What is kept back holds for a confirmation of these."""
        self.ask = ask
        """Every trial is one, with fixes, and has as many steps or more."""
        self.steps_of = steps_of or (lambda fixes: ask.steps)
        """How many a trial of these has."""
        self._reserve_s = reserve_s
        self._extra_s = extra_s
        self._made: dict[frozenset[str], list[Trial]] = {}

    def trials(self, fixes: Fixes) -> Sequence[Trial]:
        """Those with exactly these fixes that were ok, oldest first."""
        return self._made.get(frozenset(fixes), [])

    def more(self, fixes: Fixes) -> Trial:
        """One more trial, kept if it is ok. Raises BudgetSpent before it is made."""
        self.budget.want(self.cost_s(fixes), self.reserve_s)
        return self.fresh(fixes)

    def fresh(self, fixes: Fixes) -> Trial:
        """The same, from what was kept back."""
        trial = self.budget(replace(self.ask, fixes=fixes, steps=self.steps_of(fixes)))
        if trial.ok and trial.step_ms:
            self._made.setdefault(frozenset(fixes), []).append(trial)
        return trial

    def cost_s(self, fixes: Fixes) -> float:
        """What a trial of these should take: as the last one did, or those with the same fixes
        that take long; else as the baseline's did and what is thought to come on top."""
        known = self.trials(fixes)
        if known:
            return known[-1].seconds
        long = {one for one in fixes if self._extra_s(one) > 0}
        alike = [trial for made in self._made.values() for trial in made]
        alike = [trial for trial in alike if long and long <= set(trial.ask.fixes)]
        if alike:
            return usual_seconds(alike)
        return usual_seconds(self.trials(())) + sum(map(self._extra_s, long))

    def affords(self, fixes: Fixes, count: int) -> bool:
        """Whether so many trials of these are within the budget."""
        return count * self.cost_s(fixes) + self.reserve_s <= self.budget.left

    @property
    def reserve_s(self) -> float:
        """For the confirmation, and for whatever else was asked to be kept back; half of the whole
        budget at most, so that a small one still tries something."""
        both = self.cost_s(()) + self.cost_s(self.best)
        return min(self._reserve_s + _CONFIRM * both, self.budget.seconds / 2)

    def compare(self, base: Fixes, other: Fixes, since: int = 0) -> Comparison | None:
        """All their trials so far, without the first `since` of the base; None where they lack
        what the objective looks at."""
        ours, theirs = self.trials(base)[since:], self.trials(other)
        floor = floor_of([ours, theirs], self.objective) if since else self.floor()
        return compared(ours, theirs, self.objective, floor)

    def floor(self) -> float | None:
        """The noise between processes of one kind, over all kinds so far; None: not known."""
        return floor_of([*self._made.values()], self.objective)
