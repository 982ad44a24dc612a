"""What each fix changes in a window, by the roofline, measured ceilings and stated priors: loading,
copies, waits, launches, layout.
"""

import re
from collections.abc import Callable, Mapping
from typing import Final

from stepscope.analyze.replay.changes import (
    Change,
    drop_launch_cost,
    drop_waits,
    fuse_optimizer,
    fuse_pointwise,
    overlap_copies,
    pin_batches,
    recycle_batch_memory,
    scale_batch_time,
    scale_host,
    scale_kernels,
    scale_phase,
    set_workers,
    unblock_copies,
)
from stepscope.analyze.replay.gains_arithmetic import amp_gain, sdpa_gain, tf32_gain
from stepscope.analyze.replay.known import (
    KnownProgram,
    device_limits,
    exact_names_pattern,
    host_operator_rows,
    program_config,
    steps_in_window,
    trained_parameters,
)
from stepscope.analyze.replay.known import kernel_rows as known_kernels
from stepscope.analyze.replay.tasks import StretchKind, select_host, select_kernels
from stepscope.analyze.timeline.roofline.operator_costs import POINTWISE_FORMULAS
from stepscope.hardware.ceiling_cache import known_ceilings

_PARALLEL = 0.9  # of a large operator's time: shared out among threads
_LARGE_NS = 100_000.0  # an operator must take that long on average to gain from more threads
_ADDED = 0.15  # of an optimizer's step: adding a batch's gradients to those there are
_CACHE_LOOKUP_SHARE = 0.02  # of making a sample: looking it up


def workers_gain(value: str | None, known: KnownProgram) -> list[Change] | None:
    """The loader's queue with so many workers (4 unless told)."""
    return [set_workers(int(value or 4))] if _loaders(known) else None


def cache_gain(value: str | None, known: KnownProgram) -> list[Change] | None:
    """Only collating is left of making a batch, once every sample was seen."""
    sources = (known.show or {}).get("pipeline") or []
    if not sources:
        return None
    collating = max(float(source.get("collate_share") or 0.0) for source in sources)
    return [scale_batch_time(min(1.0, collating + _CACHE_LOOKUP_SHARE))]


def pin_gain(value: str | None, known: KnownProgram) -> list[Change] | None:
    """Copies to the device no longer block, at the rate measured for pinned memory, and a thread
    takes batches over from workers."""
    if known.device != "cuda":
        return None
    return [unblock_copies(pinned_speedup(known)), pin_batches()]


def prefetch_gain(value: str | None, known: KnownProgram) -> list[Change] | None:
    """The same, and they run beside compute."""
    if known.device != "cuda":
        return None
    return [unblock_copies(pinned_speedup(known)), pin_batches(), overlap_copies()]


def recycle_gain(value: str | None, known: KnownProgram) -> list[Change] | None:
    """Batches of workers no longer come in fresh memory."""
    return [recycle_batch_memory()] if _loaders(known) else None


def nosync_gain(value: str | None, known: KnownProgram) -> list[Change] | None:
    """Explicit synchronisations go away."""
    return [drop_waits("synchronize")] if known.device == "cuda" else None


def lazyitem_gain(value: str | None, known: KnownProgram) -> list[Change] | None:
    """Reading numbers in the loop no longer waits."""
    return [drop_waits("item")] if known.device == "cuda" else None


def threads_gain(value: str | None, known: KnownProgram) -> list[Change] | None:
    """Large operators shared out among so many threads; None where they are not known."""
    now = (program_config(known).get("switches") or {}).get("threads")
    names = [o["name"] for o in host_operator_rows(known) if o["self_ns"] >= _LARGE_NS * o["count"]]
    if known.device != "cpu" or not now or not value or not names:
        return None
    factor = 1 - _PARALLEL + _PARALLEL * now / int(value)
    return [scale_host(select_host(operator=exact_names_pattern(names)), factor)]


def accumulate_gain(value: str | None, known: KnownProgram) -> list[Change] | None:
    """The optimizer steps once in so many batches (2 unless told); gradients are added up."""
    steps = 1 / int(value or 2)
    return [scale_phase("optimizer", steps + (1 - steps) * _ADDED)]


def checkpointing_gain(value: str | None, known: KnownProgram) -> list[Change] | None:
    """Backward does the forward again: this costs time. None where phases are not known."""
    phases = (known.show or {}).get("phases_ms") or {}
    forward, backward = phases.get("forward") or 0.0, phases.get("backward") or 0.0
    return [scale_phase("backward", 1 + forward / backward)] if backward else None


