"""The trials made so far, by set of fixes: their costs and comparisons, and further trials within
the budget."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp
from statistics import fmean
from typing import Final

from msgspec.structs import replace

from stepscope.fixes.registry import fix_named
from stepscope.measure.trial.record import ContestRequest, RunTrial, Trial, TrialRequest, Trials
from stepscope.record.errors import UsageError
from stepscope.record.fix import Switch
from stepscope.record.trial import TrialReason
from stepscope.stats.intervals import Processes, log_means, noise_margin, within_process_margin
from stepscope.stats.paired import WARMING_STEPS, Blocks
from stepscope.stats.verdict import (
    MIN_DIFFERENCE,
    Comparison,
    compare_processes,
    noise_floor,
    process_spread,
    verdict_for_interval,
)

FAR_SLOWER: Final = 0.87  # no fix is that much slower; the machine may be
SLOWER_AT_MOST: Final = 0.95  # of the speed: what a smaller memory peak may cost


def compare_trials(
    base: Trials, other: Trials, objective: str, floor: float | None
) -> Comparison | None:
    """`other` against `base`, all of them ok; `floor` is their `trial_noise_floor`. None if a trial
    lacks the objective's measure."""
    ours, theirs = trial_costs(base, other, objective)
    if not ours or not theirs:
        return None
    if objective != "memory":
        return compare_processes(ours, theirs, floor)
    # Memory peaks hardly vary: the range seen is the interval.
    a, b = ([series[0] for series in side] for side in (ours, theirs))
    low, high = min(a) / max(b), max(a) / min(b)
    verdict = verdict_for_interval(low, high, MIN_DIFFERENCE)
    return Comparison(fmean(a) / fmean(b), low, high, MIN_DIFFERENCE, verdict)


def trial_costs(base: Trials, other: Trials, objective: str) -> tuple[Processes, Processes]:
    """Each process's ms, joules, or peak bytes; empty if unknown. Times and energy are per sample
    if all trials count samples, else per step."""
    by_sample = all(trial.samples_per_step for trial in (*base, *other))
    ours, theirs = (
        [series for trial in side if (series := _series(trial, objective, by_sample))]
        for side in (base, other)
    )
    return ours, theirs


def trial_noise_floor(groups: Sequence[Trials], objective: str) -> float | None:
    """The noise between processes, from groups of trials with equal fixes."""
    return noise_floor(_each(groups, objective))


def _each(groups: Sequence[Trials], objective: str) -> list[Processes]:
    """Each group's numbers; none for memory, whose peaks repeat."""
    if objective == "memory":
        return []
    return [trial_costs(group, (), objective)[0] for group in groups]


def speed_left(base: Trials, other: Trials) -> float | None:
    """The remaining share of the speed if that is too little, else None."""
    found = compare_trials(base, other, "throughput", None)
    return found.ratio if found is not None and found.ratio < SLOWER_AT_MOST else None


def _series(trial: Trial, objective: str, by_sample: bool) -> list[float]:
    per = (trial.samples_per_step or 1.0) if by_sample else 1.0
    if objective == "throughput":
        return [ms / per for ms in trial.step_ms]
    if objective == "energy":
        return [trial.energy_j_per_step / per] if trial.energy_j_per_step else []
    return [trial.peak_memory_bytes] if trial.peak_memory_bytes else []


_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0}
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)([smh])")


class BudgetSpent(Exception):  # noqa: N818
    """The remaining budget does not allow another trial."""


def parse_budget(text: str) -> float:
    """Seconds of "90s", "10m", "1h", "1h30m"; a number alone is seconds. Raises UsageError."""
    words = text.strip().lower()
    if re.fullmatch(r"\d+(\.\d+)?", words):
        words += "s"
    parts = _PART.findall(words)
    seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if not parts or "".join(map("".join, parts)) != words or seconds <= 0:
        raise UsageError(f"--budget {text}: use a time such as 90s, 10m or 1h30m")
    return seconds


