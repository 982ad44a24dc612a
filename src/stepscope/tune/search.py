"""The whole search: baseline, ladder, removal, refinement; ended early it has the best so far."""

from collections.abc import Callable, Sequence

from stepscope.record.errors import UsageError
from stepscope.tune.budget import BUDGET, INTERRUPTED, BudgetSpent
from stepscope.tune.candidates import Candidate, LeftOut
from stepscope.tune.lab import Lab
from stepscope.tune.ladder import climb
from stepscope.tune.refine import Others, refine
from stepscope.tune.removal import prune
from stepscope.tune.rungs import UNSETTLED, Rejected, Search
from stepscope.tune.standing import Standing

BASELINE = 2
"""Processes to begin with; contests ask for more where gains are small."""


def search(
    standing: Standing,
    found: Sequence[Candidate],
    left_out: Sequence[LeftOut] = (),
    others: Others = lambda name, value: (),
    extra_s: Callable[[str], float] = lambda fix: 0.0,
) -> Search:
    """Raises UsageError where the program as it is does not get through a trial."""
    result = standing.search
    for one in left_out:
        standing.reject(Rejected(one.fix, one.why, "left_out"))
    result.untried = [*dict.fromkeys(one.fix for one in found)]
    try:
        _baseline(standing.lab)
        standing.lab.begun_s = standing.lab.budget.spent
        climb(standing, found)
        prune(standing)
        refine(standing, others, extra_s)
    except BudgetSpent:
        result.stopped = BUDGET
        open_ = {one.fix for one in result.rejected if one.state == UNSETTLED}
        result.untried = [fix for fix in result.untried if fix not in open_]
    except KeyboardInterrupt:
        result.stopped = INTERRUPTED
    result.baseline = tuple(standing.lab.trials(()))
    result.trials = standing.lab.budget.asked
    result.seconds = standing.lab.budget.spent
    return result


def _baseline(lab: Lab) -> None:
    while len(lab.trials(())) < BASELINE:
        trial = lab.fresh(())
        if not (trial.ok and trial.step_ms):
            why = trial.why or "it makes too few steps"
            raise UsageError(f"the program as it is does not get through a trial: {why}")
    if lab.compare((), ()) is None:
        raise UsageError(
            f"--objective {lab.objective}: trials do not tell of it here; use throughput"
        )
