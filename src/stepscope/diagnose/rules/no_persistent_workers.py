"""Workers are started anew for every epoch, and training stands still meanwhile."""

from collections.abc import Iterable

from stepscope.diagnose.case import Case, Rule, in_ms
from stepscope.diagnose.rank import LEAST
from stepscope.diagnose.rules._data import DataWait, data_wait, epochs
from stepscope.diagnose.rules._loading import Loading, evidence, loading, places
from stepscope.diagnose.rules._run import places as lines
from stepscope.diagnose.rules._run import seconds, spent
from stepscope.record.finding import Evidence, Finding, FixRef


def _no_persistent_workers(case: Case) -> Iterable[Finding]:
    """Where starting workers takes time from the run, or from every step."""
    how = loading(case)
    if how is None or not how.workers or how.loader.get("persistent_workers"):
        return
    if data_wait(case, how) is DataWait.RESTARTED_WORKERS:
        yield _in_steps(case, how)
        return
    starts, rounds = spent(case, "epoch_start"), epochs(case)
    if starts is None or rounds < 2:
        return
    # The first epoch starts its workers in any case, and waits for its first batch.
    saved = (rounds - 1) * max(0.0, starts.seconds / rounds - how.batch_ms / 1e3)
    if saved / starts.run_s < LEAST:
        return
    yield Finding(
        id=NO_PERSISTENT_WORKERS.id,
        title=f"Each of {rounds} epochs starts its workers anew",
        why=(
            f"Training stands still for {in_ms(1e3 * starts.seconds / rounds)} ms at the start of"
            f" each epoch, {seconds(starts.seconds)} of the run."
        ),
        advice=(
            "Pass persistent_workers=True to the DataLoader; the run would be"
            f" {seconds(saved)} shorter."
        ),
        share=saved / starts.run_s,
        evidence=(
            Evidence("starting epochs", starts.seconds, "s"),
            Evidence("epochs", rounds),
            Evidence("workers", how.workers),
            Evidence("the run without recording", starts.run_s, "s"),
        ),
        where=(*places(how), *lines(case, "epoch_start")),
        fix=FixRef("persistent"),
        effort="one argument",
        kind="exact",
        confidence="high",
        scope="run",
    )


NO_PERSISTENT_WORKERS = Rule(
    id="data.no_persistent_workers",
    cause="Workers are started anew for every epoch, and training stands still meanwhile.",
    find=_no_persistent_workers,
)


def _in_steps(case: Case, how: Loading) -> Finding:
    return Finding(
        id=NO_PERSISTENT_WORKERS.id,
        title="Every step makes a new iterator, and new workers with it",
        why=(
            f"The loader is iterated anew in most steps: each starts {how.workers}"
            f" worker{'s' if how.workers > 1 else ''} for one batch and waits"
            f" {in_ms(how.wait_ms)} ms."
        ),
        advice=(
            "Make one iterator before the loop (`batches = iter(loader)`) and take `next(batches)`"
            " in it; make a new one when it is used up."
        ),
        share=how.share,
        evidence=(*evidence(how), Evidence("iterators made", epochs(case))),
        where=(*lines(case, "epoch_start"), *places(how)),
        predicted=case.reach(
            max(how.compute_ms, how.batch_ms / how.workers),
            words="workers that stay make batches while the step computes",
            doubt=0.3,
        ),
        effort="some lines",
        kind="numeric",
        confidence="high",
    )
