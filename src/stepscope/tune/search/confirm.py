"""The confirmation: the baseline against the whole ladder, on fresh trials alone."""

from dataclasses import dataclass
from typing import Final

from stepscope.measure.trial.pool import (
    CONFIRM_PAIRS,
    FEWEST_CONFIRM_PAIRS,
    BudgetSpent,
    Fixes,
    TrialPool,
    compare_trials,
    trial_noise_floor,
)
from stepscope.measure.trial.record import Trial, Trials
from stepscope.stats.verdict import Comparison, Verdict
from stepscope.tune.document import ConfirmFailure
from stepscope.tune.search.ladder import SearchResult, compile_payback

_MANY: Final = 5
_CLEAR: Final = 1.15  # least gain in the search for which few processes suffice


@dataclass(frozen=True, slots=True)
class Confirmation:
    """The ladder's gain on fresh trials."""

    fixes: Fixes
    baseline: tuple[Trial, ...]
    ladder: tuple[Trial, ...]
    comparison: Comparison | None
    """None if trials failed, or too few were made before it ended."""
    failure: ConfirmFailure | None = None  # why it is not confirmed; None if it is
    detail: str | None = None  # how the trial failed
    compile_s: float | None = None  # None if the fixes add no compiling
    pays_after_steps: int | None = None

    @property
    def confirmed(self) -> bool:
        return self.failure is None


def confirm(
    pool: TrialPool, search: SearchResult, fresh: Trials = (), over: bool = False
) -> Confirmation | None:
    """Interleaved fresh trials of both: three each, five if the gain is small and the budget
    allows, two if it does not allow three; the number is fixed before the first.

    `fresh` are alternating trials the proof made since the search ended; after an interrupt
    (`over`) there are no others. None without a ladder.
    """
    fixes = search.fixes
    if not fixes:
        return None
    known = {turn: [one for one in fresh if one.request.fixes == turn] for turn in ((), fixes)}
    pairs = min(map(len, known.values()))
    possible = pairs + pool.budget.left / (pool.cost_s(()) + pool.cost_s(fixes))
    count = CONFIRM_PAIRS if possible >= CONFIRM_PAIRS else FEWEST_CONFIRM_PAIRS
    if possible >= _MANY and search.rungs[-1].cumulative.low < _CLEAR:
        count = _MANY
    made = {turn: trials[: min(count, pairs)] for turn, trials in known.items()}
    if over:
        return _ended(pool, fixes, made, ConfirmFailure.INTERRUPTED)
    # Base, ladder, ladder, base, base, …: a machine that slows down slows both.
    turns = [one for pair in range(count) for one in (((), fixes), (fixes, ()))[pair % 2]]
    try:
        for turn in turns[2 * pairs :]:
            pool.budget.want(pool.cost_s(turn))
            trial = pool.fresh(turn)
            if not trial.timed:
                failed = ConfirmFailure.LADDER if turn else ConfirmFailure.BASELINE
                return _ended(pool, fixes, made, failed, trial.failure)
            made[turn].append(trial)
    except KeyboardInterrupt:
        return _ended(pool, fixes, made, ConfirmFailure.INTERRUPTED)
    except BudgetSpent:
        few = min(map(len, made.values())) < FEWEST_CONFIRM_PAIRS
        return _ended(pool, fixes, made, ConfirmFailure.NO_BUDGET if few else None)
    return _ended(pool, fixes, made)


def _ended(
    pool: TrialPool,
    fixes: Fixes,
    made: dict[Fixes, list[Trial]],
    failure: ConfirmFailure | None = None,
    detail: str | None = None,
) -> Confirmation:
    base, ladder = made[()], made[fixes]
    found = None
    if base and ladder:  # from these trials alone, and the noise between them
        floor = trial_noise_floor([base, ladder], pool.objective)
        found = compare_trials(base, ladder, pool.objective, floor)
    if failure is None and (found is None or found.verdict is not Verdict.FASTER):
        failure = ConfirmFailure.NOT_FASTER
    compile_s, pays = compile_payback(base, ladder)
    return Confirmation(fixes, tuple(base), tuple(ladder), found, failure, detail, compile_s, pays)
