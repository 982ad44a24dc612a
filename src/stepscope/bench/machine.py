"""What the machine did while a point was measured: GPU, cores, energy, throttling; and the ceilings
behind an MFU."""

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.bench.record import MachineUse, Tell
from stepscope.hardware.gpus import throttle_reasons
from stepscope.hardware.processor import RaplCounter
from stepscope.record.errors import StepscopeError


@dataclass(slots=True)
class Gauges:
    """Running totals about ten times a second: CLOCK_MONOTONIC nanoseconds, seconds of CPU time
    used by the whole machine, joules of its processors (None: not readable)."""

    t_ns: list[int] = field(default_factory=list)
    busy_s: list[float] = field(default_factory=list)
    host_j: list[float | None] = field(default_factory=list)
    _rapl: RaplCounter = field(default_factory=RaplCounter)

    def read(self) -> None:
        """Take one reading of all."""
        import psutil

        times = psutil.cpu_times()
        idle = times.idle + getattr(times, "iowait", 0.0)
        doubled = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
        self.t_ns.append(time.monotonic_ns())
        self.busy_s.append(sum(times) - idle - doubled)
        self.host_j.append(self._rapl.joules())


_FEWEST = 3  # samples; fewer say nothing about a section
_COVERED = 0.8  # of a section must be covered by readings of a running total
Floats = npt.NDArray[np.float64]


def machine_during(
    samples: npt.NDArray[Any], gauges: Gauges, device: str, started_ns: float, ended_ns: float
) -> MachineUse:
    """The machine's use during a section; fields with too few samples are None."""
    known = chosen = samples[samples["t_ns"] > 0] if samples.size else samples
    if known.size:
        chosen = known[(known["t_ns"] >= started_ns) & (known["t_ns"] <= ended_ns)]
    enough = len(chosen) >= _FEWEST

    def mean(name: str) -> float | None:
        values = _column(chosen, name)
        return float(values.mean()) if enough and values.size else None

    busy, own = mean("gpu_percent"), mean("cpu_percent")
    others = _column(chosen, "gpu_other_processes")
    read = [(t, j) for t, j in zip(gauges.t_ns, gauges.host_j, strict=True) if j is not None]
    host_j = None
    if len(read) >= _FEWEST:
        read_ns, joules = np.array(read, dtype=np.float64).T
        host_j = rise_within(read_ns, joules, started_ns, ended_ns)
    gpu_mj = _counted(known, "gpu_energy_mj", started_ns, ended_ns) if enough else None
    times = np.array(gauges.t_ns, dtype=np.float64)
    busy_s = rise_within(times, np.array(gauges.busy_s), started_ns, ended_ns)
    busy_cores = None if busy_s is None else busy_s / (ended_ns - started_ns) * 1e9
    throttle = np.bitwise_or.reduce(_column(chosen, "gpu_throttle").astype(np.int64))
    return MachineUse(
        gpu_busy=None if busy is None else busy / 100,
        energy_j=host_j if device != "cuda" else None if gpu_mj is None else gpu_mj / 1e3,
        host_energy_j=host_j,
        power_w=mean("gpu_power_w"),
        sm_mhz=mean("gpu_sm_mhz"),
        throttle=tuple(throttle_reasons(int(throttle))),
        other_processes=int(others.max()) if others.size else None,
        host_busy=None if busy_cores is None else min(1.0, busy_cores / (os.cpu_count() or 1)),
        own_cores=None if own is None else own / 100,
        other_cores=(
            None if busy_cores is None or own is None else max(0.0, busy_cores - own / 100)
        ),
    )


def rise_within(times: Floats, totals: Floats, started: float, ended: float) -> float | None:
    """How much a running total rose in a section; None if readings cover too little of it. Small
    gaps before the first and after the last reading are extrapolated."""
    if times.size < 2 or ended <= started:
        return None
    first, last = max(started, float(times[0])), min(ended, float(times[-1]))
    if last - first < _COVERED * (ended - started):
        return None
    rise = float(np.interp(last, times, totals) - np.interp(first, times, totals))
    return rise * (ended - started) / (last - first)


def _counted(samples: Any, column: str, started: float, ended: float) -> float | None:
    """How much a counter of the sampler rose. NVML updates its counters only now and then, so the
    total is taken at the readings where it changed."""
    values, times = samples[column], samples["t_ns"]
    fine = ~np.isnan(values)
    values, times = values[fine], times[fine]
    fresh = np.concatenate([[True], np.diff(values) != 0]) if values.size else fine[:0]
    fresh[-1:] = True
    return rise_within(times[fresh], values[fresh], started, ended)


def _column(samples: Any, name: str) -> Floats:
    if not samples.size:
        return np.zeros(0)
    values: Floats = samples[name]
    return values[~np.isnan(values)]


def matmul_ceilings(
    devices: Iterable[str], tell: Tell
) -> tuple[dict[str, dict[str, float]], list[str]]:
    """(TFLOP/s by device and arithmetic, notes on what is missing). If one is unknown, all ceilings
    of the device are measured, so that the cache is complete."""
    found: dict[str, dict[str, float]] = {}
    notes = []
    for device in devices:
        ceilings, problem = _ceilings(device, tell)
        found[device] = {
            name.removeprefix("matmul_").removesuffix("_tflops"): value
            for name, value in ceilings.items()
            if name.startswith("matmul_")
        }
        if problem:
            notes.append(f"no MFU on {device}: {problem}")
    return found, notes


def device_ceilings(device: str, tell: Tell) -> dict[str, float]:
    """Measured ceilings by name, from the cache or measured now; empty if that fails."""
    found, problem = _ceilings(device, tell)
    if problem:
        tell(f"ceilings of {device} unknown: {problem}")
    return found


def _ceilings(device: str, tell: Tell) -> tuple[dict[str, float], str | None]:
    """(ceilings by name, why there are none)."""
    from stepscope.hardware.ceiling_cache import load_ceilings, save_ceilings
    from stepscope.hardware.ceilings import device_key, measure_ceilings
    from stepscope.hardware.gpus import visible_gpu_index

    key = device_key(device, visible_gpu_index(os.environ) if device == "cuda" else None)
    document = load_ceilings(key)
    if document is None:
        tell(f"measuring the ceilings of {device}, once; this takes some seconds")
        try:
            document = measure_ceilings(device, key)
            save_ceilings(document)
        except StepscopeError as problem:
            return {}, str(problem)
        except OSError:
            pass  # not cached, but valid for this run
    return {name: one.value for name, one in document.ceilings.items()} if document else {}, None
