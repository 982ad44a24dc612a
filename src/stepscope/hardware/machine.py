"""What this machine is, in one document: processor, memory, GPUs, installed software. No host
names, and nothing is imported to find out.
"""

import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import sys
from pathlib import Path
from typing import Any, Final

from stepscope.hardware import processor
from stepscope.hardware.gpus import Gpu, driver_version, gpu_links, open_gpus
from stepscope.hardware.processor import cgroup_limits

_EXTERNAL_TOOLS: Final = ("nsys", "ncu", "py-spy", "g++")


def package_version(name: str) -> str | None:
    """Version of an installed distribution, None if it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def cuda_build(version_py: str) -> str | None:
    """The CUDA version in the text of torch's `version.py`; None for a CPU build."""
    found = re.search(r"^cuda\b[^=\n]*=\s*['\"]([\d.]+)['\"]", version_py, re.MULTILINE)
    return found[1] if found else None


def torch_build() -> dict[str, Any] | None:
    """Version of torch and the CUDA version it was built for; None without torch."""
    version = package_version("torch")
    try:
        spec = importlib.util.find_spec("torch")
    except ValueError:
        spec = None
    if version is None or spec is None or not spec.origin:
        return None
    try:
        text = Path(spec.origin).with_name("version.py").read_text()
    except (OSError, ValueError):
        text = ""
    return {"version": version, "cuda": cuda_build(text)}


def find_tool(name: str) -> str | None:
    """Where a program is: on PATH, or beside our Python in an environment not activated."""
    return shutil.which(name) or shutil.which(name, path=os.path.dirname(sys.executable))


_ROOT: Final = Path("/")


def describe_machine(root: Path = _ROOT) -> dict[str, Any]:
    """Everything known of this machine, ready for JSON; None where not known."""
    gpus = open_gpus()
    return {
        "cpu": describe_cpu(root),
        "memory": describe_memory(root),
        "gpus": [_gpu(gpu) for gpu in gpus],
        "topology": gpu_links(gpus),
        "driver": driver_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch_build(),
        "packages": {name: package_version(name) for name in ("py-spy", "memray")},
        "tools": {name: find_tool(name) for name in _EXTERNAL_TOOLS},
        "counters_need_root": counters_need_root(_read(root / "proc/driver/nvidia/params")),
        "is_root": os.geteuid() == 0,
    }


def describe_cpu(root: Path = _ROOT) -> dict[str, Any]:
    """The processor and how much of it this process may use."""
    info = _read(root / "proc/cpuinfo")
    cores, _ = cgroup_limits(root)
    affinity = len(os.sched_getaffinity(0))
    return {
        "model": processor.cpu_model(info),
        "physical_cores": processor.physical_cores(info),
        "logical_cores": os.cpu_count(),
        "usable_cores": affinity if cores is None else min(cores, affinity),
        "governor": _read(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor") or None,
        "numa_nodes": len(processor.cpu_list(_read(root / "sys/devices/system/node/online")))
        or None,
        "load_average": processor.load_average(_read(root / "proc/loadavg")),
        "virtual": processor.is_virtual(info),
    }


def describe_memory(root: Path = _ROOT) -> dict[str, Any]:
    """Bytes of memory in the machine, free now, and allowed to this process (None: all)."""
    import psutil

    memory = psutil.virtual_memory()
    _, limit = cgroup_limits(root)
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
