"""CUDA's allocator had to give memory back and start over."""

from collections.abc import Iterable

from stepscope.analyze.whatif.changes import drop_host
from stepscope.diagnose.case import Case, Rule
from stepscope.diagnose.rules._memory import amount, memory
from stepscope.record.finding import Evidence, Finding, FixRef

_ASKED = ("cudaMalloc", "cudaFree")


def _allocator_retries(case: Case) -> Iterable[Finding]:
    """At any retry: each waits for the device, frees all cached blocks and asks the driver anew."""
    gpu = (case.show or {}).get("gpu") or {}
    retries = int(gpu.get("allocator_retries") or 0)
    if not retries:
        return
    known = memory(case)
    ms, calls = _asking(case)
    share = min(1.0, ms / case.step_ms) if case.step_ms else 0.0
    lost = None if known is None else known.peak - known.allocated
    predicted = case.predict(
        drop_host(f"^({'|'.join(_ASKED)})$"),
        words=f"{ms:.1f} ms a step of asking the driver for memory disappear",
    )
    yield Finding(
        id=ALLOCATOR_RETRIES.id,
        title=f"The allocator started over {retries:,} times",
        why=(
            "Free memory lay in pieces too small for what was asked, so the allocator waited for "
            "the device, gave everything back and asked the driver again."
        ),
        advice=(
            "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, and pad batches to a few "
            "lengths so that the same blocks fit again."
        ),
        share=share,
        evidence=(
            Evidence("retries", retries),
            *([Evidence("in pieces at the peak", lost, "bytes")] if lost else ()),
            *([Evidence("driver calls per step", calls)] if calls else ()),
            *([Evidence("in them per step", ms, "ms")] if ms else ()),
            *([Evidence("peak", amount(known.peak))] if known else ()),
        ),
        predicted=predicted if ms else None,
        fix=FixRef("expandable_segments"),
        effort="an environment variable",
        kind="exact",
        confidence="high" if lost and known and lost > 0.1 * known.peak else "medium",
        scope="step",
    )


ALLOCATOR_RETRIES = Rule(
    id="memory.allocator_retries",
    cause="CUDA's allocator had to give memory back and start over.",
    find=_allocator_retries,
)


def _asking(case: Case) -> tuple[float, float]:
    """(ms, calls) per step in which the host asked the driver for memory or gave it back."""
    trace = case.trace or {}
    steps = int((trace.get("steps") or {}).get("count") or 0)
    calls = [
        call for call in (trace.get("host") or {}).get("runtime") or [] if call["name"] in _ASKED
    ]
    if not steps:
        return 0.0, 0.0
    return (
        sum(call["total_ns"] for call in calls) / steps / 1e6,
        sum(call["count"] for call in calls) / steps,
    )
