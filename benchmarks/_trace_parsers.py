"""Bare JSON parsers as contenders: parsing alone, then the least that could be called a breakdown.

That least is: busy, computing and idle time of the device, and a total per kernel name, in plain
Python. No links between launches and kernels, no nesting, no causes of idle time. The garbage
collector is off, so that each is at its best: it would look through millions of dictionaries again
and again, for nothing.
"""

import gc
import gzip
import importlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")


class Parser:
    """One parser; making it imports its module."""

    def __init__(self, name: str) -> None:
        gc.disable()
        module = importlib.import_module(name)
        self._parse = module.Parser().parse if name == "simdjson" else module.loads
        self.packages = {"orjson": ("orjson",), "simdjson": ("pysimdjson",)}.get(name, ())

    def load(self, path: Path) -> Any:
        """The whole document, or simdjson's view of it."""
        raw = path.read_bytes()
        return self._parse(gzip.decompress(raw) if path.suffix == ".gz" else raw)

    def analyse(self, document: Any) -> dict[str, Any]:
        """The least breakdown."""
        return least_breakdown(document["traceEvents"])


def least_breakdown(events: Iterable[Any]) -> dict[str, Any]:
    """Milliseconds of the device, by one pass over its events in order of time."""
    every: list[tuple[float, float]] = []
    computing: list[tuple[float, float]] = []
    totals: dict[str, float] = {}
    for event in events:
        category = event.get("cat")
        if category not in _DEVICE:
            continue
        start, lasted, name = event["ts"], event["dur"], event["name"]
        every.append((start, start + lasted))
        totals[name] = totals.get(name, 0.0) + lasted
        if category == "kernel" and "nccl" not in name:
            computing.append(every[-1])
    busy = _covered(every)
    wall = max(end for _, end in every) - min(start for start, _ in every) if every else 0.0
    return {
        "device_events": len(every),
        "kernel_names": len(totals),
        "compute_ms": _covered(computing) / 1000,
        "busy_ms": busy / 1000,
        "idle_ms": (wall - busy) / 1000,
    }


def _covered(intervals: list[tuple[float, float]]) -> float:
    covered, reach = 0.0, float("-inf")
    for start, end in sorted(intervals):
        covered += max(0.0, end - max(start, reach))
        reach = max(reach, end)
    return covered
