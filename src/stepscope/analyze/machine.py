"""What the machine did during a run: GPU, host, memory."""

import math
from typing import Any

import numpy as np

from stepscope.analyze.steps import Rows, Steps
from stepscope.hardware.nvml import throttle_reasons
from stepscope.stats.series import Bools


def gpu(
    run: dict[str, Any], facts: Any, samples: Rows, steps: Steps, use: Bools, window: Any
) -> dict[str, Any] | None:
    """The GPU's part; None where the program used none."""
    memory = facts["memory"][-1] if facts["memory"] else {}
    if "peak_allocated_bytes" not in memory:
        return None
    device: dict[str, Any] = next(iter(run.get("machine", {}).get("gpus") or []), {})
    steady = _during(samples, steps, use)
    energy_j, energy_per_step_j = _energy(samples, steady, steps, use)
    return {
        "name": device.get("name"),
        "busy_fraction": _busy(window, steps, use, steady),
        "utilization_percent": _mean(steady, "gpu_percent"),
        "peak_allocated_bytes": memory["peak_allocated_bytes"],
        "peak_reserved_bytes": memory["peak_reserved_bytes"],
        "total_bytes": device.get("memory_bytes"),
        "allocator_retries": memory.get("retries"),
        "energy_j": energy_j,
        "energy_j_per_step": energy_per_step_j,
        "power_w": _mean(steady, "gpu_power_w"),
        "sm_mhz": _mean(steady, "gpu_sm_mhz"),
        "temperature_c": _most(steady, "gpu_temperature_c"),
        "throttled_by": _throttled(steady),
        "other_processes": _most(steady, "gpu_other_processes"),
        "kernels_per_step": window.get("kernels") if window else None,
    }


def host(samples: Rows) -> dict[str, Any] | None:
    """CPU, RAM and disk traffic of the program and its workers; None when nothing was sampled."""
    if not samples.size:
        return None
    return {
        "cpu_percent": _mean(samples, "cpu_percent"),
        "peak_rss_bytes": _most(samples, "rss_bytes"),
        "processes": _most(samples, "processes"),
        "read_bytes": _most(samples, "read_bytes"),
        "write_bytes": _most(samples, "write_bytes"),
    }


def memory(facts: Any, samples: Rows) -> dict[str, Any]:
    """The peak and what it is made of. Bytes; None where not known."""
    fact = facts["memory"][-1] if facts["memory"] else {}
    state = fact.get("state", {})
    on = "cuda" if "peak_allocated_bytes" in fact else "cpu"
    peak = fact.get("peak_allocated_bytes") or _most(samples, "rss_bytes")
    owners: dict[str, Any] = dict(state.get(on, {}))
    owners["activations"] = fact.get("activations_bytes")
    if on == "cuda" and peak:
        known = sum(value for value in owners.values() if value)
        owners["rest"] = max(0, peak - known)
    return {"device": on, "peak_bytes": peak, "owners": owners}


def _during(samples: Rows, steps: Steps, use: Bools) -> Rows:
    """The samples taken while the steps in use ran; all of them when there are too few."""
    if not samples.size or not use.any():
        return samples
    begin = steps.end[use][0] - steps.duration[use][0]
    end = steps.end[use][-1] + (steps.behind if use[-1] else 0.0)
    chosen = samples[(samples["t_ns"] >= begin) & (samples["t_ns"] <= end)]
    return chosen if len(chosen) >= 3 else samples


def _busy(window: Any, steps: Steps, use: Bools, steady: Rows) -> float | None:
    """Kernel time per step from the window over the step time outside it, else NVML's sampling."""
    if window and window.get("busy_ms") and use.any():
        return min(1.0, float(window["busy_ms"] * 1e6 / steps.mean(use)))
    percent = _mean(steady, "gpu_percent")
    return None if percent is None else percent / 100


def _energy(
    samples: Rows, steady: Rows, steps: Steps, use: Bools
) -> tuple[float | None, float | None]:
    """Joules over the whole run, and per step while the steps in use ran."""
    if not samples.size or np.isnan(samples["gpu_energy_mj"]).all():
        return None, None
    total = float(np.nanmax(samples["gpu_energy_mj"]) - np.nanmin(samples["gpu_energy_mj"])) / 1e3
    seconds = float(steady["t_ns"][-1] - steady["t_ns"][0]) / 1e9
    spent = float(np.nanmax(steady["gpu_energy_mj"]) - np.nanmin(steady["gpu_energy_mj"])) / 1e3
    if seconds <= 0 or not use.any():
        return total, None
    return total, spent / seconds * steps.mean(use) / 1e9


def _throttled(steady: Rows) -> list[str]:
    mask = 0
    for value in steady["gpu_throttle"] if steady.size else ():
        if not math.isnan(value):
            mask |= int(value)
    return throttle_reasons(mask)


def _mean(samples: Rows, column: str) -> float | None:
    values = samples[column][~np.isnan(samples[column])] if samples.size else np.zeros(0)
    return float(values.mean()) if values.size else None


def _most(samples: Rows, column: str) -> float | None:
    values = samples[column][~np.isnan(samples[column])] if samples.size else np.zeros(0)
    return float(values.max()) if values.size else None
