"""Memory rules: near the limit, what fills it, allocator retries, room for a larger batch."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from stepscope.analyze.replay.changes import drop_host
from stepscope.diagnose.case import Case, rule
from stepscope.diagnose.rules import facts
from stepscope.record.finding import (
    ChangeKind,
    Confidence,
    Effort,
    Evidence,
    Finding,
    FixRef,
    Scope,
)
from stepscope.record.kinds import IdleCause

_SCARCE = 0.8
"""Share of the device's memory beyond which it is worth saving."""


@dataclass(frozen=True, slots=True)
class _MemoryUse:
    """Memory use of the program's device, bytes."""

    device: str
    peak: float
    """Peak use, including what the allocator keeps for reuse."""
    allocated: float
    total: float
    owners: dict[str, float]

    @property
    def full(self) -> float:
        """The peak as a share of the device's memory."""
        return self.peak / self.total

    def share(self, owner: str) -> float:
        """An owner's share of the allocated peak; 0 if unknown."""
        return self.owners.get(owner, 0.0) / self.allocated if self.allocated else 0.0


def memory_use(case: Case) -> _MemoryUse | None:
    """A case's memory use; None if a peak or the device's size is unknown."""
    if case.show is None:
        return None
    gpu, host = case.show.gpu, case.show.host
    peak: float | None
    if gpu:
        total = gpu.total_bytes or facts.machine_part(case, "gpus").get("memory_bytes")
        peak, allocated, device = gpu.peak_reserved_bytes, gpu.peak_allocated_bytes, "cuda"
    else:
        room = facts.machine_part(case, "memory")
        total = room.get("limit_bytes") or room.get("total_bytes")
        peak, allocated, device = host.peak_rss_bytes if host else None, 0, "cpu"
    if not peak or not total:
        return None
    owners = {name: float(value) for name, value in case.show.memory.owners.items() if value}
    return _MemoryUse(device, float(peak), float(allocated or peak), float(total), owners)


def _amount(count: float) -> str:
    """Bytes for a sentence: "62.1 GB"."""
    for unit, size in (("GB", 1e9), ("MB", 1e6)):
        if count >= size:
            return f"{count / size:,.1f} {unit}"
    return f"{count / 1e3:,.0f} kB"


def _of_memory(
    *sizes: tuple[str, float], evidence: tuple[Evidence, ...] = (), **more: Any
) -> Finding:
    """A finding about the memory of a run: it costs no step time. `sizes` are bytes."""
    evidence += tuple(Evidence(name, value, "bytes") for name, value in sizes)
    return Finding(share=0.0, evidence=evidence, scope=Scope.RUN, **more)


_FULL = 0.92  # of the memory: longer batches, evaluation and the CUDA context need the rest


@rule("memory.near_limit", "The device's memory is nearly full, or ran out.")
def memory_near_limit(case: Case) -> Iterable[Finding]:
    """Memory is 92% full, or the program ran out of it. Costs no time, but may end the run."""
    known = memory_use(case)
    failed = case.show is not None and case.show.run.out_of_memory is not None
    if known is None or (known.full < _FULL and not failed):
        return
    name = "GPU" if known.device == "cuda" else "Host"
    fix = None
    advice = "Use smaller batches and accumulate, or lower precision; `--memory` names the lines."
    if known.share("activations") > 0.5:
        fix = FixRef("checkpointing")
        advice = "Recompute activations in backward (checkpointing), or accumulate smaller batches."
    elif known.share("optimizer_state") > 0.4:
        advice = "Use an optimizer with less state, or shard it over several devices."
    yield _of_memory(
        ("peak", known.peak),
        ("device memory", known.total),
        *sorted(known.owners.items(), key=lambda pair: -pair[1])[:2],
        id=memory_near_limit.id,
        title=f"{name} ran out of memory" if failed else f"{name} memory is {known.full:.0%} full",
        why=f"The peak is {_amount(known.peak)} of {_amount(known.total)}: a longer batch ends "
        "the run, and a full allocator keeps freeing and reallocating.",
        advice=advice,
        fix=fix,
    )


def _owner_when_scarce(case: Case, owner: str, least: float) -> tuple[_MemoryUse, float] | None:
    """Bytes of an owner that fills `least` of a GPU's scarce memory; None if it fills less."""
    known = memory_use(case)
    if known is None or known.device != "cuda" or known.full < _SCARCE:
        return None
    return (known, known.owners[owner]) if known.share(owner) >= least else None


_LEAST_ACTIVATIONS = 0.5


@rule("memory.activations_dominate", "Activations kept for backward fill most of a scarce memory.")
def activations_dominate(case: Case) -> Iterable[Finding]:
    """Activations are over half of the peak, and the GPU's memory is over 80% full."""
    found = _owner_when_scarce(case, "activations", _LEAST_ACTIVATIONS)
    if found is None:
        return
    known, kept = found
    yield _of_memory(
        ("activations", kept),
        ("peak", known.allocated),
        ("device memory", known.total),
        id=activations_dominate.id,
        title=f"Activations fill {known.share('activations'):.0%} of the memory in use",
        why=f"Forward keeps {_amount(kept)} of {_amount(known.allocated)} for backward, and GPU "
        f"memory is {known.full:.0%} full.",
        advice="Recompute repeated blocks in backward (torch.utils.checkpoint) where memory "
        "limits the batch: it costs about a third more compute.",
        fix=FixRef("checkpointing"),
    )


