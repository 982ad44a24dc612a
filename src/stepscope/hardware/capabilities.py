"""What can be measured on a machine, and what to mind there: pure, from its description."""

from collections.abc import Iterator

from msgspec import Struct

from stepscope.hardware.ceiling_cache import CEILING_NAMES, DeviceCeilings
from stepscope.hardware.machine import Machine

_BUSY_PERCENT = 25
_WIDE_SPREAD = 0.25
_NO_TORCH = "needs torch: pip install 'stepscope[torch]'"
_NO_GPU = "needs an NVIDIA GPU"


class Capability(Struct, frozen=True):
    """Something to record: `detail` says with what, or what is missing and how to get it."""

    what: str
    ok: bool
    detail: str


def capabilities(machine: Machine) -> list[Capability]:
    """Everything there is to record, in the order of a run, with or without what it takes."""
    torch, tools = machine.torch, machine.tools
    steps = f"torch {torch.version}" if torch else _NO_TORCH
    kernels = "operators on the CPU, torch.profiler"
    if machine.gpus and torch and torch.cuda:
        kernels = "operators and GPU kernels, torch.profiler"
    compiler = "g++ found" if tools["g++"] else "needs a C++ compiler: install g++"
    nsys = "nsys; run --nvtx marks steps for it" if tools["nsys"] else "optional: put nsys on PATH"
    return [
        Capability("steps and phases", torch is not None, steps),
        _gpu_timing(machine),
        *_gpu_counters(machine),
        Capability("kernel window", torch is not None, kernels if torch else _NO_TORCH),
        _extra("host code", "py-spy", "python", machine),
        _extra("memory lines", "memray", "memory", machine),
        Capability("torch.compile", bool(tools["g++"]), compiler),
        Capability("Nsight Systems", bool(tools["nsys"]), nsys),
        _nsight_compute(machine),
    ]


def cautions(machine: Machine, ceilings: DeviceCeilings | None) -> list[str]:
    """What may make numbers from this machine misleading, one sentence each."""
    return [*_machine_cautions(machine), *(_ceiling_cautions(ceilings) if ceilings else ())]


def _machine_cautions(machine: Machine) -> Iterator[str]:
    cpu = machine.cpu
    if cpu.governor not in (None, "performance"):
        yield f"The CPU governor is {cpu.governor}: clocks and step times may drift."
    load = cpu.load_average
    if load and load[0] > cpu.usable_cores:
        yield f"The machine is busy: load {load[0]:g} on {cpu.usable_cores:g} usable cores."
    for gpu in machine.gpus:
        if count := gpu.processes:
            yield f"GPU {gpu.index} is shared: {count} process{'es' * (count > 1)} on it now."
        width, widest = gpu.pcie_width, gpu.pcie_width_max
        if width and widest and width < widest:
            yield f"GPU {gpu.index} uses {width} of {widest} PCIe lanes: copies are slower."


def _ceiling_cautions(measured: DeviceCeilings) -> Iterator[str]:
    busy = measured.busy_percent
    wide = [
        CEILING_NAMES[name].words
        for name, one in measured.ceilings.items()
        if name in CEILING_NAMES and one.spread > _WIDE_SPREAD
    ]
    if busy > _BUSY_PERCENT:
        yield f"The CPU was {busy:.0f}% busy when the ceilings were measured: they may read low."
    elif wide:
        yield f"Noisy measurements, treat as estimates: {'; '.join(wide)}."


def _gpu_timing(machine: Machine) -> Capability:
    what, torch = "GPU timing", machine.torch
    if not machine.gpus:
        missing = "no NVIDIA GPU" if machine.driver else "no NVIDIA driver"
        return Capability(what, False, f"{missing}; not needed for CPU programs")
    if torch is None:
        return Capability(what, False, _NO_TORCH)
    if not torch.cuda:
        return Capability(what, False, f"torch {torch.version} has no CUDA: install a CUDA build")
    return Capability(what, True, f"CUDA {torch.cuda} events")


def _gpu_counters(machine: Machine) -> Iterator[Capability]:
    if not machine.gpus:
        yield Capability("GPU samples", False, _NO_GPU)
        yield Capability("energy", False, _NO_GPU)
        return
    split = any(gpu.mig for gpu in machine.gpus)
    sampled = "utilization, memory, power, clocks, temperature"
    yield Capability(
        "GPU samples", True, "no utilization on a GPU split by MIG" if split else sampled
    )
    counted = any(gpu.energy_counter for gpu in machine.gpus)
    source = "the GPU's own counter" if counted else "this GPU has no energy counter"
    yield Capability("energy", counted, source)


def _extra(what: str, package: str, extra: str, machine: Machine) -> Capability:
    version = machine.packages[package]
    if version:
        return Capability(what, True, f"{package} {version}, with run --{extra}")
    return Capability(what, False, f"needs {package}: pip install 'stepscope[{extra}]'")


def _nsight_compute(machine: Machine) -> Capability:
    if not machine.tools["ncu"]:
        return Capability("Nsight Compute", False, "optional: put ncu on PATH")
    if machine.counters_need_root and not machine.is_root:
        return Capability("Nsight Compute", False, "the driver reserves GPU counters for root")
    return Capability("Nsight Compute", True, "ncu, with hardware counters")
