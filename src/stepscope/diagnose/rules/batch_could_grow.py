"""The GPU waits for the host while most of its memory lies empty."""

from collections.abc import Iterable

from stepscope.diagnose.case import Case, Rule
from stepscope.diagnose.rules._memory import amount, memory
from stepscope.diagnose.rules._step import batch_size
from stepscope.record.finding import Evidence, Finding, FixRef

_IDLE = 0.3
_EMPTY = 0.5
_ROOM = 0.8  # of the memory: what the larger batch may fill
_MOST = 8


def _batch_could_grow(case: Case) -> Iterable[Finding]:
    """Where the GPU idles for want of launches, and a batch at least twice as large would fit.

    A step of it would take as long, so samples per second grow; the step itself does not shrink.
    """
    known = memory(case)
    gpu = (case.show or {}).get("gpu") or {}
    busy = gpu.get("busy_fraction")
    if known is None or busy is None or known.full > _EMPTY or busy > 1 - _IDLE:
        return
    if _waits_for_host(case) < _IDLE:
        return
    fixed = sum(
        known.owners.get(one, 0.0) for one in ("parameters", "gradients", "optimizer_state")
    )
    per_batch = max(known.peak - fixed, 1.0)
    fits = int((_ROOM * known.total - fixed) / per_batch)
    times = 1
    while 2 * times <= min(fits, _MOST, 1 / max(busy, 1e-6)):
        times *= 2
    if times < 2:
        return
    batch = batch_size(case)
    now = (case.show or {}).get("steps", {}).get("samples_per_s")
    yield Finding(
        id=BATCH_COULD_GROW.id,
        title=f"A batch {times} times as large would fit",
        why=(
            f"The GPU works {busy:.0%} of the time and uses {amount(known.peak)} of "
            f"{amount(known.total)}: the host launches as much for a larger batch as for this one."
        ),
        advice=(
            "Take larger batches, with a learning rate to match: the step stays about as long, so "
            f"samples per second could grow up to {times} times"
            + (f" ({now:,.0f} → {now * times:,.0f})." if now else ".")
        ),
        share=0.0,
        evidence=(
            Evidence("GPU busy", busy * 100, "%"),
            Evidence("peak", known.peak, "bytes"),
            Evidence("there is", known.total, "bytes"),
        ),
        fix=FixRef("batch", str(batch * times)) if batch else None,
        effort="one line",
        kind="semantic",
        confidence="medium",
        scope="run",
    )


BATCH_COULD_GROW = Rule(
    id="memory.batch_could_grow",
    cause="The GPU waits for the host while most of its memory lies empty.",
    find=_batch_could_grow,
)


def _waits_for_host(case: Case) -> float:
    """The share of the recorded step in which the device had nothing launched."""
    trace = case.trace or {}
    wall = (trace.get("breakdown_ns") or {}).get("wall") or 0
    return ((trace.get("idle_ns") or {}).get("host") or 0) / wall if wall else 0.0
