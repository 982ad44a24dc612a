"""torch uses few of the processor's cores."""

from collections.abc import Iterable

from stepscope.analyze.whatif.gains import change_for
from stepscope.diagnose.case import Case, Rule
from stepscope.diagnose.rules._kernels import gain, in_vain
from stepscope.diagnose.rules._step import (
    config,
    operators,
    part,
    recorded_step_ms,
    sites,
    steps,
    switches,
)
from stepscope.record.finding import Evidence, Finding, FixRef

_HALF = 0.5
_LEAST = 0.3
_LARGE_NS = 100_000
_BUSY = 0.8


def _few_threads(case: Case) -> Iterable[Finding]:
    """Where a CPU program's large operators run on half of the free cores or fewer."""
    now = switches(case).get("threads")
    if case.device != "cpu" or not now:
        return
    free = _free(case)
    if free < 2 or now > _HALF * free:
        return
    use = ((case.show or {}).get("host") or {}).get("cpu_percent")
    if use is not None and use >= 100 * _BUSY * case.cores:
        return
    large = _large(case)
    if large < _LEAST:
        return
    value = str(int(free))
    changes = change_for("threads", value, case)
    words = f"large operators are shared out among {value} threads instead of {now}"
    predicted = gain(case, changes, words, 0.5)
    if in_vain(case, changes, predicted):
        return
    yield Finding(
        id=FEW_THREADS.id,
        title=f"torch uses {now} of {free:.0f} free cores"[:60],
        why=(
            f"{large:.0%} of the step are operators large enough to be shared out, and they run on "
            f"{now} thread{'s' if now > 1 else ''}."
        ),
        advice=(
            f"Call torch.set_num_threads({value}), or leave OMP_NUM_THREADS and MKL_NUM_THREADS "
            "unset."
        ),
        share=large,
        evidence=(
            Evidence("threads", int(now)),
            Evidence("usable cores", case.cores),
            *((Evidence("processor in use", use, "%"),) if use is not None else ()),
        ),
        where=sites(case, "forward"),
        predicted=predicted,
        fix=FixRef("threads", value),
        effort="one line",
        kind="numeric",
        confidence="medium",
    )


FEW_THREADS = Rule(
    id="compute.few_threads",
    cause="torch uses few of the processor's cores.",
    find=_few_threads,
)


def _free(case: Case) -> float:
    """Physical cores that neither hyperthreads nor the loader's workers share."""
    cpu = (config(case).get("machine") or {}).get("cpu") or {}
    loaders = (case.show or {}).get("loaders") or []
    workers = max((int(x.get("num_workers") or 0) for x in loaders), default=0)
    return min(case.cores, float(cpu.get("physical_cores") or case.cores)) - workers


def _large(case: Case) -> float:
    """The share of the step in operators that take at least 0.1 ms each; without a window that
    of the phases that compute."""
    if not recorded_step_ms(case):
        computing = (case.phases.get(p, 0.0) for p in ("forward", "backward", "optimizer"))
        return part(case, sum(computing))
    spent = sum(o["self_ns"] for o in operators(case) if o["self_ns"] >= _LARGE_NS * o["count"])
    return float(min(1.0, spent / 1e6 / max(1, steps(case)) / recorded_step_ms(case)))
