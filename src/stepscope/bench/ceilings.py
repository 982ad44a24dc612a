"""The ceilings of a bench's devices, measured once and cached: an MFU is a share of them."""

import os
from collections.abc import Iterable

from stepscope.bench.record import Tell
from stepscope.record.errors import StepscopeError


def matmul_ceilings(
    devices: Iterable[str], tell: Tell
) -> tuple[dict[str, dict[str, float]], list[str]]:
    """(TFLOP/s by device and arithmetic, notes on what is missing). What is not known yet is
    measured with all other ceilings of the device, so that what is kept for next time is whole."""
    found: dict[str, dict[str, float]] = {}
    notes = []
    for device in devices:
        ceilings, problem = _ceilings(device, tell)
        found[device] = {
            name.removeprefix("matmul_").removesuffix("_tflops"): value
            for name, value in ceilings.items()
            if name.startswith("matmul_")
        }
        if problem:
            notes.append(f"no MFU on {device}: {problem}")
    return found, notes


def device_ceilings(device: str, tell: Tell) -> dict[str, float]:
    """Measured ceilings by name, from the cache or measured now; empty where they cannot be."""
    found, problem = _ceilings(device, tell)
    if problem:
        tell(f"ceilings of {device} unknown: {problem}")
    return found


def _ceilings(device: str, tell: Tell) -> tuple[dict[str, float], str | None]:
    """(ceilings by name, why there are none)."""
    from stepscope.hardware.ceiling_cache import load_ceilings, save_ceilings
    from stepscope.hardware.ceilings import device_key, measure_ceilings
    from stepscope.hardware.gpus import visible_gpu_index

    key = device_key(device, visible_gpu_index(os.environ) if device == "cuda" else None)
    document = load_ceilings(key)
    if document is None:
        tell(f"measuring the ceilings of {device}, once; this takes some seconds")
        try:
            document = measure_ceilings(device, key)
            save_ceilings(document)
        except StepscopeError as problem:
            return {}, str(problem)
        except OSError:
            pass  # not kept for next time, and as good as any for this one
    return {name: one.value for name, one in document.ceilings.items()} if document else {}, None
