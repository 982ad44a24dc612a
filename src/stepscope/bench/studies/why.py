"""Why one kind of operator gains more from a GPU than another, from the two devices' ceilings."""

from collections.abc import Mapping
from typing import Any, Final

from stepscope.bench.studies.kinds import KindTime
from stepscope.hardware.ceiling_names import quantity

Ceilings = Mapping[str, float]
"""Measured ceilings by name, as in `hardware.ceilings`."""

_MATRIX: Final = ("convolution", "matmul", "attention")
_MEMORY: Final = ("normalisation", "pointwise", "optimizer")
_LATENCY_US: Final = 10.0
"""Kernels shorter than this spend much of it on starting and ending."""
_REACHED: Final = 0.5


def explain(
    kind: str,
    speedup: float | None,
    gpu: KindTime | None,
    ceilings: tuple[Ceilings, Ceilings],
    arithmetic: tuple[str, str],
) -> dict[str, Any]:
    """`bound`, the speedup that is `possible` by the ceilings (None: not known), and `why`."""
    kernel_us = gpu.ms * 1e3 / gpu.calls if gpu and gpu.calls else None
    small = _small(gpu, kernel_us)
    if kind == "recurrent":
        words = "each time step waits for the one before it"
        return _told("sequence", None, "; ".join(filter(None, [words, small])), kernel_us)
    if kind in _MATRIX:
        names = tuple(f"matmul_{which}_tflops" for which in arithmetic)
        bound, unit, notes = "matrix products", "TFLOP/s", f" ({arithmetic[1]}, {arithmetic[0]})"
    elif kind in _MEMORY:
        names = ("memory_gb_per_s", "memory_gb_per_s")
        bound, unit, notes = "memory", "GB/s", ""
    else:
        return _told(None, None, small or "", kernel_us)
    slow, fast = ceilings[0].get(names[0]), ceilings[1].get(names[1])
    if not slow or not fast:
        return _told(bound, None, small or f"bound by {bound}", kernel_us)
    possible = fast / slow
    words = f"{_rate(fast, unit)} against {_rate(slow, unit)}{notes}: {possible:,.0f}× to be had"
    if speedup is not None and speedup < _REACHED * possible and small:
        words += f"; {small}"
    return _told(bound, possible, words, kernel_us)


def arithmetic(kind: str, fastest: str, fixes: tuple[str, ...]) -> str:
    """What a kind computes in: PyTorch allows TF32 in convolutions, in products only if asked."""
    asked = any(fix in ("tf32", "tf32=on") for fix in fixes)
    if fastest == "tf32" and kind in ("matmul", "attention") and not asked:
        return "fp32"
    return fastest


def _small(gpu: KindTime | None, kernel_us: float | None) -> str | None:
    if gpu is None or kernel_us is None or kernel_us >= _LATENCY_US:
        return None
    return f"{gpu.calls:,.0f} kernels of {kernel_us:.1f} µs, too short to fill the GPU"


def _rate(value: float, unit: str) -> str:
    return " ".join(quantity(value, unit))


def _told(
    bound: str | None, possible: float | None, why: str, kernel_us: float | None
) -> dict[str, Any]:
    return {"bound": bound, "possible": possible, "why": why, "kernel_us": kernel_us}
