"""Batches so small that starting the work takes longer than doing it."""

from collections.abc import Iterable

from stepscope.analyze.whatif.gains_factors import LATENCY_STAYS, SHORT_NS
from stepscope.diagnose.case import Case, Rule
from stepscope.diagnose.rules._kernels import kernels
from stepscope.diagnose.rules._step import (
    batch_size,
    busy_ms,
    kernels_per_step,
    operator_calls,
    part,
    per_step,
    sites,
    unfed_ms,
)
from stepscope.record.finding import Evidence, Finding, FixRef, Place

_IDLE = 0.3
_SHORT_US = 15.0
_FEW = 8
_MOST = 8
_CALL_US = 3.0  # what calling an operator costs on a processor, whatever its size: a prior
_OVERHEAD = 0.4


def _small_batch(case: Case) -> Iterable[Finding]:
    """Where 8 samples or fewer make a step, and kernels are short while the GPU idles for launches;
    on a processor, where calling operators takes 40% of the step."""
    samples = ((case.show or {}).get("steps") or {}).get("samples_per_step")
    if not samples or samples > _FEW:
        return
    fixed = _fixed_ms(case)
    if fixed is None:
        return
    times = 2  # doubled as long as what grows with the batch is not the whole step yet
    while times < _MOST and times * (case.step_ms - fixed) < case.step_ms:
        times *= 2
    batch = batch_size(case)
    grows = times * (case.step_ms - fixed)
    larger = max(grows, case.step_ms) if case.device == "cuda" else fixed + grows
    words = f"for as many samples, {times} times as many of them in a step"
    yield Finding(
        id=SMALL_BATCH.id,
        title=f"Batches of {samples:.0f} are too small for this device",
        why=(
            f"{part(case, fixed):.0%} of the step does not depend on the batch's size: a larger "
            "one would take hardly longer."
        ),
        advice=(
            "Take larger batches with a learning rate to match, or keep the step small and launch "
            "it as a CUDA graph."
        ),
        share=part(case, fixed),
        evidence=(
            Evidence("samples per step", float(samples)),
            Evidence("independent of the batch", fixed, "ms"),
        ),
        where=_places(case),
        predicted=case.reach(larger / times, words, 0.4),
        fix=FixRef("batch", str(batch * times)) if batch else None,
        effort="one argument",
        kind="semantic",
        confidence="medium",
    )


SMALL_BATCH = Rule(
    id="compute.small_batch",
    cause="Batches so small that starting the work takes longer than doing it.",
    find=_small_batch,
    symptoms=("memory.batch_could_grow",),
)


def _fixed_ms(case: Case) -> float | None:
    """What of a step a larger batch would not lengthen; None where that is little."""
    if case.device == "cpu":
        calls = _CALL_US * operator_calls(case) / 1e3
        return min(calls, 0.9 * case.step_ms) if part(case, calls) >= _OVERHEAD else None
    busy, unfed, count = busy_ms(case), unfed_ms(case), kernels_per_step(case)
    if busy is None or not count or part(case, unfed) < _IDLE or 1e3 * busy / count > _SHORT_US:
        return None
    short = sum(k["total_ns"] for k in kernels(case) if k["total_ns"] < SHORT_NS * k["count"])
    return unfed + min(busy, LATENCY_STAYS * per_step(case, short))


def _places(case: Case) -> tuple[Place, ...]:
    loaders = (case.show or {}).get("loaders") or []
    known = [Place(x["file"], x["line"]) for x in loaders[:1] if x.get("file")]
    return tuple(known) or sites(case, "forward")
