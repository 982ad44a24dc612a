"""What is known of a program when a fix's gain is predicted: its documents and limits, and kernels
scaled by rows of its roofline.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from stepscope.analyze.replay.changes import Change, scale_kernels
from stepscope.analyze.replay.tasks import Tasks, select_kernels
from stepscope.hardware.ceiling_cache import known_ceilings
from stepscope.record.timeline import Column

Document = Mapping[str, Any]
Row = Mapping[str, Any]


class KnownProgram(Protocol):
    """A run or a trace; `diagnose.case.Case` is one."""

    @property
    def show(self) -> Document | None:
        """The run's document; None for a trace alone."""

    @property
    def trace(self) -> Document | None:
        """The window's analysis; None where none was recorded."""

    @property
    def device(self) -> str:
        """cuda or cpu."""


@dataclass(frozen=True, slots=True)
class DeviceLimits:
    """The most the device can do; empty and None where nothing is known."""

    flops_per_s: Mapping[str, float]
    bytes_per_s: float | None


def device_limits(known: KnownProgram) -> DeviceLimits:
    """Of the GPU as the roofline took them; of the processor as `doctor` measured them."""
    if known.device != "cpu":
        found = ((known.trace or {}).get("roofline") or {}).get("ceilings") or {}
        return DeviceLimits(found.get("flops_per_s") or {}, found.get("bytes_per_s"))
    cpu = (program_config(known).get("machine") or {}).get("cpu") or {}
    return _measured(cpu.get("model"), known_ceilings())


def _measured(model: str | None, documents: Iterable[Document]) -> DeviceLimits:
    """Each rate as low, or for fp32 as high, as its spread allows: no promise rests on noise."""
    for document in documents:
        if model is None or document.get("device") != model:
            continue
        entries = document["ceilings"]
        rates = {}
        for dtype, sign in (("fp32", 1.0), ("bf16", -1.0)):
            entry = entries.get(f"matmul_{dtype}_tflops")
            if entry is not None:
                rates[dtype] = entry["value"] * max(0.0, 1 + sign * entry["spread"]) * 1e12
        memory = entries.get("memory_gb_per_s")
        return DeviceLimits(rates, memory["value"] * 1e9 if memory else None)
    return DeviceLimits({}, None)


def program_config(known: KnownProgram) -> Document:
    """What the program is set to; empty for a trace alone."""
    return (known.show or {}).get("config") or {}


def roofline_rows(known: KnownProgram) -> list[Row]:
    """Operators by shape with their time, FLOPs and bytes; empty where not recorded."""
    return list(((known.trace or {}).get("roofline") or {}).get("shapes") or [])


def kernel_rows(known: KnownProgram) -> list[Row]:
    """Kernels by name."""
    return list((known.trace or {}).get("kernels") or [])


def trained_parameters(known: KnownProgram) -> int | None:
    """How many numbers are trained; None where not known."""
    models = program_config(known).get("models") or []
    return sum(model["trainable"] for model in models) or None


def steps_in_window(known: KnownProgram) -> int:
    """Steps in the window, at least 1."""
    return max(1, int(((known.trace or {}).get("steps") or {}).get("count") or 0))


def host_operator_rows(known: KnownProgram) -> list[Row]:
    """The host's operators with most time of their own."""
    return list(((known.trace or {}).get("host") or {}).get("operators") or [])


REACHED_SHARE = 0.75
"""Of a ceiling: what large kernels get of it, a prior."""
LEAST_NS = 2_000.0
"""Of a kernel: none is shorter."""
SHORT_NS = 10_000.0
"""Kernels shorter than this are bound by latency, which neither rates nor bytes change."""
LATENCY_STAYS = 0.8
"""Of such a kernel's time, a prior."""
NewTime = Callable[[Row], float | None]
"""The nanoseconds that a row of the roofline would take; None: as long as now."""


def time_at_bound(row: Row, least_ns: float, rest: float) -> float | None:
    """A row's time when its bound at the ceilings falls to `least_ns`.

    What it takes beyond REACHED of its present bound (small sizes, layout changes, bad tiles)
    falls to the share `rest`. None where its present bound is not known, or nothing is gained.
    """
    now, bound, count = float(row["time_ns"]), row.get("least_ns"), max(1, row["kernels"])
    if bound is None or now <= 0:
        return None
    explained = min(now, bound / REACHED_SHARE)
    stays = rest if now / count >= SHORT_NS else max(rest, LATENCY_STAYS)
    after = max(least_ns / REACHED_SHARE + (now - explained) * stays, LEAST_NS * count)
    return after if after < now else None


def factors_by_operator(rows: Iterable[Row], new_time: NewTime) -> dict[str, float]:
    """For each operator its new time over its present one; those that stay are left out."""
    before: dict[str, float] = defaultdict(float)
    after: dict[str, float] = defaultdict(float)
    for row in rows:
        time, new = float(row["time_ns"]), new_time(row)
        before[row["name"]] += time
        after[row["name"]] += time if new is None else new
    return {n: after[n] / t for n, t in before.items() if t > 0 and after[n] != t}


def scale_operators(factors: Mapping[str, float]) -> Change | None:
    """Each operator's kernels take its factor times as long; None where there is none."""
    if not factors:
        return None

    def factor(tasks: Tasks) -> Column:
        by_name = np.ones(len(tasks.names) + 1)
        for index in np.unique(tasks.work.operator).tolist():
            if index >= 0:
                by_name[index] = factors.get(tasks.names[index], 1.0)
        times: Column = by_name[tasks.work.operator]
        return times

    return scale_kernels(select_kernels(operator=exact_names_pattern(factors)), factor)


def exact_names_pattern(names: Iterable[str]) -> str:
    """A regular expression that finds exactly these names."""
    return "^(" + "|".join(re.escape(name) for name in sorted(names)) + ")$"
