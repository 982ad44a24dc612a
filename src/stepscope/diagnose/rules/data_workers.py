"""Data rules about workers: too few, too many, restarted, late, short of memory or of cores."""

from collections.abc import Iterable

from stepscope.analyze.replay.tasks import HAND_OVER_MS_PER_MB, RECYCLED_SHARE, WORKER_MS_PER_MB
from stepscope.diagnose.case import Case, in_ms, rule
from stepscope.diagnose.ranking import LEAST_GAIN
from stepscope.diagnose.rules import facts
from stepscope.diagnose.rules.loading import (
    DataWait,
    Loading,
    loader_setting,
    loading,
    waiting_because,
)
from stepscope.record.finding import (
    ChangeKind,
    Confidence,
    Effort,
    Evidence,
    Finding,
    FixRef,
    Scope,
)
from stepscope.record.fix import FixState


@rule("data.too_few_workers", "Too few workers make the batches.")
def too_few_workers(case: Case) -> Iterable[Finding]:
    """The workers set the pace, and there are cores for more."""
    how = waiting_because(case, DataWait.FEW_WORKERS)
    if how is None:
        return
    count, predicted = how.more_workers()
    count = max(count, how.workers + 1)
    random = how.draws_randomly
    yield Finding(
        id=too_few_workers.id,
        title=f"{_counted(how.workers, 'worker')} cannot keep up with the step",
        why=f"A worker takes {in_ms(how.batch_ms)} ms per batch, the rest of the step "
        f"{in_ms(how.compute_ms)} ms.",
        advice=how.crowd or ("Random augmentations will differ." if random else ""),
        settings=() if case.crowded else (loader_setting("num_workers", count),),
        share=how.share,
        evidence=how.evidence,
        where=how.places(),
        predicted=predicted,
        fix=None if case.crowded else FixRef("workers", str(count)),
        effort=Effort.ONE_ARGUMENT,
        kind=ChangeKind.NUMERIC if random else ChangeKind.EXACT,
        confidence=Confidence.HIGH if predicted is not None else Confidence.MEDIUM,
    )


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


_MOST_WORKERS_A_CORE = 1.5  # below this, waiting for storage can pay off


@rule("data.too_many_workers", "More workers than cores can run.")
def too_many_workers(case: Case) -> Iterable[Finding]:
    """Workers need more cores than there are, and running, starting or waiting for them costs
    2%."""
    how = loading(case) if case.cores > 0 else None
    if how is None or how.workers * how.core_share <= _MOST_WORKERS_A_CORE * case.cores:
        return
    starts = facts.time_spent(case, "epoch_start")
    started, start_s = (starts.share, starts.seconds) if starts is not None else (0.0, 0.0)
    taken = how.share
    if case.device == "cpu":  # making batches takes cores away from the step
        taken = max(taken, case.step_share(how.core_share * how.batch_ms / how.cores))
    if max(taken, started) < LEAST_GAIN:
        return
    far_too_many = how.workers >= 2 * _MOST_WORKERS_A_CORE * case.cores
    yield Finding(
        id=too_many_workers.id,
        title=f"{how.workers} workers share {_counted(max(1, int(case.cores)), 'core')}",
        why=f"A batch takes {in_ms(how.core_share * how.batch_ms)} ms of a core that other workers "
        "need too"
        + (f"; starting workers took {facts.in_s(start_s)}." if started >= LEAST_GAIN else "."),
        advice="More workers than cores only take turns.",
        settings=(loader_setting("num_workers", how.needed),),
        share=max(taken, started),
        evidence=(*how.evidence, Evidence("starting workers", start_s, "s per run")),
        where=how.places(),
        effort=Effort.ONE_ARGUMENT,
        confidence=Confidence.HIGH if far_too_many else Confidence.MEDIUM,
        scope=Scope.STEP if taken >= started else Scope.RUN,
    )


