"""A function called with one batch size: its time and memory, in this very process."""

import gc
import time
from collections.abc import Callable
from math import ceil
from typing import Any, Final

from stepscope.probe.out_of_memory import is_out_of_memory
from stepscope.tune.batch_measured import OUT_OF_MEMORY, Measured
from stepscope.tune.trial import OK

Step = Callable[[int], Any]

_BLOCKS: Final = 4
_MOST_CALLS: Final = 1000


def call_with(
    fn: Step, batch: int, seconds: float, device: str | None = None
) -> tuple[Measured, str]:
    """Two calls to warm up, then four blocks of calls, each of a quarter of `seconds` at least.

    Also the device they were made on: `device`, else cuda where they allocated there, else cpu.
    Memory that ran out is an answer; every other exception is the caller's.
    """
    import torch

    begun = time.perf_counter()
    gpu = _Gpu(torch, device)
    reset_host_peak()
    times: list[float] = []
    calls, status, why = 0, OK, None
    try:
        times, calls = _timed(fn, batch, seconds, gpu)
    except Exception as error:
        if not is_out_of_memory(type(error).__name__, str(error)):
            raise
        status, why = OUT_OF_MEMORY, _first_line(error)
    used, memory = device or ("cuda" if gpu.grew() else "cpu"), host_peak()
    if used.startswith("cuda"):
        memory = gpu.peak()
    gc.collect()
    gpu.free()
    spent = time.perf_counter() - begun
    got = Measured(batch, status, why, tuple(times), float(batch), memory, None, calls, spent)
    return got, used


class _Gpu:
    """The GPU that a function may use; nothing is asked of CUDA before the function did."""

    def __init__(self, torch: Any, device: str | None) -> None:
        self._cuda = torch.cuda
        self._device = device if device is not None and device.startswith("cuda") else None
        self._before = 0
        if self._cuda.is_initialized():
            self._cuda.reset_peak_memory_stats(self._device)
            self._before = self._cuda.memory_allocated(self._device)

    def wait(self) -> None:
        if self._cuda.is_initialized():
            self._cuda.synchronize(self._device)

    def peak(self) -> float | None:
        """Bytes; None where CUDA was never used."""
        if not self._cuda.is_initialized():
            return None
        return float(self._cuda.max_memory_allocated(self._device))

    def grew(self) -> bool:
        """Whether more was allocated than before."""
        return (self.peak() or 0.0) > self._before

    def free(self) -> None:
        """Give what is cached back, so that the next size finds it."""
        if self._cuda.is_initialized():
            self._cuda.empty_cache()


def _timed(fn: Step, batch: int, seconds: float, gpu: _Gpu) -> tuple[list[float], int]:
    """Milliseconds of a call in each block, and how many calls there were."""

    def block(calls: int) -> float:
        begun = time.perf_counter()
        for _ in range(calls):
            fn(batch)
        gpu.wait()  # once a block: within one, calls may overlap
        return (time.perf_counter() - begun) * 1e3 / calls

    block(1)
    second = block(1)
    each = min(_MOST_CALLS, max(1, ceil(seconds * 1e3 / _BLOCKS / max(second, 1e-3))))
    return [block(each) for _ in range(_BLOCKS)], 2 + _BLOCKS * each


def _first_line(error: BaseException) -> str | None:
    return str(error).strip().split("\n")[0] or None


def reset_host_peak() -> None:
    """Have the kernel forget the most memory this process ever held, where it can."""
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    except OSError:
        pass


def host_peak() -> float | None:
    """The most bytes this process held since then; None where the kernel does not tell."""
    try:
        with open("/proc/self/status") as file:
            for line in file:
                if line.startswith("VmHWM:"):
                    return float(line.split()[1]) * 1024
    except OSError:
        return None
    return None
