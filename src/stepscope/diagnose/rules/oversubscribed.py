"""More threads compute than there are cores for them."""

from collections.abc import Iterable

from stepscope.diagnose.case import Case, Rule
from stepscope.diagnose.rank import LEAST
from stepscope.diagnose.rules._loading import loading
from stepscope.record.finding import Evidence, Finding, FixRef

_TOO_MANY = 1.25  # threads a core
_COMPUTED = ("forward", "backward", "optimizer")


def _cpu_oversubscribed(case: Case) -> Iterable[Finding]:
    """Where torch has more threads than cores, and the processor does the work of the step."""
    switches = ((case.show or {}).get("config") or {}).get("switches") or {}
    threads, cores = int(switches.get("threads") or 0), max(1, int(case.cores))
    if case.cores <= 0 or threads <= _TOO_MANY * cores or case.step_ms <= 0:
        return
    how = loading(case)
    busy_ms = how.wait_ms if how is not None and not how.workers else 0.0
    if case.device == "cpu":
        busy_ms += sum(case.phases.get(phase) or 0.0 for phase in _COMPUTED)
    share = min(1.0, busy_ms / case.step_ms)
    if share < LEAST:
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
