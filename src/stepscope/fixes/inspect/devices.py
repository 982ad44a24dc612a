"""What of the machine this process may use: CUDA, found out without a trace in its process, and
CPUs, how many and which are local to its GPU, from /proc and /sys alone."""

import math
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from stepscope.fixes.lazy import torch
from stepscope.hardware.processor import cgroup_limits, cpu_list

_DRIVER = Path("/dev/nvidiactl")
_TOPOLOGY = Path("/sys/devices/system/cpu")
HIDDEN = ("", "-1")  # CUDA_VISIBLE_DEVICES of a program that is to see no GPU


def cuda_here() -> bool:
    """Whether CUDA is there to be used. Asking torch starts threads of the driver, of which Python
    warns a program that forks before it uses CUDA."""
    if torch.cuda.is_initialized():
        return True
    if sys.platform != "linux" or torch.version.hip is not None:
        return bool(torch.cuda.device_count())
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES", "all").strip() in HIDDEN
    return torch.version.cuda is not None and not hidden and _DRIVER.exists()


def allowed_cpus() -> int:
    """CPUs, including hyper-threads, within affinity and the container's quota."""
    return max(1, min(len(_numbers()), _share()))


def allowed_cores(topology: Path = _TOPOLOGY) -> int:
    """The same without hyper-threads, if the kernel distinguishes them."""
    files = {n: topology / f"cpu{n}/topology/thread_siblings_list" for n in _numbers()}
    cores = {_read(file).strip() or str(number) for number, file in files.items()}
    return max(1, min(len(cores), _share()))


def _numbers() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _share() -> int:
    cores, _ = cgroup_limits()
    return 1 << 30 if cores is None else max(1, math.ceil(cores))


def numa_nodes(root: Path = Path("/")) -> dict[int, set[int]]:
    found: dict[int, set[int]] = {}
    for folder in (root / "sys/devices/system/node").glob("node[0-9]*"):
        cpus = cpu_list(_read(folder / "cpulist"))
        if cpus:
            found[int(folder.name.removeprefix("node"))] = set(cpus)
    return found


def gpu_numa_node(environ: Mapping[str, str], root: Path = Path("/")) -> int | None:
    """The NUMA node of the GPU this process will use first; None where it is not known. Under
    torchrun that is the one numbered LOCAL_RANK."""
    from stepscope.hardware.gpus import first_visible_gpu, pci_locality

    folders = sorted((root / "proc/driver/nvidia/gpus").glob("*:*"))
    found = [re.search(r"GPU UUID:\s*(\S+)", _read(one / "information")) for one in folders]
    uuids = [one[1] if one else None for one in found]
    rank = environ.get("LOCAL_RANK", "0")
    number = int(rank) if rank.isdecimal() else 0
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    names = [str(i) for i in range(len(uuids))] if visible is None else visible.split(",")
    if number >= len(names):
        return None
    place = first_visible_gpu({"CUDA_VISIBLE_DEVICES": names[number]}, uuids)
    if place is None:
        return None
    node, _ = pci_locality(folders[place].name, root / "sys/bus/pci/devices")
    return node


def move_threads(cpus: set[int]) -> None:
    """Bind every thread of this process to these CPUs; later threads inherit it."""
    for thread in os.listdir("/proc/self/task"):
        try:
            os.sched_setaffinity(int(thread), cpus)
        except OSError:  # it has ended
            continue


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, ValueError):
        return ""
