"""Fewer launches: compiling, CUDA graphs, optimizers that update everything at once."""

import re
from typing import Final

from stepscope.analyze.timeline.flops_pointwise import POINTWISE
from stepscope.analyze.whatif.changes import (
    Change,
    fuse_pointwise,
    fused_optimizer,
    no_launch_cost,
    scale_host,
)
from stepscope.analyze.whatif.gains_factors import any_of
from stepscope.analyze.whatif.gains_known import (
    Known,
    ceilings,
    config,
    host_operators,
    parameters,
    steps,
)
from stepscope.analyze.whatif.select import host
from stepscope.analyze.whatif.tasks import Did

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
_ON_CPU: Final = {"Adam": 0.22, "AdamW": 0.22, "SGD": 0.5, "Adagrad": 0.5}
"""Of the time on a processor: what fused steps took of models that fit its caches (one core)."""
_CACHED = 64_000_000  # bytes: what caches hold, memory's rate does not bound
_STREAMS = 0.8  # of the memory's rate: what a fused step reaches


def compile_(value: str | None, known: Known) -> list[Change] | None:
    """Pointwise chains become one kernel each; the host launches without Python, or a graph."""
    mode = (value or "default").partition(",")[0]
    if known.device == "cpu":
        return _compiled_on_cpu(known)
    if mode == "default":
        return [fuse_pointwise(), no_launch_cost(*_MODEL, keep=_COMPILED_HOST)]
    return [fuse_pointwise(), no_launch_cost(*_MODEL)]


def cuda_graph(value: str | None, known: Known) -> list[Change] | None:
    """The host's part of forward, backward and optimizer becomes one launch; None without CUDA."""
    return [no_launch_cost()] if known.device == "cuda" else None


def fused(value: str | None, known: Known) -> list[Change] | None:
    """One kernel that reads and writes a parameter's state once.

    None for an optimizer that has no such version, or has it on.
    """
    name = fusible(known)
    if name is None:
        return None
    limits = ceilings(known)
    count = parameters(known)
    now_ms = optimizer_ms(known)
    moved = (count or 0) * 4 * _PASSES[name]
    now = now_ms * 1e6
    least = moved / (limits.bytes_per_s * _STREAMS) * 1e9 if limits.bytes_per_s else 0.0
    if known.device == "cpu":
        # The steps as they are show a rate too; a ceiling below it was measured on a busy machine.
        least = min(least, now * _PASSES[name] / _EAGER_PASSES[name])
    if known.device == "cpu":
        usual = now * _ON_CPU[name]
        after = min(now, max(usual, least)) if moved > _CACHED else usual
        return [fused_optimizer(host_ns=after)] if after else None
    usual = _PASSES[name] / _EAGER_PASSES[name]
    factor = min(1.0, least / now) if least and now else usual
    return [fused_optimizer(device_factor=factor)]


def foreach(value: str | None, known: Known) -> list[Change] | None:
    """Few operations over lists of parameters; None where that is so already, as CUDA does it."""
    one = (config(known).get("optimizers") or [{}])[0]
    if one.get("fused") or one.get("foreach"):
        return None
    if known.device == "cuda":
        return [fused_optimizer()] if one.get("foreach") is False else None
    return [scale_host(host(Did.GAP, Did.PYTHON, Did.ANNOTATION, phase="optimizer"), 0.5)]


def is_pointwise(operator: str) -> bool:
    """Whether an operator computes each number of its result from those at the same place."""
    return operator in POINTWISE and not _NOT_CHAINED.search(operator)


def fusible(known: Known) -> str | None:
    """The optimizer, where it has a fused version that is not on; for a trace alone, as it looks.

    None where there is none such.
    """
    found = config(known).get("optimizers")
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


def _state_bytes(known: Known) -> float | None:
    owners = ((known.show or {}).get("memory") or {}).get("owners") or {}
    size = owners.get("optimizer_state")
    return None if size is None else float(size)


def optimizer_ms(known: Known) -> float:
    """What a step's optimizer takes: the device's time, or on the processor the phase."""
    if known.device == "cpu":
        phases = (known.show or {}).get("phases_ms") or {}
        return float(phases.get("optimizer") or 0.0)
    groups = ((known.trace or {}).get("by") or {}).get("phase") or []
    spent = sum(group["total_ns"] for group in groups if group["name"] == "optimizer")
    return float(spent) / steps(known) / 1e6


def _compiled_on_cpu(known: Known) -> list[Change] | None:
    names = [o["name"] for o in host_operators(known) if is_pointwise(o["name"])]
    changes = [
        scale_host(host(Did.GAP, Did.PYTHON, Did.ANNOTATION, phase=phase), _CPU_CALLS)
        for phase in _MODEL
    ]
    if names:
        pattern = any_of(names)
        changes += [scale_host(host(operator=pattern, phase=p), _CPU_CHAIN) for p in _MODEL]
    return changes