@dataclass(slots=True)
class Budget:
    """Adds up the seconds of the trials it sees. It reads no clock, so the same records lead to the
    same decisions."""

    run: RunTrial
    seconds: float
    spent: float = 0.0
    asked: int = 0  # trials so far, including those of proofs
    steps: int = 0  # theirs

    def __call__(self, request: TrialRequest, keep_s: float = 0.0) -> Trial:
        """Run a trial, cut off where the budget ends but for `keep_s`. Raises BudgetSpent if it
        was, or if nothing is left for it."""
        limit_s = self.left - keep_s
        if limit_s <= 0:
            raise BudgetSpent
        trial = self.run(replace(request, limit_s=limit_s))
        self.asked += 1
        self.steps += trial.steps
        self.spent += trial.seconds + trial.shared_s
        if trial.reason is TrialReason.OUT_OF_BUDGET:
            raise BudgetSpent
        return trial

    @property
    def left(self) -> float:
        """Seconds left; negative if the last trial took longer than expected."""
        return self.seconds - self.spent

    def want(self, seconds: float, reserve: float = 0.0) -> None:
        """Raises BudgetSpent if a trial of this many seconds would eat into the reserve."""
        if seconds + reserve > self.left:
            raise BudgetSpent


def _longest_seconds(trials: Trials) -> float:
    """The longest so far; 0 without trials."""
    return max((trial.seconds for trial in trials), default=0.0)


Fixes = tuple[str, ...]
RECOMPILE_SHARE: Final = 0.25  # of compile time: later processes find most of it in a cache
_LEAST_PACE: Final = 0.3  # one mode may be in the cache already while another is not
_SPARED: Final = 0.15  # of the search budget, for one minor question
_IN_PLACE: Final = 0.5  # of the search budget left, for the contests of one process
_CLEAR: Final = 1.5  # times a contest that decides as soon as any can: what an unclear one may take
_FEWEST_STEPS: Final = WARMING_STEPS + Blocks.of(1e3).least  # for one contest
_ENOUGH_STEPS: Final = 1_000_000  # for all that time allows
_EARLY: Final = 1.5  # how much wider the interval is that ends a trial early: it is looked at often
CONFIRM_PAIRS: Final = 3
FEWEST_CONFIRM_PAIRS: Final = 2
"""Baseline–ladder pairs that the confirmation wants, and the fewest it accepts."""


