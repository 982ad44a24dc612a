"""The measured ceilings by name: what each is called in words, and its unit."""

from typing import Final, NamedTuple


class CeilingName(NamedTuple):
    """How a ceiling reads on a screen: the `group` is compared within itself."""

    group: str
    label: str
    unit: str

    @property
    def words(self) -> str:
        """The name in a sentence."""
        return f"{self.group}, {self.label}"


CEILING_NAMES: Final = {
    "matmul_fp32_tflops": CeilingName("matrix product", "fp32", "TFLOP/s"),
    "matmul_tf32_tflops": CeilingName("matrix product", "tf32", "TFLOP/s"),
    "matmul_fp16_tflops": CeilingName("matrix product", "fp16", "TFLOP/s"),
    "matmul_bf16_tflops": CeilingName("matrix product", "bf16", "TFLOP/s"),
    "memory_gb_per_s": CeilingName("memory", "read + write", "GB/s"),
    "h2d_pinned_gb_per_s": CeilingName("host to GPU", "pinned", "GB/s"),
    "h2d_pageable_gb_per_s": CeilingName("host to GPU", "pageable", "GB/s"),
    "d2h_pinned_gb_per_s": CeilingName("GPU to host", "pinned", "GB/s"),
    "launch_us": CeilingName("operator call", "smallest", "µs"),
}


def quantity(value: float, unit: str) -> tuple[str, str]:
    """A number in about three digits, and its unit, which changes for small and large ones."""
    if unit == "TFLOP/s" and value < 1:
        value, unit = value * 1000, "GFLOP/s"
    if unit == "GB/s" and value >= 1000:
        value, unit = value / 1000, "TB/s"
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:,.{digits}f}", unit