def pinned_speedup(known: KnownProgram) -> float:
    """How many times faster pinned copies are than the program's: measured, else 1."""
    copies = (known.trace or {}).get("copies") or []
    if not any(re.search("pageable", str(c.get("memory"))) for c in copies):
        return 1.0
    name = ((known.trace or {}).get("source") or {}).get("device")
    for document in known_ceilings():
        entries = document["ceilings"]
        pinned, pageable = entries.get("h2d_pinned_gb_per_s"), entries.get("h2d_pageable_gb_per_s")
        if document.get("device") == name and pinned and pageable:
            return max(1.0, float(pinned["value"] / pageable["value"]))
    return 1.0


def _loaders(known: KnownProgram) -> bool:
    return bool((known.show or {}).get("loaders"))


_MODEL = ("forward", "backward")
_NOT_CHAINED: Final = re.compile(
    r"::(sum|mean|amax|amin|max|min|prod|all|any|argmax|argmin|logsumexp|norm|linalg_vector_norm"
    r"|nansum|var|std|var_mean|std_mean|cumsum|ne|isnan|isinf|isfinite|copy_|fill_|zero_)$"
)
_COMPILED_HOST = 0.4  # of eager host time: compiled code launches kernel by kernel, without Python
_CPU_CHAIN = 0.45  # of a pointwise chain's time as one loop: the middle ones touch no memory
_CPU_CALLS = 0.6  # of the time between operators: guards and wrappers stay
_PASSES: Final = {"Adam": 7, "AdamW": 7, "SGD": 5, "Adagrad": 5}
"""Numbers of a parameter's state that a fused step reads and writes (SGD: with momentum)."""
_EAGER_PASSES: Final = {"Adam": 18, "AdamW": 20, "SGD": 10, "Adagrad": 10}
_FUSED_CPU_SHARE: Final = {"Adam": 0.22, "AdamW": 0.22, "SGD": 0.5, "Adagrad": 0.5}
"""Of the time on a processor: what fused steps took of models that fit its caches (one core)."""
_CACHE_BYTES = 64_000_000  # bytes: what caches hold, memory's rate does not bound
_STREAMS = 0.8  # of the memory's rate: what a fused step reaches


def compile_gain(value: str | None, known: KnownProgram) -> list[Change] | None:
    """Pointwise chains become one kernel each; the host launches without Python, or a graph."""
    mode = (value or "default").partition(",")[0]
    if known.device == "cpu":
        return _compiled_on_cpu(known)
    if mode == "default":
        return [fuse_pointwise(), drop_launch_cost(*_MODEL, keep=_COMPILED_HOST)]
    return [fuse_pointwise(), drop_launch_cost(*_MODEL)]


def cuda_graph_gain(value: str | None, known: KnownProgram) -> list[Change] | None:
    """The host's part of forward, backward and optimizer becomes one launch; None without CUDA."""
    return [drop_launch_cost()] if known.device == "cuda" else None


def fused_optimizer_gain(value: str | None, known: KnownProgram) -> list[Change] | None:
    """One kernel that reads and writes a parameter's state once.

    None for an optimizer that has no such version, or has it on.
    """
    name = fusible_optimizer(known)
    if name is None:
        return None
    limits = device_limits(known)
    count = trained_parameters(known)
    now_ms = optimizer_ms(known)
    moved = (count or 0) * 4 * _PASSES[name]
    now = now_ms * 1e6
    least = moved / (limits.bytes_per_s * _STREAMS) * 1e9 if limits.bytes_per_s else 0.0
    if known.device == "cpu":
        # The steps as they are show a rate too; a ceiling below it was measured on a busy machine.
        least = min(least, now * _PASSES[name] / _EAGER_PASSES[name])
    if known.device == "cpu":
        usual = now * _FUSED_CPU_SHARE[name]
        after = min(now, max(usual, least)) if moved > _CACHE_BYTES else usual
        return [fuse_optimizer(host_ns=after)] if after else None
    usual = _PASSES[name] / _EAGER_PASSES[name]
    factor = min(1.0, least / now) if least and now else usual
    return [fuse_optimizer(device_factor=factor)]


def foreach_gain(value: str | None, known: KnownProgram) -> list[Change] | None:
    """Few operations over lists of parameters; None where that is so already, as CUDA does it."""
    one = (program_config(known).get("optimizers") or [{}])[0]
    if one.get("fused") or one.get("foreach"):
        return None
    if known.device == "cuda":
        return [fuse_optimizer()] if one.get("foreach") is False else None
    return [
        scale_host(
            select_host(
                StretchKind.GAP, StretchKind.PYTHON, StretchKind.ANNOTATION, phase="optimizer"
            ),
            0.5,
        )
    ]


def is_pointwise(operator: str) -> bool:
    """Whether an operator computes each number of its result from those at the same place."""
    return operator in POINTWISE_FORMULAS and not _NOT_CHAINED.search(operator)


