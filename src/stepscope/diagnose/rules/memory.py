"""Memory rules: near the limit, what fills it, allocator retries, room for a larger batch."""

from collections.abc import Iterable
from dataclasses import dataclass

from stepscope.analyze.replay.changes import drop_host
from stepscope.diagnose.case import Case, Rule
from stepscope.diagnose.rules.facts import batch_size
from stepscope.record.finding import Evidence, Finding, FixRef

_SCARCE = 0.8
"""Of the device's memory: from here on it is worth saving."""


@dataclass(frozen=True, slots=True)
class _MemoryUse:
    """Bytes of the device the program ran on."""

    device: str
    peak: float
    """The most that was in use, with what the allocator holds back for later use."""
    allocated: float
    total: float
    owners: dict[str, float]

    @property
    def full(self) -> float:
        """The peak as a share of what there is."""
        return self.peak / self.total

    def share(self, owner: str) -> float:
        """An owner's part of what was allocated at the peak; 0 where not known."""
        return self.owners.get(owner, 0.0) / self.allocated if self.allocated else 0.0


def memory_use(case: Case) -> _MemoryUse | None:
    """None where a peak or the device's size is not known."""
    show = case.show or {}
    gpu = show.get("gpu")
    owners = {
        name: float(value)
        for name, value in ((show.get("memory") or {}).get("owners") or {}).items()
        if value
    }
    machine = (show.get("config") or {}).get("machine") or {}
    if gpu:
        gpus = machine.get("gpus") or [{}]
        total = gpu.get("total_bytes") or gpus[0].get("memory_bytes")
        peak, allocated = gpu.get("peak_reserved_bytes"), gpu.get("peak_allocated_bytes")
        device = "cuda"
    else:
        room = machine.get("memory") or {}
        total = room.get("limit_bytes") or room.get("total_bytes")
        peak = allocated = (show.get("host") or {}).get("peak_rss_bytes")
        device = "cpu"
    if not peak or not total:
        return None
    return _MemoryUse(device, float(peak), float(allocated or peak), float(total), owners)


def _amount(count: float) -> str:
    """Bytes as a sentence has them: "62.1 GB"."""
    for unit, size in (("GB", 1e9), ("MB", 1e6)):
        if count >= size:
            return f"{count / size:,.1f} {unit}"
    return f"{count / 1e3:,.0f} kB"


_FULL = 0.92  # batches of other lengths, evaluation and the CUDA context want the rest


def _memory_near_limit(case: Case) -> Iterable[Finding]:
    """From 92% on, or when the program ran out of memory. It costs no time, but may end the run."""
    known = memory_use(case)
    failed = ((case.show or {}).get("run") or {}).get("out_of_memory")
    if known is None or (known.full < _FULL and not failed):
        return
    where = "The GPU" if known.device == "cuda" else "The host"
    yield Finding(
        id=MEMORY_NEAR_LIMIT.id,
        title=f"{where} ran out of memory"
        if failed
        else f"{where}'s memory is {known.full:.0%} full",
        why=(
            f"{_amount(known.peak)} of {_amount(known.total)} were in use at the peak; a longer "
            "batch ends the run, and a full allocator gives memory back and asks for it again."
        ),
        advice=_near_limit_advice(known),
        share=0.0,
        evidence=(
            Evidence("peak", known.peak, "bytes"),
            Evidence("there is", known.total, "bytes"),
            *(Evidence(name, value, "bytes") for name, value in _largest_owners(known)),
        ),
        fix=FixRef("checkpointing") if known.share("activations") > 0.5 else None,
        effort="some lines",
        kind="exact",
        confidence="high",
        scope="run",
    )


MEMORY_NEAR_LIMIT = Rule(
    id="memory.near_limit",
    cause="The device's memory is all but full, or was not enough.",
    find=_memory_near_limit,
)


def _largest_owners(known: _MemoryUse) -> list[tuple[str, float]]:
    return sorted(known.owners.items(), key=lambda pair: -pair[1])[:2]


def _near_limit_advice(known: _MemoryUse) -> str:
    if known.share("activations") > 0.5:
        return "Recompute activations in backward (checkpointing), or accumulate smaller batches."
    if known.share("optimizer_state") > 0.4:
        return "Take an optimizer with a smaller state, or shard it over several devices."
    return "Take a smaller batch and accumulate, or lower precision; `--memory` names the lines."


_LEAST_ACTIVATIONS = 0.5


def _activations_dominate(case: Case) -> Iterable[Finding]:
    """Where activations are over half of the peak and the device is over 80% full."""
    known = memory_use(case)
    if known is None or known.device != "cuda" or known.full < _SCARCE:
        return
    part = known.share("activations")
    if part < _LEAST_ACTIVATIONS:
        return
    kept = known.owners["activations"]
    yield Finding(
        id=ACTIVATIONS_DOMINATE.id,
        title=f"Activations fill {part:.0%} of the memory in use",
        why=(
            f"{_amount(kept)} of {_amount(known.allocated)} are kept from forward for backward,"
            " and "
            f"the GPU is {known.full:.0%} full."
        ),
        advice=(
            "Compute repeated blocks again in backward (torch.utils.checkpoint) where memory "
            "limits the batch: about a third more compute for a forward pass done twice."
        ),
        share=0.0,
        evidence=(
            Evidence("activations", kept, "bytes"),
            Evidence("peak", known.allocated, "bytes"),
            Evidence("there is", known.total, "bytes"),
        ),
        fix=FixRef("checkpointing"),
        effort="some lines",
        kind="exact",
        confidence="high",
        scope="run",
    )


