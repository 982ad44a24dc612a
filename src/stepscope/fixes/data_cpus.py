"""How many processors this process may use."""

import math
import os
from pathlib import Path

from stepscope.hardware.cgroup import limits

_TOPOLOGY = Path("/sys/devices/system/cpu")


def allowed_cpus() -> int:
    """Processors, hyper-threads included, within affinity and the container's share of time."""
    return max(1, min(len(_numbers()), _share()))


def allowed_cores(topology: Path = _TOPOLOGY) -> int:
    """The same without hyper-threads, where the kernel tells them apart."""
    cores = set()
    for number in _numbers():
        folder = topology / f"cpu{number}/topology"
        try:
            cores.add((folder / "thread_siblings_list").read_text().strip())
        except OSError:
            cores.add(str(number))
    return max(1, min(len(cores), _share()))


def _numbers() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _share() -> int:
    cores, _ = limits()
    return 1 << 30 if cores is None else max(1, math.ceil(cores))
