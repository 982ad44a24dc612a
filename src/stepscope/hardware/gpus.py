"""The NVIDIA GPUs of this machine, by NVML: facts, samples, links, NUMA nodes, and which one is
CUDA device 0. Without a driver or GPU: None, never an error.

An NVML call takes 0.5 to 20 ms on some machines: call from a thread, never in the program's
process.
"""

import math
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from stepscope.hardware.processor import read_text
from stepscope.record.kinds import ThrottleReason

SYSFS = Path("/sys/bus/pci/devices")


def pci_locality(bus_id: str | None, devices: Path = SYSFS) -> tuple[int | None, str | None]:
    """(NUMA node, list of cores such as "0-31") of a device; None if the kernel does not say."""
    if not bus_id:
        return None, None
    domain, _, rest = bus_id.partition(":")  # sysfs spells NVML's 00000000:C1:00.0 as 0000:c1:00.0
    folder = devices / f"{domain[-4:]}:{rest}".lower()
    node = read_text(folder / "numa_node")  # -1 means unknown
    return int(node) if node.isdigit() else None, read_text(folder / "local_cpulist") or None


_NVML_BITS: Final = dict(
    zip((0x004, 0x008, 0x010, 0x020, 0x040, 0x080, 0x200, 0x400), ThrottleReason, strict=True)
)


def throttle_reasons(mask: int) -> list[ThrottleReason]:
    """The reasons in NVML's mask; idling and clocks set by hand do not count."""
    return [reason for bit, reason in _NVML_BITS.items() if mask & bit]


def count_other_processes(
    pids: Iterable[int], own: Collection[int], exists: Callable[[int], bool]
) -> float:
    """How many of `pids` are not ours; NaN if ours may be among them under another pid. In a
    container NVML may report the host's pids, which mean nothing here."""
    listed = set(pids)
    others = listed - set(own)
    if len(others) == len(listed) and not all(map(exists, others)):
        return math.nan
    return float(len(others))


class GpuInfo(Struct, frozen=True):
    """A GPU's properties; None: unknown."""

    index: int = 0
    name: str | None = None
    uuid: str | None = None
    memory_bytes: int | None = None
    driver: str | None = None
    compute_capability: str | None = None
    power_limit_w: float | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    pcie_generation_max: int | None = None
    pcie_width_max: int | None = None
    numa_node: int | None = None
    cpu_affinity: str | None = None
    mig: bool | None = None
    energy_counter: bool = False
    processes: int | None = None  # processes computing on it right now


class GpuLink(Struct, frozen=True):
    """How two GPUs are connected; None if NVML does not say."""

    a: int
    b: int
    link: str | None


class Gpu:
    """A GPU; make one with `open_gpu`."""

    def __init__(self, nvml: Any, handle: Any, index: int) -> None:
        self._nvml = nvml
        self.handle = handle
        self.index = index

    def query(self, name: str, *args: Any) -> Any:
        """The result of `nvmlDeviceGet<name>`; None if not supported."""
        try:
            return getattr(self._nvml, f"nvmlDeviceGet{name}")(self.handle, *args)
        except Exception:
            return None

    def uuid(self) -> str | None:
        """The identifier that stays with the GPU wherever it is plugged in."""
        return _text(self.query("UUID"))

    def sample(self, own: Collection[int] = ()) -> dict[str, float]:
        """The `gpu_*` values of a sample, NaN where unknown; `own` are the program's pids."""
        use, memory = self.query("UtilizationRates"), self._memory()
        power_mw = self.query("PowerUsage")
        values = {
            "gpu_percent": use and use.gpu,
            "gpu_memory_bytes": memory and memory.used,
            "gpu_power_w": power_mw and power_mw / 1000,
            "gpu_sm_mhz": self.query("ClockInfo", self._nvml.NVML_CLOCK_SM),
            "gpu_temperature_c": self.query("Temperature", self._nvml.NVML_TEMPERATURE_GPU),
            "gpu_throttle": self.throttle(),
            "gpu_other_processes": self.other_processes(own),
            "gpu_energy_mj": self.query("TotalEnergyConsumption"),
        }
        return {name: math.nan if value is None else float(value) for name, value in values.items()}

    def throttle(self) -> int | None:
        """NVML's bit mask of clock event reasons; drivers before 535 use an older name."""
        mask = self.query("CurrentClocksEventReasons")
        if mask is None:
            mask = self.query("CurrentClocksThrottleReasons")
        return None if mask is None else int(mask)

    def other_processes(self, own: Collection[int]) -> float:
        """Processes computing on this GPU besides `own`; NaN if unknown."""
        processes = self.query("ComputeRunningProcesses")
        if processes is None:
            return math.nan
        return count_other_processes(
            (process.pid for process in processes), own, lambda pid: os.path.exists(f"/proc/{pid}")
        )

    def info(self) -> GpuInfo:
        memory = self._memory()
        capability = self.query("CudaComputeCapability")
        limit_mw = self.query("EnforcedPowerLimit")
        mig = self.query("MigMode")
        pci = self.query("PciInfo")
        numa_node, cpus = pci_locality(_text(pci.busId)) if pci else (None, None)
        processes = self.other_processes(())
        return GpuInfo(
            index=self.index,
            name=_text(self.query("Name")),
            uuid=self.uuid(),
            memory_bytes=memory.total if memory else None,
            driver=driver_version(),
            compute_capability=".".join(map(str, capability)) if capability else None,
            power_limit_w=None if limit_mw is None else limit_mw / 1000,
            pcie_generation=self.query("CurrPcieLinkGeneration"),
            pcie_width=self.query("CurrPcieLinkWidth"),
            pcie_generation_max=self.query("MaxPcieLinkGeneration"),
            pcie_width_max=self.query("MaxPcieLinkWidth"),
            numa_node=numa_node,
            cpu_affinity=cpus,
            mig=None if mig is None else bool(mig[0]),
            energy_counter=self.query("TotalEnergyConsumption") is not None,
            processes=None if math.isnan(processes) else int(processes),
        )

    def _memory(self) -> Any:
        # The second version excludes memory reserved by the driver, as nvidia-smi does.
        version = getattr(self._nvml, "nvmlMemory_v2", None)
        return (version and self.query("MemoryInfo", version)) or self.query("MemoryInfo")


