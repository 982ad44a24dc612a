"""The recorded window in ms per step, and what of it the bare step has."""

import re
from collections.abc import Mapping
from typing import Any

from stepscope.diagnose.case import Case
from stepscope.record.finding import Place

STRETCH = 1.8
"""How much recording without shapes stretches host time at most, as seen; it leaves device time
alone."""
_FRAME = re.compile(r"^(?P<file>.+)\((?P<line>\d+)\): ")
_COMPUTE = ("forward", "backward", "optimizer")


def steps(case: Case) -> int:
    """Steps in the window; 0 without one."""
    return int(((case.trace or {}).get("steps") or {}).get("count") or 0)


def per_step(case: Case, ns: float | None) -> float:
    """Nanoseconds of the whole window as ms of a step."""
    count = steps(case)
    return (ns or 0.0) / count / 1e6 if count else 0.0


def recorded_step_ms(case: Case) -> float:
    """The mean step in the window, slowed by recording; 0 without one."""
    return float(((case.trace or {}).get("steps") or {}).get("mean_ms") or 0.0)


def recorded_part(case: Case, ms: float) -> float:
    """As a share of the recorded step, at most 1; 0 without a window."""
    recorded = recorded_step_ms(case)
    return min(1.0, ms / recorded) if recorded else 0.0


def batch_size(case: Case) -> int | None:
    """Of the program's first loader; None where it has none or batches itself."""
    loaders = (case.show or {}).get("loaders") or []
    size = loaders[0].get("batch_size") if loaders else None
    return int(size) if size else None


def part(case: Case, ms: float) -> float:
    """As a share of the step, at most 1."""
    return min(1.0, max(0.0, ms / case.step_ms)) if case.step_ms > 0 else 0.0


def busy_ms(case: Case) -> float | None:
    """How long the device works for a step; None without one."""
    parts = (case.trace or {}).get("breakdown_ns") or {}
    if parts.get("idle") is None or not steps(case):
        return None
    return per_step(case, parts["wall"] - parts["idle"])


def idle_ms(case: Case, cause: str) -> float:
    """The device's idle time of one cause, as recorded."""
    return per_step(case, ((case.trace or {}).get("idle_ns") or {}).get(cause))


def unfed_ms(case: Case) -> float:
    """How long the device waits in a bare step because the host is slow to launch.

    Of a run: what its own clocks leave after the device's work and what else it waits for.
    """
    busy, recorded = busy_ms(case), idle_ms(case, "host")
    if busy is None or recorded <= 0:
        return 0.0
    if case.show is None:
        return recorded
    elsewhere = sum(idle_ms(case, cause) for cause in ("synchronisation", "copy", "other_ranks"))
    left = case.step_ms - busy - case.phases.get("data_wait", 0.0) - elsewhere
    return min(recorded, max(0.0, left))


def neck_and_neck(case: Case) -> bool:
    """Whether host and device take about equally long for a step.

    A trace alone has stretched host time: they may be, where the device is busy for as long as the
    host would be without recording.
    """
    busy = busy_ms(case)
    if busy is None:
        return False
    if case.show is None:
        return busy < case.step_ms * 0.95 and busy >= case.step_ms / STRETCH
    return 0.85 * case.step_ms <= busy < 0.97 * case.step_ms


def kernels_per_step(case: Case) -> float:
    """Kernels launched for a step."""
    launch = (case.trace or {}).get("launch") or {}
    return launch.get("kernels", 0) / steps(case) if steps(case) else 0.0


def operators(case: Case) -> list[Mapping[str, Any]]:
    """The host's operators with most time of their own (the window's twenty)."""
    return list(((case.trace or {}).get("host") or {}).get("operators") or [])


def operator_calls(case: Case) -> float:
    """Operators called in a step, nested ones too."""
    threads = ((case.trace or {}).get("host") or {}).get("threads") or []
    calls = sum((thread.get("events") or {}).get("operators", 0) for thread in threads)
    return calls / steps(case) if steps(case) else 0.0


def named_ms(case: Case, pattern: str) -> float:
    """Host time of a recorded step in operators whose name matches, their own."""
    found = re.compile(pattern).search
    return per_step(case, sum(o["self_ns"] for o in operators(case) if found(o["name"])))


def python_ms(case: Case) -> float:
    """What of a recorded step passes in Python, between operators."""
    path = (case.trace or {}).get("critical_path") or {}
    kinds = path.get("by_category") or []
    between = sum(k["ns"] for k in kinds if k["category"] in ("python", "unrecorded"))
    return per_step(case, between)


def switches(case: Case) -> Mapping[str, Any]:
    """torch's global switches; empty for a trace alone."""
    return config(case).get("switches") or {}


def config(case: Case) -> Mapping[str, Any]:
    """What the program is set to; empty for a trace alone."""
    return (case.show or {}).get("config") or {}


def compiled(case: Case) -> bool:
    """Whether the program compiles its model."""
    models = config(case).get("models") or []
    return bool(config(case).get("compile")) or any(m.get("compiled") for m in models)


def captured(case: Case) -> bool:
    """Whether most kernels already come from CUDA graphs."""
    launch = (case.trace or {}).get("launch") or {}
    return bool(2 * launch.get("graph_kernels", 0) > launch.get("kernels", 0))


def sites(case: Case, *phases: str) -> tuple[Place, ...]:
    """The user's lines where these phases (none: all that compute) begin, costliest first."""
    wanted = phases or _COMPUTE
    known = (case.show or {}).get("sites") or []
    return tuple(Place(s["file"], s["line"]) for s in known if s["what"] in wanted)[:3]


def functions(case: Case, most: int = 3) -> tuple[Place, ...]:
    """The user's functions with most Python time of their own; none where no stacks were kept."""
    stacks = ((case.show or {}).get("timeline_stacks") or {}).get("host") or {}
    host = (case.trace or {}).get("host") or {}
    lines = stacks.get("lines") or host.get("lines") or []
    ordered = sorted(lines, key=lambda line: -line["self_ns"])
    found = (place_of(line["name"]) for line in ordered if line["self_ns"] > 0)
    return tuple(place for place in found if place is not None)[:most]


def place_of(frame: str | None) -> Place | None:
    """A frame as recordings name it ("file.py(12): function"); None for other words."""
    found = _FRAME.match(frame or "")
    return Place(found["file"], int(found["line"])) if found else None
