"""What can be measured on a machine, and its pitfalls: pure, from its description."""

from msgspec import Struct

from stepscope.hardware.ceiling_cache import CEILING_NAMES, DeviceCeilings
from stepscope.hardware.machine import Machine

_BUSY_PERCENT = 25
_WIDE_SPREAD = 0.25
_NO_TORCH = "needs torch: pip install 'stepscope[torch]'"
_NO_GPU = "needs an NVIDIA GPU"


class Capability(Struct, frozen=True):
    """Something to record: `detail` says with which tool, or what is missing and how to get it."""

    what: str
    ok: bool
    detail: str


def capabilities(machine: Machine) -> list[Capability]:
    """Everything that can be recorded, available or not, in the order of a run."""
    torch, tools = machine.torch, machine.tools
    steps = f"torch {torch.version}" if torch else _NO_TORCH
    kernels = "operators on the CPU, torch.profiler"
    if machine.gpus and torch and torch.cuda:
        kernels = "operators and GPU kernels, torch.profiler"
    compiler = "g++ found" if tools["g++"] else "needs a C++ compiler: install g++"
    nsys = "nsys; run --nvtx marks steps for it" if tools["nsys"] else "optional: put nsys on PATH"
    reserved = machine.counters_need_root and not machine.is_root
    ncu = "the driver reserves GPU counters for root" if reserved else "ncu, with hardware counters"
    if not tools["ncu"]:
        ncu = "optional: put ncu on PATH"
    return [
        Capability("steps and phases", torch is not None, steps),
        *_gpu_capabilities(machine),
        Capability("kernel window", torch is not None, kernels if torch else _NO_TORCH),
        _extra("host code", "py-spy", "python", machine),
        _extra("memory lines", "memray", "memory", machine),
        Capability("torch.compile", bool(tools["g++"]), compiler),
        Capability("Nsight Systems", bool(tools["nsys"]), nsys),
        Capability("Nsight Compute", bool(tools["ncu"]) and not reserved, ncu),
    ]


def cautions(machine: Machine, ceilings: DeviceCeilings | None) -> list[str]:
    """What may make numbers from this machine misleading, one sentence each."""
    found = []
    cpu = machine.cpu
    if cpu.governor not in (None, "performance"):
        found.append(f"The CPU governor is {cpu.governor}: clocks and step times may drift.")
    load, cores = cpu.load_average, cpu.usable_cores
    if load and load[0] > cores:
        found.append(f"The machine is busy: load {load[0]:g} on {cores:g} usable cores.")
    for gpu in machine.gpus:
        if count := gpu.processes:
            processes = f"{count} process{'es' * (count > 1)}"
            found.append(f"GPU {gpu.index} is shared: {processes} on it now.")
        width, widest = gpu.pcie_width, gpu.pcie_width_max
        if width and widest and width < widest:
            found.append(f"GPU {gpu.index} uses {width} of {widest} PCIe lanes: copies are slower.")
    measured = ceilings.ceilings if ceilings else {}
    wide = [
        CEILING_NAMES[name].words
        for name, one in measured.items()
        if name in CEILING_NAMES and one.spread > _WIDE_SPREAD
    ]
    if ceilings and (busy := ceilings.busy_percent) > _BUSY_PERCENT:
        found.append(
            f"The CPU was {busy:.0f}% busy when the ceilings were measured: they may read low."
        )
    elif wide:
        found.append(f"Noisy measurements, treat as estimates: {'; '.join(wide)}.")
    return found


def _gpu_capabilities(machine: Machine) -> list[Capability]:
    """Timing, samples and energy."""
    torch = machine.torch
    if not machine.gpus:
        missing = "no NVIDIA GPU" if machine.driver else "no NVIDIA driver"
        timed, timing = False, f"{missing}; not needed for CPU programs"
    elif torch is None:
        timed, timing = False, _NO_TORCH
    elif not torch.cuda:
        timed, timing = False, f"torch {torch.version} has no CUDA: install a CUDA build"
    else:
        timed, timing = True, f"CUDA {torch.cuda} events"
    sampled = "utilization, memory, power, clocks, temperature"
    if any(gpu.mig for gpu in machine.gpus):
        sampled = "no utilization on a GPU split by MIG"
    counted = any(gpu.energy_counter for gpu in machine.gpus)
    energy = "the GPU's own counter" if counted else "this GPU has no energy counter"
    return [
        Capability("GPU timing", timed, timing),
        Capability("GPU samples", bool(machine.gpus), sampled if machine.gpus else _NO_GPU),
        Capability("energy", counted, energy if machine.gpus else _NO_GPU),
    ]


def _extra(what: str, package: str, extra: str, machine: Machine) -> Capability:
    version = machine.packages[package]
    if version:
        return Capability(what, True, f"{package} {version}, with run --{extra}")
    return Capability(what, False, f"needs {package}: pip install 'stepscope[{extra}]'")
