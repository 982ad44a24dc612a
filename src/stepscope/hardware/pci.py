"""Where on the board a PCI device sits: its NUMA node and the cores next to it."""

from pathlib import Path

SYSFS = Path("/sys/bus/pci/devices")


def sysfs_name(bus_id: str) -> str:
    """NVML's bus id as sysfs spells it: `00000000:C1:00.0` is `0000:c1:00.0`."""
    domain, _, rest = bus_id.partition(":")
    return f"{domain[-4:]}:{rest}".lower()


def pci_place(bus_id: str | None, devices: Path = SYSFS) -> tuple[int | None, str | None]:
    """(NUMA node, list of cores such as "0-31") of a device, None where the kernel does not say."""
    if not bus_id:
        return None, None
    folder = devices / sysfs_name(bus_id)
    node = _read(folder / "numa_node")
    known = node is not None and node.isdigit()  # -1 stands for "not known"
    return int(node) if node and known else None, _read(folder / "local_cpulist") or None


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except (OSError, ValueError):
        return None
