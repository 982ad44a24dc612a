"""The machine for rules about it."""

from typing import Any

from stepscope.diagnose.case import Case


def gpu_used(case: Case) -> dict[str, Any]:
    """What the GPU did during the run; empty without one."""
    return dict((case.show or {}).get("gpu") or {})


def gpu_facts(case: Case) -> dict[str, Any]:
    """What the GPU is: link, limits, place; empty where not known."""
    gpus = _machine(case).get("gpus") or []
    return dict(gpus[0]) if gpus else {}


def cpu_facts(case: Case) -> dict[str, Any]:
    """What the processor is; empty where not known."""
    return dict(_machine(case).get("cpu") or {})


def waiting_for_host(case: Case) -> float:
    """The share of the step in which the device had nothing to do for the host's sake, 0 to 1.

    On the CPU the whole step is the host's.
    """
    if case.device != "cuda":
        return 1.0
    trace = case.trace or {}
    wall = (trace.get("breakdown_ns") or {}).get("wall") or 0
    idle = trace.get("idle_ns") or {}
    if not wall:
        return 0.0
    return sum(idle.get(cause) or 0 for cause in ("host", "loader", "synchronisation")) / wall


def copies_share(case: Case) -> float:
    """The share of the step in which the device only copied, 0 to 1."""
    told = (case.trace or {}).get("breakdown_ns") or {}
    return (told.get("exposed_copy") or 0) / told["wall"] if told.get("wall") else 0.0


def data_wait_share(case: Case) -> float:
    """The share of the step spent waiting for the loader, 0 to 1."""
    return case.phases.get("data_wait", 0.0) / case.step_ms if case.step_ms else 0.0


def _machine(case: Case) -> dict[str, Any]:
    return dict(((case.show or {}).get("config") or {}).get("machine") or {})
