"""What a window's trace says about the device: how long it was busy in each step.

Kept beside the trace as `window.json`, since reading a trace takes a while.
"""

import gzip
import json
import zlib
from pathlib import Path
from typing import Any

CACHE = "window.json"
_DEVICE_WORK = {"kernel", "gpu_memcpy", "gpu_memset"}


def window_facts(folder: Path) -> dict[str, Any] | None:
    """`steps`, `busy_ms` and `kernels` per step of the light window; None without one."""
    cache = folder / CACHE
    try:
        known = json.loads(cache.read_text())
        return known if isinstance(known, dict) else None
    except (OSError, ValueError):
        pass
    trace = folder / "window.pt.trace.json.gz"
    try:
        with gzip.open(trace, "rb") as file:
            facts = _facts(json.load(file)["traceEvents"])
    except (OSError, ValueError, KeyError, EOFError, TypeError, AttributeError, zlib.error):
        return None
    try:
        cache.write_text(json.dumps(facts))
    except OSError:
        pass
    return facts


def _facts(events: list[dict[str, Any]]) -> dict[str, Any]:
    marks = {
        e["name"]: e
        for e in events
        if str(e.get("name", "")).startswith("ProfilerStep#")
        and e.get("ph") == "X"
        and e.get("cat") == "user_annotation"
    }
    work = [e for e in events if e.get("cat") in _DEVICE_WORK and e.get("ph") == "X"]
    steps = max(len(marks), 1)
    intervals = sorted((float(e["ts"]), float(e["ts"]) + float(e["dur"])) for e in work)
    return {
        "steps": len(marks),
        "busy_ms": covered(intervals) / 1e3 / steps if work else None,
        "kernels": sum(e.get("cat") == "kernel" for e in work) / steps,
        "operators": sum(e.get("cat") == "cpu_op" for e in events) / steps,
    }


def covered(intervals: list[tuple[float, float]]) -> float:
    """Length of the union of intervals sorted by their start."""
    total, reach = 0.0, float("-inf")
    for begin, end in intervals:
        if end > reach:
            total += end - max(begin, reach)
            reach = end
    return total
