"""The limits a container or job puts on a process, from control groups of both versions."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

_NO_LIMIT: Final = 1 << 60  # version 1 writes "no limit" as a huge number


def group_paths(cgroup: str) -> dict[str, str]:
    """Path of each controller's group in /proc/<pid>/cgroup; version 2 has the controller ""."""
    paths: dict[str, str] = {}
    for line in cgroup.splitlines():
        fields = line.split(":", 2)
        if len(fields) == 3:
            paths |= dict.fromkeys(fields[1].split(","), fields[2])
    return paths


def cores_v2(cpu_max: str) -> float | None:
    """Cores' worth of time in `cpu.max` ("200000 100000" is 2.0); None for no limit."""
    quota, _, period = cpu_max.strip().partition(" ")
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() else None


def cores_v1(quota_us: str, period_us: str) -> float | None:
    """Cores' worth of time in `cpu.cfs_quota_us` and `cpu.cfs_period_us`; None for no limit."""
    return cores_v2(f"{quota_us.strip()} {period_us.strip()}")


def memory_limit(text: str) -> int | None:
    """Bytes in `memory.max` or `memory.limit_in_bytes`; None for no limit."""
    text = text.strip()
    return int(text) if text.isdigit() and int(text) < _NO_LIMIT else None


def limits(root: Path = Path("/")) -> tuple[float | None, int | None]:
    """(cores' worth of time, bytes of memory) this process may use; the tightest group counts."""
    mount = root / "sys/fs/cgroup"
    groups = group_paths(_read(root / "proc/self/cgroup"))
    cores: list[float | None] = []
    memory: list[int | None] = []
    for folder in _upwards(mount, groups.get("", "/")):
        cores.append(cores_v2(_read(folder / "cpu.max")))
        memory.append(memory_limit(_read(folder / "memory.max")))
    for folder in _upwards(mount / "cpu", groups.get("cpu", "/")):
        quota, period = folder / "cpu.cfs_quota_us", folder / "cpu.cfs_period_us"
        cores.append(cores_v1(_read(quota), _read(period)))
    for folder in _upwards(mount / "memory", groups.get("memory", "/")):
        memory.append(memory_limit(_read(folder / "memory.limit_in_bytes")))
    return (
        min((number for number in cores if number is not None), default=None),
        min((number for number in memory if number is not None), default=None),
    )


def _upwards(mount: Path, group: str) -> Iterator[Path]:
    """The group's folder and those above it; a container may only see the mount itself."""
    folder = mount / group.lstrip("/")
    while folder != mount and mount in folder.parents:
        yield folder
        folder = folder.parent
    yield mount


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, ValueError):
        return ""
