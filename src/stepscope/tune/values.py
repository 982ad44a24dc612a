"""Which values of a fix to try: the first, and others once it has helped."""

from collections.abc import Mapping
from typing import Any, Final

from stepscope.fixes.base import Fix
from stepscope.tune.nothing_to_do import config, device, loaders

Document = Mapping[str, Any]
_USUAL_MOST: Final = 12  # workers to begin with
_BF16_SINCE: Final = 8.0  # compute capability
_MODES: Final = ("default", "reduce-overhead", "max-autotune")


def first_values(fix: Fix, scout: Document, proposed: str | None) -> list[str | None]:
    """What to try first, the likelier first; None stands for no value. Empty: nothing to try.

    `proposed` is what a finding says.
    """
    if fix.name == "workers":
        return _first_workers(scout, proposed)
    if proposed is not None:
        return [proposed]
    if fix.name == "batch":
        size = batch_size(scout)
        return [] if size is None else [str(2 * size)]
    if fix.name == "amp":
        return ["fp16" if _old_gpu(scout) else "bf16"]
    if fix.name == "compile":
        return ["reduce-overhead", "default"] if device(scout) == "cuda" else ["default"]
    if fix.name in ("threads", "cache"):
        return [None]  # as many as there are cores; half of what is free
    return [fix.suggested[0] if fix.suggested else None]


def other_values(name: str, value: str, scout: Document) -> list[str]:
    """What to try in place of a value that helped, in order; each doubles or halves numbers."""
    if name == "compile" and device(scout) == "cuda":
        mode, comma, dynamic = value.partition(",")
        return [f"{other}{comma}{dynamic}" for other in _MODES if other != mode]
    if name not in ("workers", "threads", "batch") or not value.isdecimal():
        return []
    now = int(value)
    most = {"workers": most_workers(scout), "threads": cores(scout)}.get(name, 1 << 20)
    more, less = min(2 * now, most), now // 2
    return [str(one) for one in (more, less) if one >= 1 and (one >= 1.2 * now or one < now)]


def most_workers(scout: Document) -> int:
    """As many as there are cores; four times that where samples wait rather than compute."""
    found = [*scout.get("findings", ()), *scout.get("minor", ())]
    waiting = any(one["id"] == "data.slow_storage" for one in found)
    return cores(scout) * (4 if waiting else 1)


def cores(scout: Document) -> int:
    """Usable cores; 4 where that is not known."""
    cpu = (config(scout).get("machine") or {}).get("cpu") or {}
    return max(1, int(cpu.get("usable_cores") or 4))


def batch_size(scout: Document) -> int | None:
    """Of the first loader that forms batches; None where there is none."""
    sizes = [one.get("batch_size") for one in loaders(scout)]
    return next((int(size) for size in sizes if size), None)


def _first_workers(scout: Document, proposed: str | None) -> list[str | None]:
    """One core is left for the training loop; twice as many as there are, where there are some.

    A finding names the fewest that keep up with the step as it is. Other fixes shorten that: beside
    a GPU, whose programs leave cores idle, no fewer than usual are begun with, unless the finding
    is that there are too many.
    """
    usual = max(1, min(_USUAL_MOST, cores(scout) - 1))
    have = max((int(one.get("num_workers") or 0) for one in loaders(scout)), default=0)
    if proposed is not None:
        more = device(scout) == "cuda" and int(proposed) > have
        return [str(max(usual, int(proposed))) if more else proposed]
    count = usual if have < usual else min(2 * have, most_workers(scout))
    return [str(count)] if count > have else []


def _old_gpu(scout: Document) -> bool:
    gpus = (config(scout).get("machine") or {}).get("gpus") or ()
    versions = [gpu.get("compute_capability") for gpu in gpus]
    known = [float(version) for version in versions if version]
    return device(scout) == "cuda" and bool(known) and max(known) < _BF16_SINCE
