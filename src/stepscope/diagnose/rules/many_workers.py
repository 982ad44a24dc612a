"""There are more workers than cores for them."""

from collections.abc import Iterable

from stepscope.diagnose.case import Case, Rule, in_ms
from stepscope.diagnose.rank import LEAST
from stepscope.diagnose.rules._loading import Loading, evidence, loading, places
from stepscope.diagnose.rules._run import seconds, spent
from stepscope.record.finding import Evidence, Finding

_TOO_MANY = 1.5  # workers a core: below, waiting for storage can be worth it


def _too_many_workers(case: Case) -> Iterable[Finding]:
    """Where workers outnumber the cores, and they, their start or the wait for them cost time."""
    how = loading(case)
    if how is None or case.cores <= 0 or how.workers <= max(_TOO_MANY * case.cores, how.most):
        return
    starts = spent(case, "epoch_start")
    started = starts.share if starts is not None else 0.0
    taken = max(how.share, _taken(case, how))
    if max(taken, started) < LEAST:
        return
    count = how.needed
    start_s = starts.seconds if starts is not None else 0.0
    yield Finding(
        id=TOO_MANY_WORKERS.id,
        title=f"{how.workers} workers share {how.cores} core{'s' if how.cores > 1 else ''}",
        why=(
            f"A batch takes a worker {in_ms(how.batch_ms)} ms of a processor that others need too"
            + (f", and starting them took {seconds(start_s)}." if started >= LEAST else ".")
        ),
        advice=f"Pass num_workers={count} to the DataLoader: more only take turns.",
        share=max(taken, started),
        evidence=(*evidence(how), Evidence("starting workers", start_s, "s of the run")),
        where=places(how),
        effort="one argument",
        kind="exact",
        confidence="high" if how.workers >= 2 * _TOO_MANY * case.cores else "medium",
        scope="step" if taken >= started else "run",
    )


TOO_MANY_WORKERS = Rule(
    id="data.too_many_workers",
    cause="There are more workers than cores for them.",
    find=_too_many_workers,
)


def _taken(case: Case, how: Loading) -> float:
    """The part of the cores' time that making batches takes from a step computed on them."""
    if case.device != "cpu":
        return 0.0
    return min(1.0, how.batch_ms / (how.cores * case.step_ms))