@rule("data.no_persistent_workers", "Every epoch restarts the workers while training waits.")
def no_persistent_workers(case: Case) -> Iterable[Finding]:
    """Starting workers costs 2% of the run, or happens in most steps."""
    how = loading(case)
    if how is None or not how.workers or how.loader.persistent_workers:
        return
    if how.waits_because is DataWait.RESTARTED_WORKERS:
        yield _restarted_in_steps(how)
        return
    starts, rounds = facts.time_spent(case, "epoch_start"), how.epochs
    if starts is None or rounds < 2:
        return
    # The first epoch always starts its workers and waits for its first batch.
    saved = (rounds - 1) * max(0.0, starts.seconds / rounds - how.batch_ms / 1e3)
    if saved / starts.run_s < LEAST_GAIN:
        return
    yield Finding(
        id=no_persistent_workers.id,
        title=f"Each of {rounds} epochs restarts the workers",
        why=f"Training stops for {in_ms(1e3 * starts.seconds / rounds)} ms at the start of each "
        f"epoch, {facts.in_s(starts.seconds)} per run.",
        advice=f"This run would be {facts.in_s(saved)} shorter.",
        settings=(loader_setting("persistent_workers", True),),
        share=saved / starts.run_s,
        evidence=(
            Evidence("epoch starts", starts.seconds, "s"),
            Evidence("epochs", rounds),
            Evidence("workers", how.workers),
            Evidence("run without recording", starts.run_s, "s"),
        ),
        where=(*how.places(), *facts.category_places(case, "epoch_start")),
        fix=FixRef("persistent"),
        effort=Effort.ONE_ARGUMENT,
        scope=Scope.RUN,
    )


def _restarted_in_steps(how: Loading) -> Finding:
    least_ms = max(how.compute_ms, how.batch_ms / how.workers)
    reason = "persistent workers load batches while the step computes"
    return Finding(
        id=no_persistent_workers.id,
        title="Every step restarts the data loader's workers",
        why=f"Most steps create a new iterator: each starts {_counted(how.workers, 'worker')} for "
        f"one batch and waits {in_ms(how.wait_ms)} ms.",
        advice="Create one iterator before the loop (`batches = iter(loader)`) and call "
        "`next(batches)` in it; create a new one when it is exhausted.",
        share=how.share,
        evidence=(*how.evidence, Evidence("iterators created", how.epochs)),
        where=(*facts.category_places(how.case, "epoch_start"), *how.places()),
        predicted=how.case.reach(least_ms, reason, doubt=0.3),
        kind=ChangeKind.NUMERIC,
    )


_DEFAULT_PREFETCH = 2  # batches per worker, torch's default
_BETTER_PREFETCH = 4


@rule(
    "data.no_prefetch",
    "Workers keep up on average, but too few batches are ready when one is late.",
)
def no_prefetch(case: Case) -> Iterable[Finding]:
    """The step waits for late batches although its workers keep up on average."""
    how = waiting_because(case, DataWait.LATE_BATCHES)
    if how is None:
        return
    ahead = how.loader.prefetch_factor or _DEFAULT_PREFETCH
    loader = getattr(getattr(case.model, "tasks", None), "loader", None)
    # Prefetching cannot save the cost of receiving a ready batch.
    late_ms = how.wait_ms - (0.0 if loader is None else float(loader.hand_over_ms))
    if ahead > _DEFAULT_PREFETCH or not how.batch_ms or late_ms < LEAST_GAIN * case.step_ms:
        return
    saved = 0.9 if ahead < _DEFAULT_PREFETCH else 0.5
    yield Finding(
        id=no_prefetch.id,
        title=f"Workers prefetch only {ahead} batch{'es' if ahead != 1 else ''} each",
        why=f"{_counted(how.workers, 'worker')} could deliver a batch every "
        f"{in_ms(how.batch_ms / how.workers)} ms, yet the step waits {in_ms(late_ms)} ms for late "
        "ones.",
        advice="It needs memory for the batches kept ready.",
        settings=(loader_setting("prefetch_factor", _BETTER_PREFETCH),),
        share=late_ms / case.step_ms,
        evidence=(*how.evidence, Evidence("batches prefetched", ahead, "per worker")),
        where=how.places(),
        predicted=case.reach(
            case.step_ms - late_ms * saved, "prefetched batches cover late ones", doubt=0.5
        ),
        effort=Effort.ONE_ARGUMENT,
        confidence=Confidence.MEDIUM if ahead < _DEFAULT_PREFETCH else Confidence.LOW,
    )


