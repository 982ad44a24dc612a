"""Workers make the batches, but too few of them."""

from collections.abc import Iterable

from stepscope.diagnose.case import Case, Rule, in_ms
from stepscope.diagnose.rules._data import DataWait, by_chance, data_wait
from stepscope.diagnose.rules._loading import evidence, loading, places
from stepscope.diagnose.rules._workers import more_workers
from stepscope.record.finding import Finding, FixRef


def _too_few_workers(case: Case) -> Iterable[Finding]:
    """Where the workers there are set the pace, and there are cores for more."""
    how = loading(case)
    if how is None or data_wait(case, how) is not DataWait.FEW_WORKERS:
        return
    count, predicted = more_workers(case, how)
    count = max(count, how.workers + 1)
    one = how.workers == 1
    yield Finding(
        id=TOO_FEW_WORKERS.id,
        title=f"{how.workers} worker{' is' if one else 's are'} too few for this step",
        why=(
            f"A worker takes {in_ms(how.batch_ms)} ms for a batch and the rest of the step "
            f"{in_ms(how.compute_ms)} ms: {how.workers} {'does' if one else 'do'} not keep up."
        ),
        advice=(
            f"Pass num_workers={count} to the DataLoader"
            + (": random draws then fall otherwise." if by_chance(case, how) else ".")
        ),
        share=how.share,
        evidence=evidence(how),
        where=places(how),
        predicted=predicted,
        fix=FixRef("workers", str(count)),
        effort="one argument",
        kind="numeric" if by_chance(case, how) else "exact",
        confidence="high" if predicted is not None else "medium",
    )


TOO_FEW_WORKERS = Rule(
    id="data.too_few_workers",
    cause="Workers make the batches, but too few of them.",
    find=_too_few_workers,
)
