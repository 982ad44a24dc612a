"""Data rules about workers: too few, too many, restarted, late, short of memory or of cores."""

from collections.abc import Iterable, Mapping
from typing import Any

from stepscope.analyze.replay.tasks import HAND_OVER_MS_PER_MB, RECYCLED_SHARE, WORKER_MS_PER_MB
from stepscope.diagnose.case import Case, Rule, in_ms
from stepscope.diagnose.ranking import LEAST_GAIN
from stepscope.diagnose.rules.facts import category_places as lines
from stepscope.diagnose.rules.facts import in_s, time_spent
from stepscope.diagnose.rules.loading import (
    DataWait,
    Loading,
    data_wait,
    draws_randomly,
    epochs,
    loader_places,
    loading,
    loading_evidence,
    more_workers,
)
from stepscope.fixes.registry import fix_named
from stepscope.record.finding import Evidence, Finding, FixRef


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
            + (": random draws then fall otherwise." if draws_randomly(case, how) else ".")
        ),
        share=how.share,
        evidence=loading_evidence(how),
        where=loader_places(how),
        predicted=predicted,
        fix=FixRef("workers", str(count)),
        effort="one argument",
        kind="numeric" if draws_randomly(case, how) else "exact",
        confidence="high" if predicted is not None else "medium",
    )


TOO_FEW_WORKERS = Rule(
    id="data.too_few_workers",
    cause="Workers make the batches, but too few of them.",
    find=_too_few_workers,
)


_MOST_WORKERS_A_CORE = 1.5  # workers a core: below, waiting for storage can be worth it


