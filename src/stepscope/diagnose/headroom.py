"""The step time with every compatible fix."""

from collections.abc import Iterable, Sequence

from stepscope.diagnose.case import Case, in_ms, in_times
from stepscope.diagnose.ranking import gain_share
from stepscope.diagnose.rules.facts import busy_share
from stepscope.fixes.registry import exclude_each_other
from stepscope.record.finding import ChangeKind, Finding, Headroom, Scope

_MOST_NAMED = 3


def headroom(findings: Sequence[Finding], case: Case) -> Headroom | None:
    """None where nothing was found that a step would gain by. `findings` are ranked."""
    worth = (
        one
        for one in findings
        if one.predicted is not None
        and one.scope is Scope.STEP
        and one.kind is not ChangeKind.SEMANTIC
    )
    chosen = compatible(worth, case.applied_fixes)
    if not chosen or case.step_ms <= 0:
        return None
    together = _replayed(chosen, case)
    best = min(one.predicted.step_ms for one in chosen if one.predicted)
    step_ms = min(best, _summed_by_group(chosen, case) if together is None else together)
    speedup = case.step_ms / step_ms
    return Headroom(
        step_ms=step_ms,
        now_ms=case.step_ms,
        speedup=speedup,
        by=tuple(one.id for one in chosen),
        replayed=together is not None,
        text=f"{in_ms(case.step_ms)} ms per step could be {in_ms(step_ms)} ms"
        f" ({in_times(speedup)}×), mostly from"
        f" {_main_fixes(chosen, case.step_ms - step_ms, case)}",
    )


def compatible(findings: Iterable[Finding], applied: Iterable[str] = ()) -> list[Finding]:
    """Those whose fixes go together, and with those applied, which they may give another value;
    the earlier of two that do not."""
    chosen: list[Finding] = []
    taken, present = set[str](), {*applied}
    for one in findings:
        if one.fix is not None:
            name = one.fix.name
            if name in taken or any(exclude_each_other(name, other) for other in taken | present):
                continue
            taken.add(name)
        chosen.append(one)
    return chosen


def _replayed(chosen: list[Finding], case: Case) -> float | None:
    """All changes replayed at once; None without a window, or if one cannot be replayed."""
    predicted = [one.predicted for one in chosen if one.predicted is not None]
    if case.model is None or case.model.step_ms <= 0 or not all(one.changes for one in predicted):
        return None
    changes = [change for one in predicted for change in one.changes or ()]
    return case.step_ms * float(case.model.replay(*changes).step_ms) / case.model.step_ms


def _summed_by_group(chosen: list[Finding], case: Case) -> float:
    """Gains added up, only the largest of each group, since groups cover different parts of the
    step.

    Those that can be are replayed together; the step stays above the device's own work.
    """
    changed = [one for one in chosen if one.predicted is not None and one.predicted.changes]
    together = _replayed(changed, case) if changed else None
    gain = 0.0 if together is None else case.step_ms - together
    known = set() if together is None else {one.group for one in changed}
    largest: dict[str, float] = {}
    for one in chosen:
        if one.group not in known:
            largest[one.group] = max(largest.get(one.group, 0.0), gain_share(one) * case.step_ms)
    device_ms = (busy_share(case) or 0.0) * case.step_ms if case.show is not None else 0.0
    return max(case.step_ms - gain - sum(largest.values()), device_ms, 0.1 * case.step_ms)


def _main_fixes(chosen: list[Finding], gain: float, case: Case) -> str:
    """The fixes behind more than half of the gain, as `--fix` takes them, or in words."""
    names: list[str] = []
    covered = 0.0
    for one in sorted(chosen, key=gain_share, reverse=True)[:_MOST_NAMED]:
        names.append(str(one.fix) if one.fix is not None else f"removing “{one.title}”")
        covered += gain_share(one) * case.step_ms
        if covered > gain / 2:
            break
    return " and ".join(names)
