"""Memory for rules about it: how full the device got, and with what."""

from dataclasses import dataclass

from stepscope.diagnose.case import Case

SCARCE = 0.8
"""Of the device's memory: from here on it is worth saving."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of the device the program ran on."""

    device: str
    peak: float
    """The most that was in use, with what the allocator holds back for later use."""
    allocated: float
    total: float
    owners: dict[str, float]

    @property
    def full(self) -> float:
        """The peak as a share of what there is."""
        return self.peak / self.total

    def share(self, owner: str) -> float:
        """An owner's part of what was allocated at the peak; 0 where not known."""
        return self.owners.get(owner, 0.0) / self.allocated if self.allocated else 0.0


def memory(case: Case) -> Memory | None:
    """None where a peak or the device's size is not known."""
    show = case.show or {}
    gpu = show.get("gpu")
    owners = {
        name: float(value)
        for name, value in ((show.get("memory") or {}).get("owners") or {}).items()
        if value
    }
    machine = (show.get("config") or {}).get("machine") or {}
    if gpu:
        gpus = machine.get("gpus") or [{}]
        total = gpu.get("total_bytes") or gpus[0].get("memory_bytes")
        peak, allocated = gpu.get("peak_reserved_bytes"), gpu.get("peak_allocated_bytes")
        device = "cuda"
    else:
        room = machine.get("memory") or {}
        total = room.get("limit_bytes") or room.get("total_bytes")
        peak = allocated = (show.get("host") or {}).get("peak_rss_bytes")
        device = "cpu"
    if not peak or not total:
        return None
    return Memory(device, float(peak), float(allocated or peak), float(total), owners)


def amount(count: float) -> str:
    """Bytes as a sentence has them: "62.1 GB"."""
    for unit, size in (("GB", 1e9), ("MB", 1e6)):
        if count >= size:
            return f"{count / size:,.1f} {unit}"
    return f"{count / 1e3:,.0f} kB"
