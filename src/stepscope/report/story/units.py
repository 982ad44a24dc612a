"""Units that fit what is shown."""

from collections.abc import Iterable


def memory_unit(values: Iterable[float | None]) -> tuple[float, str]:
    """What to divide bytes by, and the unit's name, so that the largest reads well."""
    most = max((value for value in values if value is not None and value == value), default=0.0)
    for power, name in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if most >= 1024.0**power:
            return 1024.0**power, name
    return 1.0, "bytes"


def rate(value: float, unit: str) -> str:
    """`495 TFLOP/s`, `4.8 TB/s`."""
    for power, letter in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if value >= power:
            return f"{value / power:.3g} {letter}{unit}"
    return f"{value:.3g} {unit}"
