"""Which processors sit next to a GPU, from /proc and /sys alone: nothing wakes the driver."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from stepscope.hardware.cpu import cpu_list
from stepscope.hardware.pci import pci_place
from stepscope.hardware.visible import first_visible


def nodes(root: Path = Path("/")) -> dict[int, set[int]]:
    """The processors of each NUMA node that has any."""
    found: dict[int, set[int]] = {}
    for folder in (root / "sys/devices/system/node").glob("node[0-9]*"):
        cpus = cpu_list(_read(folder / "cpulist"))
        if cpus:
            found[int(folder.name.removeprefix("node"))] = set(cpus)
    return found


def gpu_node(environ: Mapping[str, str], root: Path = Path("/")) -> int | None:
    """The NUMA node of the GPU this process will use first; None where it is not known.

    Under torchrun that is the one numbered LOCAL_RANK.
    """
    folders = sorted((root / "proc/driver/nvidia/gpus").glob("*:*"))
    uuids = [_uuid(_read(folder / "information")) for folder in folders]
    rank = environ.get("LOCAL_RANK", "0")
    number = int(rank) if rank.isdecimal() else 0
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    names = [str(i) for i in range(len(uuids))] if visible is None else visible.split(",")
    if number >= len(names):
        return None
    place = first_visible({"CUDA_VISIBLE_DEVICES": names[number]}, uuids)
    if place is None:
        return None
    node, _ = pci_place(folders[place].name, root / "sys/bus/pci/devices")
    return node


def move_threads(cpus: set[int]) -> None:
    """Have every thread of this process run on these processors; later ones inherit that."""
    for thread in os.listdir("/proc/self/task"):
        try:
            os.sched_setaffinity(int(thread), cpus)
        except OSError:  # it has ended
            continue


def _uuid(information: str) -> str | None:
    found = re.search(r"GPU UUID:\s*(\S+)", information)
    return found[1] if found else None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, ValueError):
        return ""
