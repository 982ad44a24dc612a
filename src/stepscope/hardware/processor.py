"""The processor as Linux describes it: model and cores, the limits of the container or job, and its
energy counters (RAPL).
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final


def cpu_model(cpuinfo: str) -> str | None:
    """The processor's name in /proc/cpuinfo; ARM machines often give none."""
    for block in _blocks(cpuinfo):
        for field in ("model name", "cpu model", "Model"):
            if block.get(field):
                return " ".join(block[field].split())
    return None


def physical_cores(cpuinfo: str) -> int | None:
    """Physical cores over all sockets; None if /proc/cpuinfo has no ids."""
    cores = {
        (block["physical id"], block["core id"])
        for block in _blocks(cpuinfo)
        if "physical id" in block and "core id" in block
    }
    return len(cores) or None


def is_virtual(cpuinfo: str) -> bool | None:
    """Whether this is a virtual machine; None if the processor does not say (not x86)."""
    for block in _blocks(cpuinfo):
        if "flags" in block:
            return "hypervisor" in block["flags"].split()
    return None


def cpu_list(text: str) -> list[int]:
    """The numbers in a kernel list such as `0-3,8`."""
    numbers: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        numbers.extend(range(int(first), int(last or first) + 1))
    return numbers


def load_average(text: str) -> tuple[float, float, float] | None:
    """Processes running or waiting for disk, over 1, 5 and 15 minutes, from /proc/loadavg."""
    numbers = re.findall(r"\d+\.\d+", text)
    return (float(numbers[0]), float(numbers[1]), float(numbers[2])) if len(numbers) > 2 else None


def _blocks(cpuinfo: str) -> Iterator[dict[str, str]]:
    for block in cpuinfo.strip().split("\n\n"):
        pairs = (line.partition(":") for line in block.splitlines())
        yield {name.strip(): value.strip() for name, _, value in pairs}


_NO_LIMIT: Final = 1 << 60  # version 1 writes "no limit" as a huge number


def group_paths(cgroup: str) -> dict[str, str]:
    """Path of each controller's cgroup from /proc/<pid>/cgroup; version 2 has the controller ""."""
    paths: dict[str, str] = {}
    for line in cgroup.splitlines():
        fields = line.split(":", 2)
        if len(fields) == 3:
            paths |= dict.fromkeys(fields[1].split(","), fields[2])
    return paths


def core_limit(quota_us: str, period_us: str) -> float | None:
    """Cores allowed by `cpu.max` ("200000 100000" is 2.0), or by `cpu.cfs_quota_us` and
    `cpu.cfs_period_us`; None for no limit."""
    return int(quota_us) / int(period_us) if quota_us.isdigit() and period_us.isdigit() else None


def memory_limit(text: str) -> int | None:
    """Bytes in `memory.max` or `memory.limit_in_bytes`; None for no limit."""
    return int(text) if text.isdigit() and int(text) < _NO_LIMIT else None


def cgroup_limits(root: Path = Path("/")) -> tuple[float | None, int | None]:
    """(cores, bytes of memory) this process may use; the tightest cgroup counts."""
    mount = root / "sys/fs/cgroup"
    groups = group_paths(read_text(root / "proc/self/cgroup"))
    cores: list[float | None] = []
    memory: list[int | None] = []
    for folder in _upwards(mount, groups.get("", "/")):
        quota, _, period = read_text(folder / "cpu.max").partition(" ")
        cores.append(core_limit(quota, period))
        memory.append(memory_limit(read_text(folder / "memory.max")))
    for folder in _upwards(mount / "cpu", groups.get("cpu", "/")):
        quota, period = (read_text(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
        cores.append(core_limit(quota, period))
    for folder in _upwards(mount / "memory", groups.get("memory", "/")):
        memory.append(memory_limit(read_text(folder / "memory.limit_in_bytes")))
    return (
        min((number for number in cores if number is not None), default=None),
        min((number for number in memory if number is not None), default=None),
    )


def free_bytes(root: Path = Path("/")) -> int | None:
    """Memory this process may still use; None if the system does not say."""
    try:
        text = (root / "proc/meminfo").read_text()
        own = (root / "proc/self/statm").read_text()
    except OSError:
        return None
    found = re.search(r"MemAvailable:\s+(\d+) kB", text)
    if found is None:
        return None
    _, limit = cgroup_limits(root)
    free = int(found[1]) << 10
    return free if limit is None else max(0, min(free, limit - int(own.split()[1]) * 4096))


def _upwards(mount: Path, group: str) -> Iterator[Path]:
    """The cgroup's folder and those above it; a container may see only the mount itself."""
    folder = mount / group.lstrip("/")
    while folder != mount and mount in folder.parents:
        yield folder
        folder = folder.parent
    yield mount


def read_text(path: Path) -> str:
    """A kernel file's text, stripped; "" if it cannot be read."""
    try:
        return path.read_text().strip()
    except (OSError, ValueError):
        return ""


_POWERCAP: Final = Path("/sys/class/powercap")


class RaplCounter:
    """The energy of all packages since it was created; `readable`: whether any counter can be
    read."""

    def __init__(self, root: Path = _POWERCAP) -> None:
        self._joules = 0.0
        # Packages only: their cores and memory would count twice.
        packages = [path for path in root.glob("intel-rapl:*") if path.name.count(":") == 1]
        energy = {folder: _number(folder / "energy_uj") for folder in packages}
        self._last = {folder: uj for folder, uj in energy.items() if uj is not None}
        self.readable = bool(self._last)

    def joules(self) -> float | None:
        """Joules so far; None if no counter can be read. Call at least once a minute: counters wrap
        around."""
        for folder, before in self._last.items():
            now = _number(folder / "energy_uj")
            if now is None:
                self.readable = False
                break
            full = _number(folder / "max_energy_range_uj") if now < before else None
            self._joules += (now - before + (full or 0)) / 1e6 if now >= before or full else 0.0
            self._last[folder] = now
        return self._joules if self.readable else None


def _number(path: Path) -> int | None:
    text = read_text(path)
    return int(text) if text.isdigit() else None
