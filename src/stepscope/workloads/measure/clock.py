"""Clocks for the calls of a loop: of the host, or of the CUDA device that does the work."""

from itertools import pairwise
from time import perf_counter
from typing import Any


class HostClock:
    """`time.perf_counter` at the end of every call. A stretch is a series of calls with nothing in
    between."""

    name = "perf_counter"

    def __init__(self) -> None:
        self._stretches: list[list[Any]] = []

    def begin(self) -> None:
        """Wait until the device is idle; a stretch begins here."""
        self._stretches.append([perf_counter()])

    def mark(self) -> None:
        """A call ends here, as the device sees it."""
        self._stretches[-1].append(perf_counter())

    def lately(self) -> float | None:
        """Seconds of the latest call with a known end; waits for at most one call."""
        stretch = self._stretches[-1]
        return stretch[-1] - stretch[-2] if len(stretch) > 1 else None

    def wait(self) -> None:
        """Wait until the device has finished everything marked; on the host it already has."""

    def reserve(self, marks: int) -> None:
        """Prepare for this many marks, so that they cost little."""

    def take(self) -> list[float]:
        """Seconds of each call since the last `take`. Waits."""
        stretches, self._stretches = self._stretches, []
        return [after - before for s in stretches for before, after in pairwise(s)]


class UntimedClock(HostClock):
    """A clock for a loop that is not measured: single calls are not timed."""

    def __init__(self, device: Any) -> None:
        super().__init__()
        self._device = device

    def begin(self) -> None:
        """Does nothing: earlier work has been waited for."""

    def mark(self) -> None:
        """Does nothing."""

    def wait(self) -> None:
        if self._device.type == "cuda":
            import torch

            event = torch.cuda.Event()
            event.record()
            event.synchronize()


class CudaClock(HostClock):
    """Records an event on the current stream at the end of every call, without blocking the host.
    Waits use events, since the `nosync` fix removes `torch.cuda.synchronize`."""

    name = "cuda events"

    def __init__(self) -> None:
        super().__init__()
        self._free: list[Any] = []

    def begin(self) -> None:
        start = self._record()
        start.synchronize()
        start.record()
        self._stretches.append([start])

    def mark(self) -> None:
        self._stretches[-1].append(self._record())

    def lately(self) -> float | None:
        stretch = self._stretches[-1]
        if len(stretch) < 3:
            return None
        stretch[-2].synchronize()
        return float(stretch[-3].elapsed_time(stretch[-2])) / 1e3

    def wait(self) -> None:
        if self._stretches:
            self._stretches[-1][-1].synchronize()

    def reserve(self, marks: int) -> None:
        while len(self._free) < marks:
            self._free.append(self._new())

    def take(self) -> list[float]:
        self.wait()
        stretches, self._stretches = self._stretches, []
        self._free.extend(event for s in stretches for event in s)
        ends = (ends for s in stretches for ends in pairwise(s))
        return [float(before.elapsed_time(after)) / 1e3 for before, after in ends]

    def _record(self) -> Any:
        event = self._free.pop() if self._free else self._new()
        event.record()
        return event

    def _new(self) -> Any:
        """An event, recorded once, because CUDA creates it only then."""
        import torch

        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def clock_for(device: Any) -> HostClock:
    """CUDA events on CUDA; elsewhere calls return when they are done."""
    return CudaClock() if device.type == "cuda" else HostClock()
