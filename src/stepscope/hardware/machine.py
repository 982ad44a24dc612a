"""What this machine is, in one document: processor, memory, GPUs, software. No host names."""

import os
import platform
from pathlib import Path
from typing import Any, Final

from stepscope.hardware import cpu
from stepscope.hardware.cgroup import limits
from stepscope.hardware.nvml import Gpu, driver_version, open_gpus
from stepscope.hardware.software import TOOLS, find_tool, package_version, torch_build
from stepscope.hardware.topology import topology

_ROOT: Final = Path("/")


def describe(root: Path = _ROOT) -> dict[str, Any]:
    """Everything known of this machine, ready for JSON; None where not known."""
    gpus = open_gpus()
    return {
        "cpu": describe_cpu(root),
        "memory": describe_memory(root),
        "gpus": [_gpu(gpu) for gpu in gpus],
        "topology": topology(gpus),
        "driver": driver_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch_build(),
        "packages": {name: package_version(name) for name in ("py-spy", "memray")},
        "tools": {name: find_tool(name) for name in TOOLS},
        "counters_need_root": counters_need_root(_read(root / "proc/driver/nvidia/params")),
        "is_root": os.geteuid() == 0,
    }


def describe_cpu(root: Path = _ROOT) -> dict[str, Any]:
    """The processor and how much of it this process may use."""
    info = _read(root / "proc/cpuinfo")
    cores, _ = limits(root)
    affinity = len(os.sched_getaffinity(0))
    return {
        "model": cpu.cpu_model(info),
        "physical_cores": cpu.physical_cores(info),
        "logical_cores": os.cpu_count(),
        "usable_cores": affinity if cores is None else min(cores, affinity),
        "governor": _read(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor") or None,
        "numa_nodes": len(cpu.cpu_list(_read(root / "sys/devices/system/node/online"))) or None,
        "load_average": cpu.load_average(_read(root / "proc/loadavg")),
        "virtual": cpu.is_virtual(info),
    }


def describe_memory(root: Path = _ROOT) -> dict[str, Any]:
    """Bytes of memory in the machine, free now, and allowed to this process (None: all)."""
    import psutil

    memory = psutil.virtual_memory()
    _, limit = limits(root)
    return {
        "total_bytes": memory.total,
        "available_bytes": memory.available,
        "limit_bytes": limit if limit is not None and limit < memory.total else None,
    }


def counters_need_root(params: str) -> bool | None:
    """Whether the driver keeps GPU hardware counters for root; None without the driver's file."""
    for line in params.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "RmProfilingAdminOnly":
            return value.strip() != "0"
    return None


def _gpu(gpu: Gpu) -> dict[str, Any]:
    others = gpu.other_processes(())
    return {**gpu.facts(), "processes": None if others != others else int(others)}


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, ValueError):
        return ""
