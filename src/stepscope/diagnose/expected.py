"""What a fix should be worth, whether a finding proposes it or not."""

from stepscope.analyze.whatif.gains import change_for
from stepscope.diagnose.case import Case, in_ms, ranged
from stepscope.record.finding import FixRef, Predicted


def expected(case: Case, fix: FixRef) -> Predicted | None:
    """The step with a fix, replayed; it may be a loss.

    None without a window, where the fix does not apply, or where nothing tells what it would do.
    """
    if case.model is None or case.model.step_ms <= 0:
        return None
    changes = change_for(fix.name, fix.value, case)
    if changes is None:
        return None
    ratio = case.model.replay(*changes).step_ms / case.model.step_ms
    if ratio <= 0:
        return None
    low, high = ranged(1 / ratio, error=case.model.error)
    after = case.step_ms * ratio
    return Predicted(
        step_ms=after,
        speedup=1 / ratio,
        low=low,
        high=high,
        how=f"{in_ms(case.step_ms)} → {in_ms(after)} ms: with {fix}",
        changes=tuple(changes),
    )
