"""The ceilings of a bench's devices, measured once and cached: an MFU is a share of them."""

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from stepscope.record.errors import StepscopeError

if TYPE_CHECKING:
    from stepscope.hardware.ceiling_cache import DeviceCeilings

_BEFORE, _AFTER = "matmul_", "_tflops"


def matmul_ceilings(
    devices: Iterable[str], tell: Callable[[str], None]
) -> tuple[dict[str, dict[str, float]], list[str]]:
    """(TFLOP/s by device and arithmetic, notes on what is missing).

    What is not known yet is measured with all other ceilings of the device, so that what is kept
    for next time is whole.
    """
    found: dict[str, dict[str, float]] = {}
    notes = []
    for device in devices:
        document, problem = _document(device, tell)
        found[device] = products(document)
        if problem:
            notes.append(f"no MFU on {device}: {problem}")
    return found, notes


def products(document: "DeviceCeilings | None") -> dict[str, float]:
    """TFLOP/s by arithmetic ("fp32", "tf32", "bf16", "fp16") in a document of ceilings."""
    return {
        name.removeprefix(_BEFORE).removesuffix(_AFTER): entry.value
        for name, entry in (document.ceilings if document else {}).items()
        if name.startswith(_BEFORE)
    }


def _document(
    device: str, tell: Callable[[str], None]
) -> "tuple[DeviceCeilings | None, str | None]":
    from stepscope.hardware.ceiling_cache import load_ceilings, save_ceilings
    from stepscope.hardware.ceilings import device_key, measure_ceilings
    from stepscope.hardware.gpus import visible_gpu_index

    key = device_key(device, visible_gpu_index(os.environ) if device == "cuda" else None)
    document = load_ceilings(key)
    if document is not None:
        return document, None
    tell(f"measuring the ceilings of {device}, once; this takes some seconds")
    try:
        document = measure_ceilings(device, key)
        save_ceilings(document)
    except StepscopeError as problem:
        return None, str(problem)
    except OSError:
        pass  # not kept for next time, and as good as any for this one
    return document, None


def device_ceilings(device: str, tell: Callable[[str], None]) -> dict[str, float]:
    """Measured ceilings by name, from the cache or measured now; empty where they cannot be."""
    document, problem = _document(device, tell)
    if problem:
        tell(f"ceilings of {device} unknown: {problem}")
    found = document.ceilings if document else {}
    return {name: entry.value for name, entry in found.items()}