ACTIVATIONS_DOMINATE = Rule(
    id="memory.activations_dominate",
    cause="What is kept for backward fills most of a scarce memory.",
    find=_activations_dominate,
)


_LEAST_OPTIMIZER_STATE = (
    0.4  # Adam's two moments are half of weights, gradients and moments together
)


def _optimizer_state_dominates(case: Case) -> Iterable[Finding]:
    """Where the state is over 40% of the peak and the device is over 80% full."""
    known = memory_use(case)
    if known is None or known.device != "cuda" or known.full < _SCARCE:
        return
    part = known.share("optimizer_state")
    if part < _LEAST_OPTIMIZER_STATE:
        return
    kept = known.owners["optimizer_state"]
    optimizers = ((case.show or {}).get("config") or {}).get("optimizers") or []
    name = optimizers[0]["name"] if optimizers else "the optimizer"
    yield Finding(
        id=OPTIMIZER_STATE_DOMINATES.id,
        title=f"Optimizer state fills {part:.0%} of the memory in use",
        why=(
            f"{name} keeps {_amount(kept)} beside the weights, and the GPU is"
            f" {known.full:.0%} full."
        ),
        advice=(
            "Shard the state over devices (ZeroRedundancyOptimizer, FSDP), keep it in 8 or 16 "
            "bits, or take an optimizer with a smaller one (SGD with momentum: half of Adam's)."
        ),
        share=0.0,
        evidence=(
            Evidence("optimizer state", kept, "bytes"),
            Evidence("peak", known.allocated, "bytes"),
            Evidence("there is", known.total, "bytes"),
        ),
        effort="some lines",
        kind="numeric",
        confidence="high",
        scope="run",
    )


OPTIMIZER_STATE_DOMINATES = Rule(
    id="memory.optimizer_state_dominates",
    cause="The optimizer's state fills most of a scarce memory.",
    find=_optimizer_state_dominates,
)


_DRIVER_CALLS = ("cudaMalloc", "cudaFree")


def _allocator_retries(case: Case) -> Iterable[Finding]:
    """At any retry: each waits for the device, frees all cached blocks and asks the driver anew."""
    gpu = (case.show or {}).get("gpu") or {}
    retries = int(gpu.get("allocator_retries") or 0)
    if not retries:
        return
    known = memory_use(case)
    ms, calls = _driver_calls(case)
    share = min(1.0, ms / case.step_ms) if case.step_ms else 0.0
    lost = None if known is None else known.peak - known.allocated
    predicted = case.predict(
        drop_host(f"^({'|'.join(_DRIVER_CALLS)})$"),
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
            *([Evidence("peak", _amount(known.peak))] if known else ()),
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


def _driver_calls(case: Case) -> tuple[float, float]:
    """(ms, calls) per step in which the host asked the driver for memory or gave it back."""
    trace = case.trace or {}
    steps = int((trace.get("steps") or {}).get("count") or 0)
    calls = [
        call
        for call in (trace.get("host") or {}).get("runtime") or []
        if call["name"] in _DRIVER_CALLS
    ]
    if not steps:
        return 0.0, 0.0
    return (
        sum(call["total_ns"] for call in calls) / steps / 1e6,
        sum(call["count"] for call in calls) / steps,
    )


_LEAST_IDLE = 0.3
_MOST_FULL = 0.5
_ROOM = 0.8  # of the memory: what the larger batch may fill
_MOST_GROWTH = 8


def _batch_could_grow(case: Case) -> Iterable[Finding]:
    """Where the GPU idles for want of launches, and a batch at least twice as large would fit.

    A step of it would take as long, so samples per second grow; the step itself does not shrink.
    """
    known = memory_use(case)
    gpu = (case.show or {}).get("gpu") or {}
    busy = gpu.get("busy_fraction")
    if known is None or busy is None or known.full > _MOST_FULL or busy > 1 - _LEAST_IDLE:
        return
    if _waits_for_host(case) < _LEAST_IDLE:
        return
    fixed = sum(
        known.owners.get(one, 0.0) for one in ("parameters", "gradients", "optimizer_state")
    )
    per_batch = max(known.peak - fixed, 1.0)
    fits = int((_ROOM * known.total - fixed) / per_batch)
    times = 1
    while 2 * times <= min(fits, _MOST_GROWTH, 1 / max(busy, 1e-6)):
        times *= 2
    if times < 2:
        return
    batch = batch_size(case)
    now = (case.show or {}).get("steps", {}).get("samples_per_s")
    yield Finding(
        id=BATCH_COULD_GROW.id,
        title=f"A batch {times} times as large would fit",
        why=(
            f"The GPU works {busy:.0%} of the time and uses {_amount(known.peak)} of "
            f"{_amount(known.total)}: the host launches as much for a larger batch as for this one."
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
