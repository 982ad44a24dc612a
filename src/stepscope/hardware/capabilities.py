"""What can be measured on a machine, and what to mind there: pure, from its description."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from stepscope.hardware.ceiling_cache import CEILING_NAMES

_BUSY_PERCENT = 25
_WIDE_SPREAD = 0.25


@dataclass(frozen=True)
class Capability:
    """Something to record: `detail` says with what, or what is missing and how to get it."""

    what: str
    ok: bool
    detail: str


def capabilities(machine: dict[str, Any]) -> list[Capability]:
    """Everything there is to record, in the order of a run, with or without what it takes."""
    return [
        _steps(machine),
        _gpu_timing(machine),
        _gpu_samples(machine),
        _energy(machine),
        _window(machine),
        _extra("host code", "py-spy", "python", machine),
        _extra("memory lines", "memray", "memory", machine),
        _compiled(machine),
        _nsight_systems(machine),
        _nsight_compute(machine),
    ]


def cautions(machine: dict[str, Any], ceilings: dict[str, Any] | None) -> list[str]:
    """What may make numbers from this machine misleading, one sentence each."""
    return [*_machine_cautions(machine), *_ceiling_cautions(ceilings or {})]


def _machine_cautions(machine: dict[str, Any]) -> Iterator[str]:
    cpu = machine["cpu"]
    if cpu["governor"] not in (None, "performance"):
        yield f"The CPU governor is {cpu['governor']}: clocks and step times may drift."
    load = cpu["load_average"]
    if load and load[0] > cpu["usable_cores"]:
        yield f"The machine is busy: load {load[0]:g} on {cpu['usable_cores']:g} usable cores."
    for gpu in machine["gpus"]:
        if gpu["processes"]:
            count = gpu["processes"]
            yield f"GPU {gpu['index']} is shared: {count} process{'es' * (count > 1)} on it now."
        width, widest = gpu["pcie_width"], gpu["pcie_width_max"]
        if width and widest and width < widest:
            yield f"GPU {gpu['index']} uses {width} of {widest} PCIe lanes: copies are slower."


def _ceiling_cautions(ceilings: dict[str, Any]) -> Iterator[str]:
    busy = ceilings.get("busy_percent") or 0
    wide = [
        CEILING_NAMES[name].words
        for name, entry in ceilings.get("ceilings", {}).items()
        if name in CEILING_NAMES and entry["spread"] > _WIDE_SPREAD
    ]
    if busy > _BUSY_PERCENT:
        yield f"The CPU was {busy:.0f}% busy when the ceilings were measured: they may read low."
    elif wide:
        yield f"Noisy measurements, treat as estimates: {'; '.join(wide)}."


def _steps(machine: dict[str, Any]) -> Capability:
    if not machine["torch"]:
        return Capability("steps and phases", False, "needs torch: pip install 'stepscope[torch]'")
    return Capability("steps and phases", True, f"torch {machine['torch']['version']}")


def _gpu_timing(machine: dict[str, Any]) -> Capability:
    what, torch = "GPU timing", machine["torch"]
    if not machine["gpus"]:
        missing = "no NVIDIA GPU" if machine["driver"] else "no NVIDIA driver"
        return Capability(what, False, f"{missing}; not needed for CPU programs")
    if not torch:
        return Capability(what, False, "needs torch: pip install 'stepscope[torch]'")
    if not torch["cuda"]:
        return Capability(
            what, False, f"torch {torch['version']} has no CUDA: install a CUDA build"
        )
    return Capability(what, True, f"CUDA {torch['cuda']} events")


def _gpu_samples(machine: dict[str, Any]) -> Capability:
    if not machine["gpus"]:
        return Capability("GPU samples", False, "needs an NVIDIA GPU")
    if any(gpu["mig"] for gpu in machine["gpus"]):
        return Capability("GPU samples", True, "no utilization on a GPU split by MIG")
    return Capability("GPU samples", True, "utilization, memory, power, clocks, temperature")


def _energy(machine: dict[str, Any]) -> Capability:
    if not machine["gpus"]:
        return Capability("energy", False, "needs an NVIDIA GPU")
    if not any(gpu["energy_counter"] for gpu in machine["gpus"]):
        return Capability("energy", False, "this GPU has no energy counter")
    return Capability("energy", True, "the GPU's own counter")


def _window(machine: dict[str, Any]) -> Capability:
    torch = machine["torch"]
    if not torch:
        return Capability("kernel window", False, "needs torch: pip install 'stepscope[torch]'")
    if machine["gpus"] and torch["cuda"]:
        return Capability("kernel window", True, "operators and GPU kernels, torch.profiler")
    return Capability("kernel window", True, "operators on the CPU, torch.profiler")


def _extra(what: str, package: str, extra: str, machine: dict[str, Any]) -> Capability:
    version = machine["packages"][package]
    if version:
        return Capability(what, True, f"{package} {version}, with run --{extra}")
    return Capability(what, False, f"needs {package}: pip install 'stepscope[{extra}]'")


def _compiled(machine: dict[str, Any]) -> Capability:
    if machine["tools"]["g++"]:
        return Capability("torch.compile", True, "g++ found")
    return Capability("torch.compile", False, "needs a C++ compiler: install g++")


def _nsight_systems(machine: dict[str, Any]) -> Capability:
    if machine["tools"]["nsys"]:
        return Capability("Nsight Systems", True, "nsys; run --nvtx marks steps for it")
    return Capability("Nsight Systems", False, "optional: put nsys on PATH")


def _nsight_compute(machine: dict[str, Any]) -> Capability:
    if not machine["tools"]["ncu"]:
        return Capability("Nsight Compute", False, "optional: put ncu on PATH")
    if machine["counters_need_root"] and not machine["is_root"]:
        return Capability("Nsight Compute", False, "the driver reserves GPU counters for root")
    return Capability("Nsight Compute", True, "ncu, with hardware counters")
