"""What a side takes besides time: memory, energy, the use of the GPU."""

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

from stepscope.compare.sides import Document, Side

Number = float | None
Look = Callable[[Side], Number]


def amounts(base: Sequence[Side], other: Sequence[Side]) -> list[dict[str, Any]]:
    """Those known of both sides: `name`, `unit`, `base`, `other`. Peaks are the highest of a side,
    the rest means."""
    found = []
    for name, unit, how, look in _AMOUNTS:
        ours, theirs = (_over(sides, look, how) for sides in (base, other))
        if ours is not None and theirs is not None:
            found.append({"name": name, "unit": unit, "base": ours, "other": theirs})
    return found


def _over(sides: Sequence[Side], look: Look, how: Callable[[list[float]], float]) -> Number:
    values = [value for side in sides if (value := look(side)) is not None]
    return float(how(values)) if values else None


def _memory(side: Side) -> Number:
    document = side.document
    if side.kind == "run":
        return _number(document["memory"], "peak_bytes")
    if side.kind == "tune":
        return _number(_tuned(document), "peak_memory_bytes")
    return _only(document, "peak_memory_bytes") if side.kind == "bench" else _recorded(document)


def _recorded(document: Document) -> Number:
    uses = [use for use in document.get("memory") or () if use.get("peak_bytes")]
    return max((float(use["peak_bytes"]) for use in uses), default=None)


def _reserved(side: Side) -> Number:
    return _number(side.document.get("gpu"), "peak_reserved_bytes") if side.kind == "run" else None


def _energy(side: Side) -> Number:
    if side.kind == "tune":
        return _number(_tuned(side.document), "energy_j_per_step")
    return _number(side.document.get("gpu"), "energy_j_per_step") if side.kind == "run" else None


def _busy(side: Side) -> Number:
    document = side.document
    if side.kind == "run":
        return _number(document.get("gpu"), "busy_fraction")
    if side.kind == "tune":
        return _number(_tuned(document), "gpu_busy")
    return _only(document, "gpu_busy") if side.kind == "bench" else None


def _kernels(side: Side) -> Number:
    if side.kind == "run":
        return _number(side.document.get("gpu"), "kernels_per_step")
    if side.kind != "trace" or not side.document["source"]["has"]["device"]:
        return None
    return float(side.document["launch"]["kernels"] / side.document["steps"]["count"])


def _tuned(document: Document) -> Document:
    """What the last word of a tune measured: with its fixes, else the program as it is."""
    measured = (document.get("final") or {}).get("measured") or {}
    found: Document = measured.get("ladder") or document.get("baseline") or {}
    return found


def _only(document: Document, name: str) -> Number:
    """Of a bench with a single point."""
    points = list(document.get("points") or ())
    return _number(points[0], name) if len(points) == 1 else None


def _number(document: Document | None, name: str) -> Number:
    value = (document or {}).get(name)
    return None if value is None else float(value)


_AMOUNTS: tuple[tuple[str, str, Callable[[list[float]], float], Look], ...] = (
    ("peak memory", "bytes", max, _memory),
    ("reserved memory", "bytes", max, _reserved),
    ("energy per step", "J", fmean, _energy),
    ("GPU busy", "share", fmean, _busy),
    ("kernels per step", "", fmean, _kernels),
)
