"""What sets of fixes should gain together, by replaying the window of the scout run."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepscope.analyze.run.document import RunSummary
from stepscope.analyze.run.records import RunRecords
from stepscope.diagnose.case import Case, case_of_run, speedup_range
from stepscope.fixes.registry import fix_named
from stepscope.record.finding import Scope

Fixes = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Prediction:
    """A speedup and the range it lies in."""

    speedup: float
    low: float
    high: float


Predictor = Callable[[Fixes, Fixes], Prediction | None]
"""What the second set gains over the first; None if unknown."""


def no_prediction(base: Fixes, other: Fixes) -> Prediction | None:
    """A predictor that predicts nothing."""
    return None


def window_predictor(run: RunSummary, folder: Path) -> Predictor:
    """A predictor from a run with findings and its folder. A finding's prediction serves where no
    replay can. Of several fixes tried as one, those with nothing to change in the window count as
    no change."""
    case = case_of_run(run, RunRecords(folder))
    told = predicted_by_findings(run)
    memory: dict[Fixes, float | None] = {}

    def seen(base: Fixes, other: Fixes) -> Prediction | None:
        new = tuple(one for one in other if one not in base)
        gone = tuple(one for one in base if one not in other)
        if case is not None and _can_tell(case, new, gone):
            before, after = (_replayed(case, fixes, memory) for fixes in (base, other))
            if before and after:
                error = case.model.error if case.model is not None else 0.0
                return Prediction(before / after, *speedup_range(before / after, error=error))
        known = [told[one] for one in new if one in told]
        return known[0] if len(known) == len(new) == 1 and not gone else None

    return seen


def predicted_by_findings(run: RunSummary) -> dict[str, Prediction]:
    """What findings predict for their own fix, as `--fix` takes it; the larger of two."""
    found: dict[str, Prediction] = {}
    for finding in (*run.findings, *run.minor):
        fix, predicted = finding.fix, finding.predicted
        if fix is None or predicted is None or finding.scope is Scope.RUN:
            continue
        one = Prediction(predicted.speedup, predicted.low, predicted.high)
        if str(fix) not in found or one.speedup > found[str(fix)].speedup:
            found[str(fix)] = one
    return found


def _can_tell(case: Case, new: Fixes, gone: Fixes) -> bool:
    """Whether the window shows the effect of this change."""
    acting = [one for one in (*new, *gone) if fix_named(one.partition("=")[0]).acts_in_step]
    unseen = [one for one in acting if _changes(case, one) is None]
    return len(acting) > len(unseen) and (not unseen or (len(new) > 1 and set(unseen) <= set(new)))


def _replayed(case: Case, fixes: Fixes, memory: dict[Fixes, float | None]) -> float | None:
    """Step time in ms with these fixes; fixes with unknown effect change nothing."""
    if fixes not in memory:
        model = case.model
        changes = [change for one in fixes for change in _changes(case, one) or ()]
        try:
            memory[fixes] = None if model is None else float(model.replay(*changes).step_ms)
        except Exception:  # the window cannot be replayed with this: trials decide
            memory[fixes] = None
    return memory[fixes]


def _changes(case: Case, fix: str) -> list[Any] | None:
    name, _, value = fix.partition("=")
    return fix_named(name).predict(value or None, case) if case.model is not None else None
