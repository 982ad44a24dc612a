"""Memory of the present process: a limit to it, its peak, and whether it ran out."""

import resource
from pathlib import Path
from typing import Any

_STATUS = Path("/proc/self/status")
_NAMES = ("OutOfMemoryError", "MemoryError", "_ArrayMemoryError")
_MESSAGES = (
    "out of memory",
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
    "Cannot allocate memory",
    "Unable to allocate",
    "bad_alloc",
    "can't start new thread",
    "could not create a primitive",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)


def limit_memory(device: Any, gib: float) -> None:
    """From now on more than this many GiB on the device are answered with out of memory.

    On the CPU what counts is memory this process has written to or asks for from now on.
    """
    most = int(gib * 2**30)
    if device.type == "cuda":
        import torch

        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, most / total), device)
        return
    reserved = max(0, _status("VmData") - _status("RssAnon"))
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (most + reserved, hard))


def lift_limit() -> None:
    """Give memory back to what is still to be done on the host."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))


def peak_memory(device: Any) -> dict[str, int | None]:
    """Most bytes held at a time since the program began, and reserved for it (CUDA only)."""
    if device.type == "cuda":
        import torch

        return {
            "peak_memory_bytes": int(torch.cuda.max_memory_allocated(device)),
            "reserved_memory_bytes": int(torch.cuda.max_memory_reserved(device)),
        }
    # What getrusage says of a process begins with the peak of the one that started it.
    peak = _status("VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"peak_memory_bytes": peak, "reserved_memory_bytes": None}


def forget_peak() -> None:
    """Let the host's peak begin anew at what is held now."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception means that memory of the host or the device ran out."""
    if type(error).__name__ in _NAMES:
        return True
    return any(text in str(error) for text in _MESSAGES)


def _status(field: str) -> int:
    """A field of /proc/self/status in bytes; 0 where there is none."""
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return 0
    for line in lines:
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    return 0
