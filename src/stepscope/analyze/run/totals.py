"""Totals of a run: every second from launch to end by category; GPU, host and memory use."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from stepscope.analyze.run.document import (
    CategoryPlace,
    GpuTotals,
    HostTotals,
    HotSite,
    MemoryTotals,
)
from stepscope.analyze.run.steps import Rows, Steps
from stepscope.analyze.timeline.document import TraceAnalysis
from stepscope.hardware.gpus import throttle_reasons
from stepscope.hardware.process_tree import QUIET_SHARE
from stepscope.record.errors import BrokenRun
from stepscope.record.facts import Facts, ImportFact, MemoryFact, ProcessFact
from stepscope.record.run import RunInfo, RunRecord
from stepscope.stats.series import Bools
from stepscope.store.json_file import read_finite_json
from stepscope.store.memory_lines import CPU_LINES, CUDA_LINES, MemoryLines

CATEGORIES_IN_ORDER = (
    *("startup", "imports", "setup", "compile", "warmup"),
    *("training", "evaluation", "checkpoint", "epoch_start", "window", "shutdown"),
)
_SITES = {
    "compile": "compile",
    "training": "optimizer",
    "inference": "evaluation",
    "evaluation": "evaluation",
    "checkpoint": "save",
    "epoch_start": "epoch_start",
}


def wall_time_by_category(
    run: RunInfo, facts: Facts, steps: Steps, warmup_steps: int, rows: Rows
) -> dict[str, float]:
    """Seconds by category in the order of a run; they add up to its wall time.

    Of a run that is still under way, up to the last row written.
    """
    process = next(iter(facts.all(ProcessFact)), None)
    last = float(rows["end_ns"].max()) if rows.size else 0.0
    begin = float(run.started_ns or (process.booted_ns if process else 0))
    end = float(run.ended_ns or last)
    if not begin or end <= begin:
        return {}
    found = dict.fromkeys(CATEGORIES_IN_ORDER, 0.0) | steps.account
    if steps.what not in ("training", "nothing"):
        found[steps.what] = found.pop("training")
    main = steps.what if steps.what != "nothing" else "training"
    before = np.arange(len(steps)) < warmup_steps
    found["warmup"] = float(steps.duration[before & ~steps.in_window].sum())
    found["window"] += float(steps.duration[steps.in_window].sum())
    found[main] = float(steps.duration[~before & ~steps.in_window].sum()) + steps.behind
    if rows.size:
        found["shutdown"] += max(0.0, end - last)
    else:
        found["setup"] = end - begin
    if process is not None:  # the time before the first row: interpreter, imports, preparation
        imports = (f for f in facts.all(ImportFact) if f.begun_ns < begin + found["setup"])
        imported = sum(float(fact.elapsed_ns) for fact in imports)
        found["startup"] = min(float(process.booted_ns) - begin, found["setup"])
        found["setup"] -= found["startup"]
        found["imports"] = min(imported, found["setup"])
        found["setup"] -= found["imports"]
    return {name: value / 1e9 for name, value in found.items()}


def category_places(
    sites: Sequence[HotSite], facts: Facts, steps: Steps
) -> dict[str, CategoryPlace]:
    """The source line behind each category, where there is one; for imports, the slowest before
    the first step ended: a recording imports parts of torch later."""
    found = {}
    for category, what in _SITES.items():
        if site := next((s for s in sites if s.what == what), None):
            found[category] = CategoryPlace(file=site.file, line=site.line)
    until = float(steps.end[0]) if len(steps) else np.inf
    if imports := [fact for fact in facts.all(ImportFact) if fact.begun_ns < until]:
        slowest = max(imports, key=lambda fact: fact.elapsed_ns)
        others = [fact for fact in imports if fact.name.partition(".")[0] != "torch"]
        ordered = sorted(others, key=lambda fact: fact.elapsed_ns)
        found["imports"] = CategoryPlace(
            module=slowest.name,
            seconds=slowest.elapsed_ns / 1e9,
            library=ordered[-1].name if ordered else None,
            libraries_s=sum(fact.elapsed_ns for fact in others) / 1e9,
        )
    return found


def gpu_totals(
    run: RunRecord,
    facts: Facts,
    samples: Rows,
    steps: Steps,
    use: Bools,
    window: TraceAnalysis | None,
) -> GpuTotals | None:
    """The GPU's totals; None if the program used none."""
    memory = facts.last(MemoryFact)
    if memory is None or memory.peak_allocated_bytes is None:
        return None
    device: dict[str, Any] = next(iter((run.machine or {}).get("gpus") or []), {})
    steady = _during(samples, steps, use)
    throttling = _known(steady, "gpu_throttle").astype(int)
    energy_j, energy_per_step_j = _energy(samples, steady, steps, use)
    return GpuTotals(
        name=device.get("name"),
        busy_fraction=_busy(window, steps, use, steady),
        utilization_percent=_mean(steady, "gpu_percent"),
        peak_allocated_bytes=memory.peak_allocated_bytes,
        peak_reserved_bytes=memory.peak_reserved_bytes,
        total_bytes=device.get("memory_bytes"),
        allocator_retries=memory.retries,
        energy_j=energy_j,
        energy_j_per_step=energy_per_step_j,
        power_w=_mean(steady, "gpu_power_w"),
        sm_mhz=_mean(steady, "gpu_sm_mhz"),
        temperature_c=_most(steady, "gpu_temperature_c"),
        throttled_by=throttle_reasons(int(np.bitwise_or.reduce(throttling))),
        other_processes=_most(steady, "gpu_other_processes"),
        kernels_per_step=window.launch.kernels / window.steps.count if window else None,
    )