def _too_many_workers(case: Case) -> Iterable[Finding]:
    """Where workers outnumber the cores, and they, their start or the wait for them cost time."""
    how = loading(case)
    if (
        how is None
        or case.cores <= 0
        or how.workers <= max(_MOST_WORKERS_A_CORE * case.cores, how.most)
    ):
        return
    starts = time_spent(case, "epoch_start")
    started = starts.share if starts is not None else 0.0
    taken = max(how.share, _taken(case, how))
    if max(taken, started) < LEAST_GAIN:
        return
    count = how.needed
    start_s = starts.seconds if starts is not None else 0.0
    yield Finding(
        id=TOO_MANY_WORKERS.id,
        title=f"{how.workers} workers share {how.cores} core{'s' if how.cores > 1 else ''}",
        why=(
            f"A batch takes a worker {in_ms(how.batch_ms)} ms of a processor that others need too"
            + (f", and starting them took {in_s(start_s)}." if started >= LEAST_GAIN else ".")
        ),
        advice=f"Pass num_workers={count} to the DataLoader: more only take turns.",
        share=max(taken, started),
        evidence=(*loading_evidence(how), Evidence("starting workers", start_s, "s of the run")),
        where=loader_places(how),
        effort="one argument",
        kind="exact",
        confidence="high" if how.workers >= 2 * _MOST_WORKERS_A_CORE * case.cores else "medium",
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


def _no_persistent_workers(case: Case) -> Iterable[Finding]:
    """Where starting workers takes time from the run, or from every step."""
    how = loading(case)
    if how is None or not how.workers or how.loader.get("persistent_workers"):
        return
    if data_wait(case, how) is DataWait.RESTARTED_WORKERS:
        yield _in_steps(case, how)
        return
    starts, rounds = time_spent(case, "epoch_start"), epochs(case)
    if starts is None or rounds < 2:
        return
    # The first epoch starts its workers in any case, and waits for its first batch.
    saved = (rounds - 1) * max(0.0, starts.seconds / rounds - how.batch_ms / 1e3)
    if saved / starts.run_s < LEAST_GAIN:
        return
    yield Finding(
        id=NO_PERSISTENT_WORKERS.id,
        title=f"Each of {rounds} epochs starts its workers anew",
        why=(
            f"Training stands still for {in_ms(1e3 * starts.seconds / rounds)} ms at the start of"
            f" each epoch, {in_s(starts.seconds)} of the run."
        ),
        advice=(
            "Pass persistent_workers=True to the DataLoader; the run would be"
            f" {in_s(saved)} shorter."
        ),
        share=saved / starts.run_s,
        evidence=(
            Evidence("starting epochs", starts.seconds, "s"),
            Evidence("epochs", rounds),
            Evidence("workers", how.workers),
            Evidence("the run without recording", starts.run_s, "s"),
        ),
        where=(*loader_places(how), *lines(case, "epoch_start")),
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
        evidence=(*loading_evidence(how), Evidence("iterators made", epochs(case))),
        where=(*lines(case, "epoch_start"), *loader_places(how)),
        predicted=case.reach(
            max(how.compute_ms, how.batch_ms / how.workers),
            words="workers that stay make batches while the step computes",
            doubt=0.3,
        ),
        effort="some lines",
        kind="numeric",
        confidence="high",
    )


_DEFAULT_PREFETCH = 2  # batches a worker, torch's default
_BETTER_PREFETCH = 4


def _no_prefetch(case: Case) -> Iterable[Finding]:
    """Where the step waits for data though its workers could make more than it takes."""
    how = loading(case)
    if how is None or data_wait(case, how) is not DataWait.LATE_BATCHES:
        return
    ahead = int(how.loader.get("prefetch_factor") or _DEFAULT_PREFETCH)
    late_ms = how.wait_ms - _hand_over_ms(case)
    if ahead > _DEFAULT_PREFETCH or not how.batch_ms or late_ms < LEAST_GAIN * case.step_ms:
        return
    yield Finding(
        id=NO_PREFETCH.id,
        title=f"Too few batches are kept ready: {ahead} a worker",
        why=(
            f"{how.workers} worker{'s' if how.workers > 1 else ''} could deliver a batch every"
            f" {in_ms(how.batch_ms / how.workers)} ms, yet the step waits {in_ms(late_ms)} ms:"
            " batches do not take equally long, and few are in store."
        ),
        advice=(
            f"Pass prefetch_factor={_BETTER_PREFETCH} to the DataLoader, if there is memory for it."
        ),
        share=late_ms / case.step_ms,
        evidence=(*loading_evidence(how), Evidence("batches asked for ahead", ahead, "a worker")),
        where=loader_places(how),
        predicted=case.reach(
            case.step_ms - late_ms * (0.9 if ahead < _DEFAULT_PREFETCH else 0.5),
            words="late batches come from the store",
            doubt=0.5,
        ),
        effort="one argument",
        kind="exact",
        confidence="medium" if ahead < _DEFAULT_PREFETCH else "low",
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


_LARGE_MB = 1.0


def _fresh_memory(case: Case) -> Iterable[Finding]:
    """Where workers with large batches set the pace, or the step waits for what they hand over."""
    how, show = loading(case), case.show or {}
    mb = ((show.get("steps") or {}).get("batch_bytes") or 0) / 1e6
    if how is None or not how.workers or mb < _LARGE_MB or _recycled(show):
        return
    predicted = case.predict(
        *(fix_named("recycle").predict(None, case) or ()),
        words="workers write batches into memory that was used before",
        doubt=0.5,
    )
    if predicted is None or 1 - 1 / predicted.speedup < LEAST_GAIN:
        return
    yield Finding(
        id=FRESH_MEMORY.id,
        title=f"Each batch of {mb:.3g} MB is handed over in fresh memory",
        why=(
            f"By what other machines took, a worker needs about {in_ms(mb * WORKER_MS_PER_MB)} ms"
            " for new shared memory to put a batch in, and the training process"
            f" {in_ms(mb * HAND_OVER_MS_PER_MB)} ms to take it over and to give it back;"
            f" {1 - RECYCLED_SHARE:.0%} of both can be saved."
        ),
        advice=(
            "Run it with --fix recycle, or give the DataLoader a collate_fn that stacks samples"
            " into shared tensors which are used again."
        ),
        share=1 - 1 / predicted.speedup,
        evidence=(*loading_evidence(how), Evidence("a batch", mb, "MB")),
        where=loader_places(how),
        predicted=predicted,
        fix=FixRef("recycle"),
        effort="a collate function with buffers of its own",
        kind="exact",
        confidence="medium",
    )


FRESH_MEMORY = Rule(
    id="data.fresh_memory",
    cause="Workers allocate fresh shared memory for every large batch.",
    find=_fresh_memory,
)


def _recycled(show: Mapping[str, Any]) -> bool:
    fixes = show.get("fixes") or ()
    return any(one["name"] == "recycle" and one["state"] == "applied" for one in fixes)


_MOST_THREADS_A_CORE = 1.25  # threads a core
_COMPUTE_PHASES = ("forward", "backward", "optimizer")


def _cpu_oversubscribed(case: Case) -> Iterable[Finding]:
    """Where torch has more threads than cores, and the processor does the work of the step."""
    switches = ((case.show or {}).get("config") or {}).get("switches") or {}
    threads, cores = int(switches.get("threads") or 0), max(1, int(case.cores))
    if case.cores <= 0 or threads <= _MOST_THREADS_A_CORE * cores or case.step_ms <= 0:
        return
    how = loading(case)
    busy_ms = how.wait_ms if how is not None and not how.workers else 0.0
    if case.device == "cpu":
        busy_ms += sum(case.phases.get(phase) or 0.0 for phase in _COMPUTE_PHASES)
    share = min(1.0, busy_ms / case.step_ms)
    if share < LEAST_GAIN:
        return
    workers = how.workers if how is not None else 0
    count = max(1, cores - workers)
    yield Finding(
        id=CPU_OVERSUBSCRIBED.id,
        title=f"{threads} threads share {cores} core{'s' if cores > 1 else ''}",
        why=(
            "Each operator is divided among all threads and ends with the slowest of them, which"
            " has to wait for a core."
        ),
        advice=(
            f"Call torch.set_num_threads({count}) at the start of the program, or set"
            f" OMP_NUM_THREADS={count}."
        ),
        share=share,
        evidence=(
            Evidence("threads of torch", threads),
            Evidence("usable cores", case.cores),
            Evidence("workers", workers),
            Evidence("computed on the processor", busy_ms, "ms a step"),
        ),
        fix=FixRef("threads", str(count)),
        effort="one line",
        kind="numeric",
        confidence="high" if threads >= 2 * cores else "medium",
    )


CPU_OVERSUBSCRIBED = Rule(
    id="data.cpu_oversubscribed",
    cause="More threads compute than there are cores for them.",
    find=_cpu_oversubscribed,
)
