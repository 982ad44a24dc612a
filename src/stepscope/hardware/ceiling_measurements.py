"""The measurements behind the ceilings: the best this device can do, timed warm and repeatedly on
the device's clock. They need torch.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median, quantiles
from typing import Any, Final

from stepscope.hardware.ceiling_cache import Ceiling

REPEATS: Final = (5, 50)  # at least, at most


@dataclass(frozen=True)
class Repeats:
    """Seconds of each repeat, during warm-up and after."""

    warm_s: list[float]
    steady_s: list[float]


def summarise(repeats: Repeats, size: int, value_of: Callable[[float], float]) -> Ceiling:
    """A result from repeats; `value_of` converts seconds to the unit."""
    seconds = repeats.steady_s
    middle = median(seconds)
    deciles = quantiles(seconds, n=10, method="inclusive") if len(seconds) > 1 else [middle] * 9
    return Ceiling(
        value=value_of(middle),
        spread=(deciles[8] - deciles[0]) / middle,
        best=value_of(min(seconds + repeats.warm_s)),
        repeats=len(seconds),
        size=size,
    )


def time_repeats(action: Callable[[], object], device: str, budget_s: float) -> Repeats:
    """Repeat for `budget_s`, after a third of that as warm-up, so that clocks settle."""

    def repeat(budget_s: float, least: int, most: float) -> list[float]:
        until = time.perf_counter() + budget_s
        seconds: list[float] = []
        while len(seconds) < least or (len(seconds) < most and time.perf_counter() < until):
            seconds.append(_time_once(action, device))
        return seconds

    return Repeats(repeat(budget_s / 3, 2, math.inf), repeat(budget_s, *REPEATS))


def _time_once(action: Callable[[], object], device: str) -> float:
    """Seconds one call takes: between two CUDA events on a GPU, else by the wall clock."""
    if device == "cpu":
        began = time.perf_counter()
        action()
        return time.perf_counter() - began
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    action()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1000


Measurement = Callable[[float], Ceiling]

_FIRST_SIZE: Final = {"cuda": 2048, "cpu": 1024}
_LARGEST_SIZE: Final = 8192
_LAUNCHES: Final = 1000
_COPY_BYTES: Final = {"cuda": 1 << 30, "cpu": 1 << 28}
_TRANSFER_BYTES: Final = 1 << 25  # about one batch: larger ones exceed the host's caches


def measurements_for(device: str) -> dict[str, Measurement]:
    """The measurements a device supports, by name; the name ends in the unit."""
    import torch

    cuda = device == "cuda"
    ampere = cuda and torch.cuda.get_device_capability()[0] >= 8
    matmul: Any = partial(partial, measure_matmul, device)
    measurements: dict[str, Measurement | None] = {
        "matmul_fp32_tflops": matmul("float32", "highest"),
        "matmul_tf32_tflops": matmul("float32", "high") if ampere else None,
        "matmul_fp16_tflops": matmul("float16", "highest") if cuda else None,
        "matmul_bf16_tflops": matmul("bfloat16", "highest") if ampere or not cuda else None,
        "memory_gb_per_s": partial(measure_memory, device),
        "h2d_pinned_gb_per_s": partial(measure_transfer, True, True) if cuda else None,
        "h2d_pageable_gb_per_s": partial(measure_transfer, True, False) if cuda else None,
        "d2h_pinned_gb_per_s": partial(measure_transfer, False, True) if cuda else None,
        "launch_us": partial(measure_launch, device),
    }
    return {name: measure for name, measure in measurements.items() if measure is not None}


def measure_matmul(device: str, dtype: str, precision: str, budget_s: float) -> Ceiling:
    """TFLOP/s of a square product of random matrices, as large as the budget and memory allow."""
    import torch

    torch.set_float32_matmul_precision(precision)
    size = _FIRST_SIZE[device]
    action = _product(device, dtype, size)
    once_s = min(_time_once(action, device) for _ in range(4))
    larger = matrix_size(size, once_s, budget_s)
    if larger > size and 4 * larger**2 * 4 < _free_bytes(device):
        size, action = larger, _product(device, dtype, larger)
    repeats = time_repeats(action, device, budget_s)
    return summarise(repeats, size, lambda s: 2 * size**3 / s / 1e12)


def matrix_size(size: int, once_s: float, budget_s: float) -> int:
    """The largest size, doubling from one that took `once_s`, that fits ten times into the
    budget."""
    while size < _LARGEST_SIZE and once_s * 8 * 10 <= budget_s:
        size, once_s = size * 2, once_s * 8
    return size


def _product(device: str, dtype: str, size: int) -> Callable[[], object]:
    import torch

    kind = getattr(torch, dtype)
    a, b = (torch.randn(size, size, device=device).to(kind) for _ in range(2))
    out = torch.empty_like(a)
    return lambda: torch.matmul(a, b, out=out)


def measure_memory(device: str, budget_s: float) -> Ceiling:
    """GB/s of the device's memory while copying, counting bytes read and written."""
    import torch

    size = min(_COPY_BYTES[device], _free_bytes(device) // 4)
    source = torch.randint(256, (size,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    repeats = time_repeats(lambda: target.copy_(source), device, budget_s)
    return summarise(repeats, size, lambda s: 2 * size / s / 1e9)


def measure_transfer(to_device: bool, pinned: bool, budget_s: float) -> Ceiling:
    """GB/s between host and GPU memory, for about a batch of images."""
    import torch

    size = min(_TRANSFER_BYTES, _free_bytes("cuda") // 4)
    host = torch.randint(256, (size,), dtype=torch.uint8)
    if pinned:
        host = host.pin_memory()
    other: Any = torch.empty(size, dtype=torch.uint8, device="cuda")
    source, target = (host, other) if to_device else (other, host)
    repeats = time_repeats(lambda: target.copy_(source, non_blocking=True), "cuda", budget_s)
    return summarise(repeats, size, lambda s: size / s / 1e9)


def measure_launch(device: str, budget_s: float) -> Ceiling:
    """Microseconds the host needs to call one operator on a one-element tensor."""
    import torch

    number = torch.zeros(1, device=device)

    def many() -> None:
        for _ in range(_LAUNCHES):
            number.add_(1)
        if device == "cuda":
            torch.cuda.synchronize()

    # The host's clock, not the device's: the host launches.
    repeats = time_repeats(many, "cpu", budget_s)
    return summarise(repeats, _LAUNCHES, lambda s: s / _LAUNCHES * 1e6)


def _free_bytes(device: str) -> int:
    import psutil
    import torch

    if device == "cuda":
        return int(torch.cuda.mem_get_info()[0])
    return int(psutil.virtual_memory().available)
