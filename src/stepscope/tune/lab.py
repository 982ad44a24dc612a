"""Trials made so far by their set of fixes, and how further ones are made."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from stepscope.stats.verdict import Comparison
from stepscope.tune.ask import Ask
from stepscope.tune.budget import Budget, usual_seconds
from stepscope.tune.gain import compared, floor_of, spread_of
from stepscope.tune.trial import Trial

Fixes = tuple[str, ...]
AGAIN: Final = 0.25  # of what compiling takes: later processes find most of it in a cache
_LEAST_PACE: Final = 0.3  # a mode may have been in the cache already, which another is not
_SPARED: Final = 0.15  # of what there is to search with, for one small question
CONFIRM: Final = 3
FEWEST: Final = 2
"""Processes of the baseline and of the ladder that the end needs, and with which it makes do."""


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
        self.begun_s = 0.0
        """What was spent when there was nothing to find yet: on a look, and on the baseline."""
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

    def cost_s(self, fixes: Fixes, count: int = 1) -> float:
        """What so many more trials of these should take: each as the last one did. Of what compiles
        the first takes longest."""
        known, plain = self.trials(fixes), self._plain_s(fixes)
        long = {one for one in fixes if self._extra_s(one) > 0}
        if len(known) > 1 or (known and not long):
            return count * known[-1].seconds
        first = known[0].seconds if known else self._first_s(long, plain)
        again = plain + AGAIN * max(0.0, first - plain)
        return count * again if known else first + (count - 1) * again

    def _plain_s(self, fixes: Fixes) -> float:
        """Without compiling: as the most of these that were tried and do not compile."""
        tried = [
            made
            for fixes_made, made in self._made.items()
            if fixes_made <= set(fixes) and not any(self._extra_s(one) > 0 for one in fixes_made)
        ]
        return usual_seconds(max(tried, key=lambda made: len(made[0].ask.fixes), default=[]))

    def _first_s(self, long: set[str], plain: float) -> float:
        """As others with the same fixes that take long; else as without, and what is thought to
        come on top, by how long others took here."""
        alike = [trial for made in self._made.values() for trial in made]
        alike = [trial for trial in alike if long and long <= set(trial.ask.fixes)]
        return usual_seconds(alike) or plain + self._pace() * sum(map(self._extra_s, long))

    def _pace(self) -> float:
        """How many times as long as thought compiling has taken here at the most, in the first of
        a kind; 1 where nothing was compiled yet."""
        taken = [
            (made[0].seconds - self._plain_s(made[0].ask.fixes)) / thought
            for made in self._made.values()
            if (thought := sum(map(self._extra_s, made[0].ask.fixes)))
        ]
        return max(_LEAST_PACE, *taken) if taken else 1.0

    def affords(self, fixes: Fixes, count: int) -> bool:
        """Whether so many trials of these are within the budget."""
        return self.cost_s(fixes, count) + self.reserve_s <= self.budget.left

    def spares(self, seconds: float) -> bool:
        """Whether the budget has many times as much."""
        return seconds <= _SPARED * (self.budget.left - self.reserve_s)

    @property
    def reserve_s(self) -> float:
        """For the confirmation, and for whatever else was asked to be kept back; half of what there
        was to search with at most, or a small budget would try nothing, but enough to confirm."""
        wanted = self._reserve_s + self.confirming_s(self.best)
        half = (self.budget.seconds - self.begun_s) / 2
        return min(wanted, max(half, self.confirming_s(self.best, FEWEST)))

    def confirming_s(self, fixes: Fixes, pairs: int = CONFIRM) -> float:
        """What fresh trials of these and of the program as it is take at the end."""
        return pairs * (self.cost_s(()) + self.cost_s(fixes))

    def patching_s(self, fixes: Fixes, count: int) -> float:
        """What so many trials of the program with these in its source take: the first compiles
        anew."""
        known = self.trials(fixes)
        return usual_seconds(known) + (count - 1) * known[-1].seconds if known else 0.0

    def compare(self, base: Fixes, other: Fixes, since: int = 0) -> Comparison | None:
        """All their trials so far, without the first `since` of the base; None where they lack
        what the objective looks at."""
        ours, theirs = self.trials(base)[since:], self.trials(other)
        floor = floor_of([ours, theirs], self.objective) if since else self.floor()
        return compared(ours, theirs, self.objective, floor)

    def floor(self) -> float | None:
        """The noise between processes of one kind, over all kinds so far; None: not known."""
        return floor_of([*self._made.values()], self.objective)

    def spread(self) -> float | None:
        """The same as a standard deviation, a logarithm."""
        return spread_of([*self._made.values()], self.objective)
