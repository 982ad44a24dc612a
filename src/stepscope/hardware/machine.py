"""A description of this machine: processor, memory, GPUs, installed software. It has no host names
and imports nothing to find out.
"""

import importlib.util
import os
import platform
import re
import shutil
import sys
from pathlib import Path
from typing import Final

from msgspec import Struct

from stepscope.hardware import processor
from stepscope.hardware.gpus import GpuInfo, GpuLink, driver_version, gpu_links, open_gpus
from stepscope.hardware.processor import cgroup_limits, read_text
from stepscope.record.version import __version__


class Cpu(Struct, frozen=True):
    """The processor and how much of it this process may use; None: unknown."""

    model: str | None = None
    physical_cores: int | None = None
    logical_cores: int | None = None
    usable_cores: int | float = 0
    governor: str | None = None
    numa_nodes: int | None = None
    load_average: tuple[float, float, float] | None = None
    virtual: bool | None = None


class Memory(Struct, frozen=True):
    """Bytes of memory installed, free now, and allowed to this process (None: all)."""

    total_bytes: int = 0
    available_bytes: int = 0
    limit_bytes: int | None = None


class TorchBuild(Struct, frozen=True):
    """Version of torch and the CUDA version it was built for; None for a CPU build."""

    version: str
    cuda: str | None = None


class Machine(Struct, frozen=True):
    """Everything known about a machine. JSON of older runs may lack some of it."""

    cpu: Cpu = Cpu()
    memory: Memory = Memory()
    gpus: list[GpuInfo] = []
    topology: list[GpuLink] = []
    driver: str | None = None
    system: str | None = None
    python: str | None = None
    torch: TorchBuild | None = None
    packages: dict[str, str | None] = {}
    tools: dict[str, str | None] = {}  # where external programs are; None: not found
    counters_need_root: bool | None = None
    is_root: bool = False

    @property
    def versions(self) -> dict[str, str | None]:
        """What measured here, as results keep it."""
        torch = self.torch.version if self.torch else None
        return {"python": self.python, "torch": torch, "stepscope": __version__}


def package_version(name: str) -> str | None:
    """Version of an installed distribution, None if it is not installed."""
    from importlib import metadata  # 20 ms, which few commands need

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def cuda_build(version_py: str) -> str | None:
    """The CUDA version in the text of torch's `version.py`; None for a CPU build."""
    found = re.search(r"^cuda\b[^=\n]*=\s*['\"]([\d.]+)['\"]", version_py, re.MULTILINE)
    return found[1] if found else None


def torch_build() -> TorchBuild | None:
    version = package_version("torch")
    try:
        spec = importlib.util.find_spec("torch")
    except ValueError:
        spec = None
    if version is None or spec is None or not spec.origin:
        return None
    return TorchBuild(version, cuda_build(read_text(Path(spec.origin).with_name("version.py"))))


def find_tool(name: str) -> str | None:
    """The path of a program: on PATH, or beside our Python in an environment that is not
    activated."""
    return shutil.which(name) or shutil.which(name, path=os.path.dirname(sys.executable))


_ROOT: Final = Path("/")


def describe_machine(root: Path = _ROOT) -> Machine:
    """Describe this machine now."""
    gpus = open_gpus()
    return Machine(
        cpu=describe_cpu(root),
        memory=describe_memory(root),
        gpus=[gpu.info() for gpu in gpus],
        topology=gpu_links(gpus),
        driver=driver_version(),
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        torch=torch_build(),
        packages={name: package_version(name) for name in ("py-spy", "memray")},
        tools={name: find_tool(name) for name in ("nsys", "ncu", "py-spy", "g++")},
        counters_need_root=counters_need_root(read_text(root / "proc/driver/nvidia/params")),
        is_root=os.geteuid() == 0,
    )


def describe_cpu(root: Path = _ROOT) -> Cpu:
    info = read_text(root / "proc/cpuinfo")
    cores, _ = cgroup_limits(root)
    affinity = len(os.sched_getaffinity(0))
    system = root / "sys/devices/system"
    return Cpu(
        model=processor.cpu_model(info),
        physical_cores=processor.physical_cores(info),
        logical_cores=os.cpu_count(),
        usable_cores=affinity if cores is None else min(cores, affinity),
        governor=read_text(system / "cpu/cpu0/cpufreq/scaling_governor") or None,
        numa_nodes=len(processor.cpu_list(read_text(system / "node/online"))) or None,
        load_average=processor.load_average(read_text(root / "proc/loadavg")),
        virtual=processor.is_virtual(info),
    )


def describe_memory(root: Path = _ROOT) -> Memory:
    """The memory of this machine, now."""
    import psutil

    memory = psutil.virtual_memory()
    _, limit = cgroup_limits(root)
    return Memory(
        total_bytes=memory.total,
        available_bytes=memory.available,
        limit_bytes=limit if limit is not None and limit < memory.total else None,
    )


def counters_need_root(params: str) -> bool | None:
    """Whether the driver restricts GPU hardware counters to root; None without the driver's
    file."""
    found = re.search(r"^\s*RmProfilingAdminOnly\s*:\s*(\S*)", params, re.MULTILINE)
    return found[1] != "0" if found else None
