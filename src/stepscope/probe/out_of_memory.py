"""Running out of memory: the moment it happens on CUDA, and how to recognise it afterwards."""

from collections.abc import Callable
from typing import Any

_NAMES = ("OutOfMemoryError", "MemoryError", "_ArrayMemoryError")
_MESSAGES = (
    "out of memory",
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
    "Unable to allocate",
    "Cannot allocate memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)


def is_out_of_memory(exc_type_name: str, message: str) -> bool:
    """Whether an exception means that host or device memory ran out."""
    if exc_type_name.rsplit(".", 1)[-1] in _NAMES:
        return True
    return any(text in message for text in _MESSAGES)


def watch_out_of_memory(write: Callable[[dict[str, Any]], None]) -> None:
    """Have `write` called with one fact whenever a CUDA allocation fails.

    Also called for failures the program or cuDNN recovers from. `write` runs on the failing
    thread without the allocator's lock, so it may read statistics and snapshots.
    """
    import torch

    def observer(device: int, requested: int, total: int, free: int) -> None:
        # An exception here would replace the program's own error.
        try:
            stats = torch.cuda.memory_stats(device)
            write(
                {
                    "requested_bytes": requested,
                    "allocated_bytes": stats.get("allocated_bytes.all.current"),
                    "reserved_bytes": stats.get("reserved_bytes.all.current"),
                    "free_bytes": free,
                    "total_bytes": total,
                    "device": device,
                }
            )
        except Exception:
            return

    def attach() -> None:
        try:
            torch._C._cuda_attach_out_of_memory_observer(observer)
        except Exception:
            return

    torch.cuda._lazy_call(attach)