def fusible_optimizer(known: KnownProgram) -> str | None:
    """The optimizer, where it has a fused version that is not on; for a trace alone, as it looks.

    None where there is none such.
    """
    found = program_config(known).get("optimizers")
    if found is None:
        groups = ((known.trace or {}).get("by") or {}).get("operator") or []
        names = " ".join(group["name"] or "" for group in groups)
        if "aten::_foreach_" not in names or "aten::_fused_" in names:
            return None
        return "AdamW" if "_foreach_addcdiv_" in names else "SGD"
    for one in found:
        plain = one["name"] == "SGD" and _state_bytes(known) == 0  # no momentum: one pass as it is
        if one["name"] in _PASSES and not one.get("fused") and not plain:
            return str(one["name"])
    return None


def _state_bytes(known: KnownProgram) -> float | None:
    owners = ((known.show or {}).get("memory") or {}).get("owners") or {}
    size = owners.get("optimizer_state")
    return None if size is None else float(size)


def optimizer_ms(known: KnownProgram) -> float:
    """What a step's optimizer takes: the device's time, or on the processor the phase."""
    if known.device == "cpu":
        phases = (known.show or {}).get("phases_ms") or {}
        return float(phases.get("optimizer") or 0.0)
    groups = ((known.trace or {}).get("by") or {}).get("phase") or []
    spent = sum(group["total_ns"] for group in groups if group["name"] == "optimizer")
    return float(spent) / steps_in_window(known) / 1e6


def _compiled_on_cpu(known: KnownProgram) -> list[Change] | None:
    names = [o["name"] for o in host_operator_rows(known) if is_pointwise(o["name"])]
    changes = [
        scale_host(
            select_host(StretchKind.GAP, StretchKind.PYTHON, StretchKind.ANNOTATION, phase=phase),
            _CPU_CALLS,
        )
        for phase in _MODEL
    ]
    if names:
        pattern = exact_names_pattern(names)
        changes += [scale_host(select_host(operator=pattern, phase=p), _CPU_CHAIN) for p in _MODEL]
    return changes


_LAYOUT_LEFT = 0.05  # of layout changes: the batch itself is still changed once
_NORMALISING = 0.6  # of that between convolutions in fp32: slow in NCHW, a prior (ResNet-50, H200)
_LAYOUT_HOST = 1.04  # strided weights cost forward and backward that much more host time (ResNets)
_TUNED = 0.92  # of a convolution's time with the fastest algorithm: a prior, between 0.8 and 1


def _channels_last_gain(value: str | None, known: KnownProgram) -> list[Change] | None:
    """Layout changes around convolutions go away, and normalising between them takes less time.

    None where there are no layout changes.
    """
    if not any(k["category"] == "layout change" for k in known_kernels(known)):
        return None
    return [
        scale_kernels(select_kernels("layout change"), _LAYOUT_LEFT),
        scale_kernels(select_kernels("normalisation", operator="cudnn_batch_norm"), _NORMALISING),
        *(scale_host(select_host(phase=phase), _LAYOUT_HOST) for phase in ("forward", "backward")),
    ]


def _cudnn_benchmark_gain(value: str | None, known: KnownProgram) -> list[Change] | None:
    """Convolutions by the fastest algorithm; None without any, or where that is done already."""
    on = (program_config(known).get("switches") or {}).get("cudnn_benchmark")
    if on or not any(k["category"] == "convolution" for k in known_kernels(known)):
        return None
    return [scale_kernels(select_kernels("convolution"), _TUNED)]


Gain = Callable[[str | None, KnownProgram], list[Change] | None]

GAINS: Final[Mapping[str, Gain]] = {
    "threads": threads_gain,
    "cache": cache_gain,
    "workers": workers_gain,
    "pin": pin_gain,
    "prefetch": prefetch_gain,
    "recycle": recycle_gain,
    "nosync": nosync_gain,
    "lazyitem": lazyitem_gain,
    "tf32": tf32_gain,
    "cudnn_benchmark": _cudnn_benchmark_gain,
    "cuda_graph": cuda_graph_gain,
    "accumulate": accumulate_gain,
    "amp": amp_gain,
    "sdpa": sdpa_gain,
    "channels_last": _channels_last_gain,
    "checkpointing": checkpointing_gain,
    "compile": compile_gain,
    "foreach": foreach_gain,
    "fused_optimizer": fused_optimizer_gain,
}
NOT_IN_A_STEP: Final = ("expandable_segments", "affinity", "batch", "drop_last", "persistent")
"""Fixes whose gain no window shows: they act between steps, on memory, or change the batch."""


def change_for(fix: str, value: str | None, known: KnownProgram) -> list[Change] | None:
    """What a fix (as `run --fix name=value` takes it) changes in a window, to be replayed in order.

    None where it does not apply to this program, or where nothing tells what it would do.
    """
    gain = GAINS.get(fix)
    return gain(value, known) if gain is not None else None
