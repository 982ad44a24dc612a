"""Records of measurements written by hand."""

from typing import Any

from msgspec import convert, to_builtins

from stepscope.bench.grid import Point
from stepscope.bench.record import ProcessRecord

MACHINE = {
    "gpu_busy": None,
    "energy_j": None,
    "host_energy_j": None,
    "power_w": None,
    "sm_mhz": None,
    "throttle": [],
    "other_processes": None,
    "host_busy": 0.5,
    "own_cores": 1.0,
    "other_cores": 0.0,
}


def measured(point: Point, step_ms: float = 10.0, **changes: Any) -> dict[str, Any]:
    """What the program of a point would have written: a hundred steps of nearly that length."""
    series = [step_ms * (1 + 0.001 * (step % 5 - 2)) for step in range(100)]
    return {
        "schema": "stepscope.measured/1",
        "model": point.model,
        "mode": point.mode,
        "batch": point.batch,
        "device": point.device,
        "device_name": "a device",
        "torch": "2.13.0",
        "parameters": 1000,
        "flops_per_sample": 2e9,
        "flops_why_not": None,
        "arithmetic": "fp32",
        "clock": "perf_counter",
        "tokens_per_sample": None,
        "warmup": {"calls": 12, "seconds": 0.4, "settled": True, "first_call_s": 0.1},
        "first_calls_extra_s": 0.2,
        "started_ns": 1_000_000_000,
        "ended_ns": 1_000_000_000 + int(step_ms * 1e8),
        "elapsed_s": step_ms / 10,
        "calls": 100,
        "samples": 100 * point.batch,
        "series_ms": series,
        "peak_memory_bytes": 3 << 20,
        "reserved_memory_bytes": None,
        "notes": [],
        "error": None,
        **changes,
    }


def record(point: Point, number: int = 1, step_ms: float = 10.0, **changes: Any) -> ProcessRecord:
    """A record of a process that went well in that round, but for the changes."""
    made = {
        "key": point.key(),
        "point": to_builtins(point),
        "status": "ok",
        "why": None,
        "fixes": [],
        "measured": measured(point, step_ms),
        "machine": dict(MACHINE),
        "seconds": 3.0,
        "exit_code": 0,
        "round": number,
        **changes,
    }
    return convert(made, ProcessRecord)


def failure(point: Point, number: int = 1, status: str = "failed", **changes: Any) -> ProcessRecord:
    """A record of a process that measured nothing."""
    bare = {"measured": None, "status": status, "why": "it broke", "exit_code": 1, **changes}
    return record(point, number, **bare)