_LEAST_OPTIMIZER_STATE = 0.4  # Adam's moments are half of weights, gradients and moments together


@rule("memory.optimizer_state_dominates", "Optimizer state fills most of a scarce memory.")
def optimizer_state_dominates(case: Case) -> Iterable[Finding]:
    """Optimizer state is over 40% of the peak, and the GPU's memory is over 80% full."""
    found = _owner_when_scarce(case, "optimizer_state", _LEAST_OPTIMIZER_STATE)
    if found is None:
        return
    known, kept = found
    name = next((one.name for one in case.config.optimizers), "The optimizer")
    yield _of_memory(
        ("optimizer state", kept),
        ("peak", known.allocated),
        ("device memory", known.total),
        id=optimizer_state_dominates.id,
        title=f"Optimizer state fills {known.share('optimizer_state'):.0%} of the memory in use",
        why=f"{name} keeps {_amount(kept)} of state, and GPU memory is {known.full:.0%} full.",
        advice="Shard the state over devices (ZeroRedundancyOptimizer, FSDP), keep it in 8 or 16 "
        "bits, or use an optimizer with less (SGD with momentum: half of Adam's).",
        kind=ChangeKind.NUMERIC,
    )


_DRIVER_CALLS = ("cudaMalloc", "cudaFree")


@rule("memory.allocator_retries", "The CUDA allocator had to free its cache and retry.")
def allocator_retries(case: Case) -> Iterable[Finding]:
    """Any retry: each waits for the device, frees all cached blocks and allocates again."""
    gpu = case.gpu
    retries = (gpu.allocator_retries if gpu else None) or 0
    if not retries:
        return
    known = memory_use(case)
    asked = [call for call in facts.runtime_calls(case) if call.name in _DRIVER_CALLS]
    ms = case.per_step(sum(call.total_ns for call in asked))
    calls = sum(call.count for call in asked) / max(1, case.recorded_steps)
    lost = None if known is None else known.peak - known.allocated
    much = known is not None and lost is not None and lost > 0.1 * known.peak
    dropped = drop_host(f"^({'|'.join(_DRIVER_CALLS)})$")
    predicted = case.predict(dropped, reason=f"saves {ms:.1f} ms of driver allocation")
    yield Finding(
        id=allocator_retries.id,
        title=f"The allocator retried {retries:,} times",
        why="Memory is fragmented: no free block was large enough, so the allocator waited for "
        "the device, freed its cache and allocated again.",
        advice="Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, and pad batches to a few "
        "lengths so that blocks can be reused.",
        share=case.step_share(ms),
        evidence=(
            Evidence("retries", retries),
            *([Evidence("fragmented at peak", lost, "bytes")] if lost else ()),
            *([Evidence("driver calls per step", calls)] if calls else ()),
            *([Evidence("time in driver calls", ms, "ms per step")] if ms else ()),
            *([Evidence("peak", _amount(known.peak))] if known else ()),
        ),
        predicted=predicted if ms else None,
        fix=FixRef("expandable_segments"),
        effort=Effort.ENVIRONMENT,
        confidence=Confidence.HIGH if much else Confidence.MEDIUM,
    )


_LEAST_IDLE = 0.3
_MOST_FULL = 0.5
_ROOM = 0.8  # of the memory: what the larger batch may fill
_MOST_GROWTH = 8


@rule("memory.batch_could_grow", "The GPU waits for launches while most of its memory is empty.")
def batch_could_grow(case: Case) -> Iterable[Finding]:
    """The GPU idles 30% for launches, and a batch twice as large would fit.

    Its step would take as long, so samples per second grow; the step itself does not shrink.
    """
    known = memory_use(case)
    gpu = case.gpu
    busy = gpu.busy_fraction if gpu else None
    if known is None or busy is None or known.full > _MOST_FULL or busy > 1 - _LEAST_IDLE:
        return
    if (facts.idle_share(case, IdleCause.HOST) or 0.0) < _LEAST_IDLE:
        return
    kept = ("parameters", "gradients", "optimizer_state")
    fixed = sum(known.owners.get(owner, 0.0) for owner in kept)
    per_batch = max(known.peak - fixed, 1.0)
    fits = int((_ROOM * known.total - fixed) / per_batch)
    times = 1
    while 2 * times <= min(fits, _MOST_GROWTH, 1 / max(busy, 1e-6)):
        times *= 2
    if times < 2:
        return
    batch = facts.batch_size(case)
    now = case.show.steps.samples_per_s if case.show else None
    yield _of_memory(
        ("peak", known.peak),
        ("device memory", known.total),
        evidence=(Evidence("GPU busy", busy * 100, "%"),),
        id=batch_could_grow.id,
        title=f"A batch {times}× as large would fit",
        why=f"The GPU is busy {busy:.0%} of the time and uses {_amount(known.peak)} of "
        f"{_amount(known.total)}; a larger batch needs no more launches.",
        advice="Use larger batches and adjust the learning rate: the step takes about as long, so "
        f"samples per second grow up to {times}×"
        + (f" ({now:,.0f} → {now * times:,.0f})." if now else "."),
        fix=FixRef("batch", str(batch * times)) if batch else None,
        effort=Effort.ONE_LINE,
        kind=ChangeKind.SEMANTIC,
        confidence=Confidence.MEDIUM,
    )