def open_nvml() -> Any:
    """The initialised NVML module, or None without package, driver or permission."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:
        return None
    return pynvml


def open_gpu(index: int) -> Gpu | None:
    """The GPU with NVML's number `index`; None if it is not there."""
    nvml = open_nvml()
    if nvml is None:
        return None
    try:
        return Gpu(nvml, nvml.nvmlDeviceGetHandleByIndex(index), index)
    except Exception:
        return None


def open_gpus() -> list[Gpu]:
    """Every GPU NVML can open, in NVML's order."""
    nvml = open_nvml()
    try:
        count = nvml.nvmlDeviceGetCount() if nvml else 0
    except Exception:
        return []
    return [gpu for gpu in map(open_gpu, range(count)) if gpu]


def driver_version() -> str | None:
    nvml = open_nvml()
    try:
        return _text(nvml.nvmlSystemGetDriverVersion()) if nvml else None
    except Exception:
        return None


def _text(value: Any) -> str | None:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


_ANCESTORS: Final = {
    0: "same board",
    10: "one PCIe switch",
    20: "several PCIe switches",
    30: "PCIe host bridge",
    40: "PCIe within a NUMA node",
    50: "PCIe across NUMA nodes",
}


def link_name(nvlink_status: int | None, ancestor: int | None) -> str | None:
    """NVLink if its peer status is good (0), else the PCIe path; None if NVML knows neither."""
    if nvlink_status == 0:
        return "NVLink"
    return None if ancestor is None else _ANCESTORS.get(ancestor, "PCIe")


def gpu_links(gpus: Sequence[Gpu]) -> list[GpuLink]:
    """Every pair of GPUs with its link; empty for fewer than two."""
    found = []
    for a, b in combinations(gpus, 2):
        nvlink = a.query("P2PStatus", b.handle, 2)  # NVML_P2P_CAPS_INDEX_NVLINK
        link = link_name(nvlink, a.query("TopologyCommonAncestor", b.handle))
        found.append(GpuLink(a.index, b.index, link))
    return found


def first_visible_gpu(environ: Mapping[str, str], uuids: Sequence[str | None]) -> int | None:
    """NVML's index of CUDA device 0, given every GPU's UUID; None if the program will see no GPU.
    CUDA may put the fastest of different GPUs first, while NVML orders by bus; with equal GPUs or
    CUDA_DEVICE_ORDER=PCI_BUS_ID the two agree."""
    value = environ.get("CUDA_VISIBLE_DEVICES")
    if value is None:
        return 0 if uuids else None
    first = value.split(",")[0].strip()
    if first.isdecimal():
        return int(first) if int(first) < len(uuids) else None
    if first.startswith("MIG-GPU-"):
        first = first.removeprefix("MIG-").split("/")[0]
    if not first.startswith("GPU-"):
        return None
    # CUDA accepts any unique prefix of a UUID.
    matches = [i for i, uuid in enumerate(uuids) if uuid and uuid.lower().startswith(first.lower())]
    return matches[0] if len(matches) == 1 else None


def visible_gpu_index(environ: Mapping[str, str]) -> int | None:
    """NVML's index of CUDA device 0 in a program started with `environ`."""
    gpus = open_gpus()
    place = first_visible_gpu(environ, [gpu.uuid() for gpu in gpus])
    return None if place is None else gpus[place].index