def _during(samples: Rows, steps: Steps, use: Bools) -> Rows:
    """Those taken while the steps in use ran; all where these are too few."""
    if not samples.size or not use.any():
        return samples
    begin = steps.end[use][0] - steps.duration[use][0]
    end = steps.end[use][-1] + (steps.behind if use[-1] else 0.0)
    during = samples[(samples["t_ns"] >= begin) & (samples["t_ns"] <= end)]
    return during if len(during) >= 3 else samples


def host_totals(samples: Rows, steps: Steps, use: Bools) -> HostTotals | None:
    """None when nothing was sampled."""
    if not samples.size:
        return None
    others = _mean(_during(samples, steps, use), "other_cpu_percent")
    others = _mean(samples, "other_cpu_percent") if others is None else others
    return HostTotals(
        cpu_percent=_mean(samples, "cpu_percent"),
        peak_rss_bytes=_most(samples, "rss_bytes"),
        processes=_most(samples, "processes"),
        read_bytes=_most(samples, "read_bytes"),
        write_bytes=_most(samples, "write_bytes"),
        other_cpu_percent=None if others is None else max(0.0, others),
    )


def free_cores(usable: float, host: HostTotals | None) -> float:
    """The cores that others leave to the program, at least one; 0 if unknown."""
    others = (host.other_cpu_percent or 0.0) / 100 if host else 0.0
    if others <= QUIET_SHARE * usable:
        return usable
    return max(1.0, round(usable - others, 1))


def memory_totals(facts: Facts, samples: Rows, lines: MemoryLines | None = None) -> MemoryTotals:
    """The peak and what it is made of. Bytes; None where not known."""
    fact = facts.last(MemoryFact) or MemoryFact(state={}, activations_bytes=None)
    on = "cpu" if fact.peak_allocated_bytes is None else "cuda"
    peak = fact.peak_allocated_bytes or _most(samples, "rss_bytes")
    owners: dict[str, int | None] = dict(fact.state.get(on, {}))
    owners["activations"] = fact.activations_bytes
    if on == "cuda" and peak:
        known = sum(value for value in owners.values() if value)
        owners["rest"] = max(0, int(peak) - known)
    return MemoryTotals(on, peak, owners, lines)


def busy_ms_per_step(window: TraceAnalysis) -> float | None:
    """How long the device worked for a recorded step; None without one. Work that outlasted the
    last step's mark counts."""
    whole = [device.whole_ns for device in window.devices]
    busy = max((one.wall - one.idle for one in whole), default=None)
    return None if busy is None else busy / window.steps.count / 1e6


def _busy(window: TraceAnalysis | None, steps: Steps, use: Bools, steady: Rows) -> float | None:
    """Kernel time per step from the window over the step time outside it, else NVML's sampling."""
    busy = busy_ms_per_step(window) if window else None
    if busy and use.any():
        return min(1.0, busy * 1e6 / steps.mean(use))
    percent = _mean(steady, "gpu_percent")
    return None if percent is None else percent / 100


def _energy(
    samples: Rows, steady: Rows, steps: Steps, use: Bools
) -> tuple[float | None, float | None]:
    """Joules over the whole run, and per step while the steps in use ran."""
    if not samples.size or np.isnan(samples["gpu_energy_mj"]).all():
        return None, None
    counted = (rows["gpu_energy_mj"] for rows in (samples, steady))
    total, spent = (float(np.nanmax(mj) - np.nanmin(mj)) / 1e3 for mj in counted)
    seconds = float(steady["t_ns"][-1] - steady["t_ns"][0]) / 1e9
    if seconds <= 0 or not use.any():
        return total, None
    return total, spent / seconds * steps.mean(use) / 1e9


def _known(samples: Rows, column: str) -> Rows:
    if not samples.size or column not in (samples.dtype.names or ()):
        return np.zeros(0)
    values: Rows = samples[column]
    return values[~np.isnan(values)]


def _mean(samples: Rows, column: str) -> float | None:
    values = _known(samples, column)
    return float(values.mean()) if values.size else None


def _most(samples: Rows, column: str) -> float | None:
    values = _known(samples, column)
    return float(values.max()) if values.size else None


def memory_owners(folder: Path) -> MemoryLines | None:
    """Owners of the peak and of growth, CUDA's where there are any, else the host's.

    None when `--memory` recorded nothing; BrokenRun when it cannot be read.
    """
    for path in (folder / CUDA_LINES, folder / CPU_LINES):
        try:
            return msgspec.convert(read_finite_json(path), MemoryLines)
        except FileNotFoundError:
            continue
        except ValueError as error:
            raise BrokenRun(f"{path} cannot be read: {error}") from None
    return None
