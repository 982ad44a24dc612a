"""A device's ceilings: measured, or from the datasheet."""

import re
from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct

from stepscope.hardware.ceiling_cache import DeviceCeilings
from stepscope.record.timeline import DeviceInfo, Timeline


class Ceilings(Struct, frozen=True):
    """A device's ceilings."""

    flops_per_s: dict[str, float]  # by dtype, dense: fp32 ordinary units, tf32, bf16 … matrix units
    bytes_per_s: float  # of its memory
    source: str  # "measured" or "datasheet"


# Dense rates in TFLOP/s and memory in GB/s, from the makers' datasheets; first match wins.
_HOPPER: Final = {"fp64": 34, "fp32": 67, "tf32": 495, "fp16": 989, "bf16": 989, "fp8": 1979}
_HOPPER_NVL: Final = {"fp64": 30, "fp32": 60, "tf32": 418, "fp16": 836, "bf16": 836, "fp8": 1671}
_MI300: Final = {"fp64": 81.7, "fp32": 163, "tf32": 654, "fp16": 1307, "bf16": 1307, "fp8": 2615}
_A100: Final = {"fp64": 9.7, "fp32": 19.5, "tf32": 156, "fp16": 312, "bf16": 312, "int8": 624}
_B200: Final = {"fp64": 37, "fp32": 75, "tf32": 1100, "fp16": 2250, "bf16": 2250, "fp8": 4500}
_H100_PCIE: Final = {"fp64": 26, "fp32": 51, "tf32": 378, "fp16": 756, "bf16": 756, "fp8": 1513}
_DATASHEETS: Final[tuple[tuple[str, Mapping[str, float], float], ...]] = (
    (r"B200", _B200, 8000),
    (r"H200 NVL", _HOPPER_NVL, 4800),
    (r"H200", _HOPPER, 4800),
    (r"H100 NVL", _HOPPER_NVL, 3900),
    (r"H100 PCIe", _H100_PCIE, 2000),
    (r"H100", _HOPPER, 3350),
    (r"A100.*PCIE.*80|A100 80GB PCIe", _A100, 1935),
    (r"A100", _A100, 1555),
    (r"V100.*PCIE", {"fp64": 7, "fp32": 14, "fp16": 112}, 900),
    (r"V100", {"fp64": 7.8, "fp32": 15.7, "fp16": 125}, 900),
    (r"P100", {"fp64": 4.7, "fp32": 9.3, "fp16": 18.7}, 732),
    (r"L40S", {"fp32": 91.6, "tf32": 183, "fp16": 362, "bf16": 362, "fp8": 733}, 864),
    (r"L40", {"fp32": 90.5, "tf32": 90.5, "fp16": 181, "bf16": 181, "fp8": 362}, 864),
    (r"\bL4\b", {"fp32": 30.3, "tf32": 60, "fp16": 121, "bf16": 121, "fp8": 242}, 300),
    (r"A10\b", {"fp32": 31.2, "tf32": 62.5, "fp16": 125, "bf16": 125, "int8": 250}, 600),
    (r"A30\b", {"fp64": 5.2, "fp32": 10.3, "tf32": 82, "fp16": 165, "bf16": 165, "int8": 330}, 933),
    (r"A40\b", {"fp32": 37.4, "tf32": 74.8, "fp16": 150, "bf16": 150, "int8": 299}, 696),
    (r"RTX A6000", {"fp32": 38.7, "tf32": 77.4, "fp16": 155, "bf16": 155, "int8": 310}, 768),
    (r"\bT4\b", {"fp32": 8.1, "fp16": 65, "int8": 130}, 320),
    (r"RTX 5090", {"fp32": 105, "tf32": 105, "fp16": 210, "bf16": 210, "fp8": 419}, 1792),
    (r"RTX 4090", {"fp32": 82.6, "tf32": 82.6, "fp16": 165, "bf16": 165, "fp8": 330}, 1008),
    (r"RTX 3090", {"fp32": 35.6, "tf32": 35.6, "fp16": 71, "bf16": 71, "int8": 284}, 936),
    (r"MI325X", _MI300, 6000),
    (r"MI300X", _MI300, 5300),
    # One of its two dies, which is what a program sees as a device.
    (r"MI250X", {"fp64": 23.9, "fp32": 23.9, "fp16": 191, "bf16": 191}, 1638),
)
_MEASURED: Final = re.compile(r"matmul_(\w+)_tflops")


def datasheet_ceilings(device: DeviceInfo) -> Ceilings | None:
    """A device's datasheet; None for devices not in the table."""
    for pattern, tflops, gb_per_s in _DATASHEETS:
        if device.name and re.search(pattern, device.name, re.IGNORECASE):
            if gb_per_s == 1555 and (device.memory_bytes or 0) > 60 << 30:  # the A100 of 80 GB
                gb_per_s = 2039
            rates = {dtype: rate * 1e12 for dtype, rate in tflops.items()}
            return Ceilings(rates, gb_per_s * 1e9, "datasheet")
    return None


def measured_ceilings(document: DeviceCeilings) -> Ceilings | None:
    """As roofline ceilings; None where the memory's rate was not measured."""
    entries = document.ceilings
    memory = entries.get("memory_gb_per_s")
    if memory is None:
        return None
    rates = {
        found[1]: entry.value * 1e12
        for name, entry in entries.items()
        if (found := _MEASURED.fullmatch(name))
    }
    return Ceilings(rates, memory.value * 1e9, "measured")


def ceilings_for(timeline: Timeline, cached: Iterable[DeviceCeilings] = ()) -> Ceilings | None:
    """Those measured on a device of the same name, else the datasheet's, else None."""
    device = used_device(timeline)
    if device is None:
        return None
    own = (document for document in cached if device.name and document.device == device.name)
    measured = filter(None, map(measured_ceilings, own))
    return next(measured, None) or datasheet_ceilings(device)


def used_device(timeline: Timeline) -> DeviceInfo | None:
    """The device that did the work; a recording describes all that were visible."""
    used = {stream.device for stream in timeline.streams}
    known = [device for device in timeline.devices if device.name]
    return next((d for d in known if d.index in used), known[0] if known else None)
