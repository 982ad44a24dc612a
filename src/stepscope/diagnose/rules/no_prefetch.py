"""Workers keep up on average, but too few batches are ready when one is late."""

from collections.abc import Iterable

from stepscope.diagnose.case import Case, Rule, in_ms
from stepscope.diagnose.rank import LEAST
from stepscope.diagnose.rules._data import DataWait, data_wait
from stepscope.diagnose.rules._loading import evidence, loading, places
from stepscope.record.finding import Evidence, Finding

_USUAL = 2  # batches a worker, torch's default
_AHEAD = 4


def _no_prefetch(case: Case) -> Iterable[Finding]:
    """Where the step waits for data though its workers could make more than it takes."""
    how = loading(case)
    if how is None or data_wait(case, how) is not DataWait.LATE_BATCHES:
        return
    ahead = int(how.loader.get("prefetch_factor") or _USUAL)
    late_ms = how.wait_ms - _hand_over_ms(case)
    if ahead > _USUAL or not how.batch_ms or late_ms < LEAST * case.step_ms:
        return
    yield Finding(
        id=NO_PREFETCH.id,
        title=f"Too few batches are kept ready: {ahead} a worker",
        why=(
            f"{how.workers} worker{'s' if how.workers > 1 else ''} could deliver a batch every"
            f" {in_ms(how.batch_ms / how.workers)} ms, yet the step waits {in_ms(late_ms)} ms:"
            " batches do not take equally long, and few are in store."
        ),
        advice=f"Pass prefetch_factor={_AHEAD} to the DataLoader, if there is memory for it.",
        share=late_ms / case.step_ms,
        evidence=(*evidence(how), Evidence("batches asked for ahead", ahead, "a worker")),
        where=places(how),
        predicted=case.reach(
            case.step_ms - late_ms * (0.9 if ahead < _USUAL else 0.5),
            words="late batches come from the store",
            doubt=0.5,
        ),
        effort="one argument",
        kind="exact",
        confidence="medium" if ahead < _USUAL else "low",
    )


NO_PREFETCH = Rule(
    id="data.no_prefetch",
    cause="Workers keep up on average, but too few batches are ready when one is late.",
    find=_no_prefetch,
)


def _hand_over_ms(case: Case) -> float:
    """What taking a batch that is there costs in every step, which no store saves; 0: not known."""
    loader = getattr(getattr(case.model, "tasks", None), "loader", None)
    return 0.0 if loader is None else float(loader.hand_over_ms)
