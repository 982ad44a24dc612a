"""One NVIDIA GPU as NVML shows it. Without driver or GPU: None, never an error.

A call takes 0.5 to 20 ms on some machines: ask from a thread, and never in the program's process.
"""

import math
import os
from collections.abc import Callable, Collection, Iterable
from typing import Any, Final

from stepscope.hardware.pci import pci_place

_THROTTLES: Final = (
    (0x004, "power cap"),
    (0x008, "hardware slowdown"),
    (0x010, "sync boost"),
    (0x020, "thermal slowdown"),
    (0x040, "hardware thermal slowdown"),
    (0x080, "power brake"),
    (0x200, "board limit"),
    (0x400, "reliability limit"),
)


def throttle_reasons(mask: int) -> list[str]:
    """What holds the clocks down; idling and clocks set by hand do not count. 0 is nothing."""
    return [word for bit, word in _THROTTLES if mask & bit]


def count_others(pids: Iterable[int], own: Collection[int], exists: Callable[[int], bool]) -> float:
    """How many of `pids` are not ours; NaN if ours may be among them under another number.

    In a container NVML can name processes by the host's numbers, which mean nothing here.
    """
    listed = set(pids)
    others = listed - set(own)
    if len(others) == len(listed) and not all(map(exists, others)):
        return math.nan
    return float(len(others))


class Gpu:
    """A GPU; make one with `open_gpu`."""

    def __init__(self, nvml: Any, handle: Any, index: int) -> None:
        self._nvml = nvml
        self.handle = handle
        self.index = index

    def ask(self, name: str, *args: Any) -> Any:
        """The answer of `nvmlDeviceGet<name>`, or None where it is not supported."""
        try:
            return getattr(self._nvml, f"nvmlDeviceGet{name}")(self.handle, *args)
        except Exception:
            return None

    def uuid(self) -> str | None:
        """The name that stays with the GPU wherever it is plugged in."""
        return _text(self.ask("UUID"))

    def sample(self, own: Collection[int] = ()) -> dict[str, float]:
        """The `gpu_*` values of a sample, NaN where unknown; `own` are the program's pids."""
        use = self.ask("UtilizationRates")
        memory = self._memory()
        power_mw = self.ask("PowerUsage")
        return {
            "gpu_percent": _number(use.gpu if use else None),
            "gpu_memory_bytes": _number(memory.used if memory else None),
            "gpu_power_w": _number(power_mw) / 1000,
            "gpu_sm_mhz": _number(self.ask("ClockInfo", self._nvml.NVML_CLOCK_SM)),
            "gpu_temperature_c": _number(self.ask("Temperature", self._nvml.NVML_TEMPERATURE_GPU)),
            "gpu_throttle": _number(self.throttle()),
            "gpu_other_processes": self.other_processes(own),
            "gpu_energy_mj": _number(self.ask("TotalEnergyConsumption")),
        }

    def throttle(self) -> int | None:
        """NVML's bit mask of clock event reasons; drivers before 535 know it by its older name."""
        mask = self.ask("CurrentClocksEventReasons")
        if mask is None:
            mask = self.ask("CurrentClocksThrottleReasons")
        return None if mask is None else int(mask)

    def other_processes(self, own: Collection[int]) -> float:
        """Processes computing on this GPU besides `own`; NaN when that cannot be told."""
        processes = self.ask("ComputeRunningProcesses")
        if processes is None:
            return math.nan
        return count_others(
            (process.pid for process in processes), own, lambda pid: os.path.exists(f"/proc/{pid}")
        )

    def facts(self) -> dict[str, Any]:
        """What this GPU is, ready for JSON; None where not known."""
        memory = self._memory()
        capability = self.ask("CudaComputeCapability")
        limit_mw = self.ask("EnforcedPowerLimit")
        mig = self.ask("MigMode")
        pci = self.ask("PciInfo")
        numa_node, cpus = pci_place(_text(pci.busId)) if pci else (None, None)
        return {
            "index": self.index,
            "name": _text(self.ask("Name")),
            "uuid": self.uuid(),
            "memory_bytes": memory.total if memory else None,
            "driver": driver_version(),
            "compute_capability": ".".join(map(str, capability)) if capability else None,
            "power_limit_w": None if limit_mw is None else limit_mw / 1000,
            "pcie_generation": self.ask("CurrPcieLinkGeneration"),
            "pcie_width": self.ask("CurrPcieLinkWidth"),
            "pcie_generation_max": self.ask("MaxPcieLinkGeneration"),
            "pcie_width_max": self.ask("MaxPcieLinkWidth"),
            "numa_node": numa_node,
            "cpu_affinity": cpus,
            "mig": None if mig is None else bool(mig[0]),
            "energy_counter": self.ask("TotalEnergyConsumption") is not None,
        }

    def _memory(self) -> Any:
        # The second version leaves out what the driver reserves, as nvidia-smi does.
        version = getattr(self._nvml, "nvmlMemory_v2", None)
        return (version and self.ask("MemoryInfo", version)) or self.ask("MemoryInfo")


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
    """The NVIDIA driver's version, None without one."""
    nvml = open_nvml()
    try:
        return _text(nvml.nvmlSystemGetDriverVersion()) if nvml else None
    except Exception:
        return None


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _text(value: Any) -> str | None:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