class TrialPool:
    """All trials of a search. `extra_s` says how much longer a trial takes with a fix."""

    def __init__(
        self,
        budget: Budget,
        request: TrialRequest,
        objective: str = "throughput",
        reserve_s: float = 0.0,
        extra_s: Callable[[str], float] = lambda fix: 0.0,
        steps_of: Callable[[Fixes], int] | None = None,
    ) -> None:
        self.budget = budget
        self.objective = objective
        self.best: Fixes = ()
        """The reserve is what confirming these takes."""
        self.request = request
        """What every trial requests apart from fixes."""
        self.steps_of = steps_of or (lambda fixes: request.steps)
        """Steps of a trial with these fixes."""
        self.first_s = 0.0
        """What the first trial should take at least; 0: unknown."""
        self.begun_s = 0.0
        """Seconds spent before the search: on the scout run and the baseline."""
        self.most_steps: int | None = None
        """After which the program ends by itself; None: unknown."""
        self._reserve_s = reserve_s
        self._extra_s = extra_s
        self._made: dict[frozenset[str], list[Trial]] = {}

    def trials(self, fixes: Fixes) -> Trials:
        """Successful trials with exactly these fixes, oldest first."""
        return self._made.get(frozenset(fixes), [])

    def more(self, fixes: Fixes, against: Fixes | None = None) -> Trial:
        """Run one more trial, kept if it is ok; it is ended early if it is far slower than
        `against`. Raises BudgetSpent instead if it cannot be afforded."""
        self.budget.want(self.cost_s(fixes), self.reserve_s)
        slow_ms = None if against is None else self._hopeless_ms(against, fixes)
        # It may take longer than expected, but must leave enough to confirm.
        keep_s = self.confirming_s(self.best, FEWEST_CONFIRM_PAIRS) if self.best else 0.0
        return self.fresh(fixes, min(keep_s, self.reserve_s), slow_ms)

    def fresh(self, fixes: Fixes, keep_s: float = 0.0, slow_ms: float | None = None) -> Trial:
        """Run one more trial, paid from the reserve but for `keep_s` of it."""
        steps = self.steps_of(fixes)
        asked = replace(self.request, fixes=fixes, steps=steps, slow_ms=slow_ms)
        trial = self.budget(asked, keep_s)
        if trial.timed:
            self._made.setdefault(frozenset(fixes), []).append(trial)
        return trial

    def contests(self, fixes: Fixes, candidates: Sequence[Fixes], allow: str) -> Trial:
        """Compare candidates with these fixes inside one process. Raises BudgetSpent instead if it
        cannot be afforded."""
        start_s, each_s = self._start_s(fixes), self._contest_s(fixes)
        self.budget.want(start_s + self.clear_s(fixes), self.reserve_s)
        left_s = _IN_PLACE * (self.budget.left - self.reserve_s - start_s)
        seconds = min(len(candidates) * each_s, max(left_s, self.clear_s(fixes)))
        steps = self.most_steps or _ENOUGH_STEPS
        asked = ContestRequest(tuple(candidates), allow, seconds, each_s)
        request = replace(
            self.request, fixes=fixes, steps=steps, proof=False, slow_ms=None, contests=asked
        )
        keep_s = self.confirming_s(self.best, FEWEST_CONFIRM_PAIRS) if self.best else 0.0
        return self.budget(request, min(keep_s, self.reserve_s))

    def holds_contests(self, fixes: Fixes) -> bool:
        """Whether candidates may be compared with these fixes inside a process: speed alone tells,
        the program is long enough, nothing of it is compiled or captured, and the budget allows
        it."""
        fixed = any(
            fix.slow_start and fix.switch is not Switch.AT_STEP
            for fix in (fix_named(one.partition("=")[0]) for one in fixes)
        )
        if fixed or self.objective != "throughput" or not self.trials(fixes):
            return False
        if self.most_steps is not None and self.most_steps < _FEWEST_STEPS:
            return False
        wanted = self._start_s(fixes) + self.clear_s(fixes) + self.reserve_s
        return wanted <= self.budget.left

    def clear_s(self, fixes: Fixes) -> float:
        """Seconds of a contest on top of these that decides as soon as any can."""
        step_ms = self.trials(fixes)[-1].mean_ms
        return Blocks.of(step_ms).least * step_ms / 1e3

    def _contest_s(self, fixes: Fixes) -> float:
        """The most it may take that does not look like a gain: as long as a trial, which could also
        show that."""
        return max(_CLEAR * self.clear_s(fixes), self.cost_s(fixes))

    def _start_s(self, fixes: Fixes) -> float:
        """Seconds of a trial outside its steps, and of its first ones."""
        last = self.trials(fixes)[-1]
        outside = last.seconds - last.steps * last.mean_ms / 1e3
        return max(0.0, outside) + WARMING_STEPS * last.mean_ms / 1e3

    def _hopeless_ms(self, base: Fixes, other: Fixes) -> float | None:
        """The mean step time from which on `other` cannot be faster than `base`, whatever differs
        between processes; None if speed alone does not tell."""
        grows = any(fix_named(one.partition("=")[0]).step_grows for one in other)
        ours = [trial.step_ms for trial in self.trials(base)]
        if grows or not ours or self.objective != "throughput":
            return None
        reach = max(noise_margin(self.floor(), len(ours), 1), within_process_margin(ours))
        slower = max(exp(_EARLY * reach) * (1 + MIN_DIFFERENCE), 1 / FAR_SLOWER)
        return exp(fmean(log_means(ours))) * slower

    def cost_s(self, fixes: Fixes, count: int = 1) -> float:
        """Expected seconds of this many more trials with these fixes, each like the last. If they
        compile, the first takes longest."""
        known, plain = self.trials(fixes), self._plain_s(fixes)
        long = {one for one in fixes if self._extra_s(one) > 0}
        if len(known) > 1 or (known and not long):
            return count * known[-1].seconds
        if known:
            first = known[0].seconds
        else:
            # Like others with the same slow fixes; else like trials without them plus the estimated
            # extra, scaled by how long others took here.
            alike = [trial for made in self._made.values() for trial in made]
            alike = [trial for trial in alike if long and long <= set(trial.request.fixes)]
            first = _longest_seconds(alike) or plain + self._pace() * sum(map(self._extra_s, long))
        again = plain + RECOMPILE_SHARE * max(0.0, first - plain)
        return count * again if known else first + (count - 1) * again

    def _plain_s(self, fixes: Fixes) -> float:
        """Without compiling: like the largest tried subset that does not compile."""
        tried = [
            made
            for fixes_made, made in self._made.items()
            if fixes_made <= set(fixes) and not any(self._extra_s(one) > 0 for one in fixes_made)
        ]
        largest = max(tried, key=lambda made: len(made[0].request.fixes), default=[])
        return _longest_seconds(largest) or self.first_s

    def _pace(self) -> float:
        """The largest ratio of actual to expected compile time, over the first trial of each kind;
        1 if nothing was compiled yet."""
        taken = [
            (made[0].seconds - self._plain_s(made[0].request.fixes)) / thought
            for made in self._made.values()
            if (thought := sum(map(self._extra_s, made[0].request.fixes)))
        ]
        return max(_LEAST_PACE, *taken) if taken else 1.0

    def affords(self, fixes: Fixes, count: int) -> bool:
        """Whether the budget allows this many trials with these fixes."""
        return self.cost_s(fixes, count) + self.reserve_s <= self.budget.left

    def spares(self, seconds: float) -> bool:
        """Whether the budget is many times this."""
        return seconds <= _SPARED * (self.budget.left - self.reserve_s)

    @property
    def reserve_s(self) -> float:
        """Seconds for the confirmation and other reservations: at most half of the search budget,
        or a small budget would try nothing, but enough to confirm."""
        wanted = self._reserve_s + self.confirming_s(self.best)
        half = (self.budget.seconds - self.begun_s) / 2
        return min(wanted, max(half, self.confirming_s(self.best, FEWEST_CONFIRM_PAIRS)))

    def confirming_s(self, fixes: Fixes, pairs: int = CONFIRM_PAIRS) -> float:
        """Seconds for the final fresh trials of these fixes and of the baseline."""
        return pairs * (self.cost_s(()) + self.cost_s(fixes))

    def patching_s(self, fixes: Fixes, count: int) -> float:
        """Seconds for this many trials of the patched program: the first compiles anew."""
        known = self.trials(fixes)
        return _longest_seconds(known) + (count - 1) * known[-1].seconds if known else 0.0

    def compare(self, base: Fixes, other: Fixes, since: int = 0) -> Comparison | None:
        """Compares all their trials so far, without the base's first `since`; None if they lack the
        objective's measure."""
        ours, theirs = self.trials(base)[since:], self.trials(other)
        floor = trial_noise_floor([ours, theirs], self.objective) if since else self.floor()
        return compare_trials(ours, theirs, self.objective, floor)

    def floor(self) -> float | None:
        """The noise between processes with equal fixes, over all sets so far; None: unknown."""
        return trial_noise_floor([*self._made.values()], self.objective)

    def spread(self) -> float | None:
        """The same noise as a standard deviation of logarithms."""
        return process_spread(_each([*self._made.values()], self.objective))