_LARGE_MB = 1.0


@rule("data.fresh_memory", "Workers allocate new shared memory for every large batch.")
def fresh_memory(case: Case) -> Iterable[Finding]:
    """Workers allocate shared memory for batches of 1 MB or more, and reusing it gains 2%."""
    how, run = loading(case), case.show
    mb = (run.steps.batch_bytes or 0) / 1e6 if run else 0.0
    if how is None or run is None or not how.workers or mb < _LARGE_MB:
        return
    if any(one.name == "recycle" and one.state is FixState.APPLIED for one in run.fixes):
        return
    changes = facts.fix_changes(case, "recycle") or ()
    reason = "workers write batches into memory that is already mapped"
    predicted = case.predict(*changes, reason=reason, doubt=0.5)
    if predicted is None or 1 - 1 / predicted.speedup < LEAST_GAIN:
        return
    yield Finding(
        id=fresh_memory.id,
        title=f"Workers allocate {mb:.3g} MB of shared memory per batch",
        why=f"Estimated from other machines: {in_ms(mb * WORKER_MS_PER_MB)} ms in the worker and "
        f"{in_ms(mb * HAND_OVER_MS_PER_MB)} ms in the training process per batch; "
        f"{1 - RECYCLED_SHARE:.0%} of both can be saved.",
        advice="Run with --fix recycle, or write a collate_fn that stacks samples into shared "
        "tensors and reuses them.",
        share=1 - 1 / predicted.speedup,
        evidence=(*how.evidence, Evidence("batch", mb, "MB")),
        where=how.places(),
        predicted=predicted,
        fix=FixRef("recycle"),
        confidence=Confidence.MEDIUM,
    )


_MOST_THREADS_A_CORE = 1.25


@rule("data.cpu_oversubscribed", "More compute threads than cores.")
def cpu_oversubscribed(case: Case) -> Iterable[Finding]:
    """torch has more threads than cores, and the CPU does 2% of the step or more."""
    threads, cores = case.switches.threads, max(1, int(case.cores))
    if case.cores <= 0 or threads <= _MOST_THREADS_A_CORE * cores or case.step_ms <= 0:
        return
    how = loading(case)
    busy_ms = how.wait_ms if how is not None and not how.workers else 0.0
    if case.device == "cpu":
        busy_ms += sum(case.phases.get(phase) or 0.0 for phase in facts.COMPUTE_PHASES)
    share = min(1.0, busy_ms / case.step_ms)
    if share < LEAST_GAIN:
        return
    workers = how.workers if how is not None else 0
    count = max(1, cores - workers)
    yield Finding(
        id=cpu_oversubscribed.id,
        title=f"{threads} threads share {_counted(cores, 'core')}",
        why="Each operator is split over all threads and ends with the slowest, which has to "
        "wait for a core.",
        advice=f"Call torch.set_num_threads({count}) at the start, or set OMP_NUM_THREADS={count}.",
        share=share,
        evidence=(
            Evidence("torch threads", threads),
            Evidence("usable cores", case.cores),
            Evidence("workers", workers),
            Evidence("computed on the CPU", busy_ms, "ms per step"),
        ),
        fix=FixRef("threads", str(count)),
        effort=Effort.ONE_LINE,
        kind=ChangeKind.NUMERIC,
        confidence=Confidence.HIGH if threads >= 2 * cores else Confidence.MEDIUM,
    )
