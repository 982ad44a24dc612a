"""Samples kept in memory: how large they are, copies of them, and how much memory there is."""

import copy
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from stepscope.hardware.cgroup import limits

_UNITS: Final = {"": 1 << 20, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_OVERHEAD: Final = 64
_FIXED: Final = (type(None), bool, int, float, complex, str, bytes)


def parse_size(text: str) -> int | None:
    """Bytes in `4G`, `500M` or `500` (MiB); None where it is no size."""
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,3})?)\s?([KMGT]?)(?:i?B)?", text.strip(), re.I)
    if found is None:
        return None
    return int(float(found[1]) * _UNITS[found[2].upper()]) or None


def size_text(count: float) -> str:
    """Bytes in a person's unit."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def free_bytes(root: Path = Path("/")) -> int | None:
    """Memory this process may still take; None where the system does not say."""
    try:
        text = (root / "proc/meminfo").read_text()
        own = (root / "proc/self/statm").read_text()
    except OSError:
        return None
    found = re.search(r"MemAvailable:\s+(\d+) kB", text)
    if found is None:
        return None
    _, limit = limits(root)
    free = int(found[1]) << 10
    return free if limit is None else max(0, min(free, limit - int(own.split()[1]) * 4096))


def size_of(sample: Any) -> int:
    """About how many bytes a sample takes."""
    if isinstance(sample, (bytes, str)):
        return _OVERHEAD + len(sample)
    if isinstance(sample, Mapping):
        return _OVERHEAD + sum(size_of(value) + _OVERHEAD for value in sample.values())
    if isinstance(sample, (list, tuple)):
        return _OVERHEAD + sum(map(size_of, sample))
    pixels = getattr(sample, "size", None)
    if hasattr(sample, "getbands") and isinstance(pixels, tuple):  # an image of PIL
        return _OVERHEAD + int(pixels[0] * pixels[1] * len(sample.getbands()))
    held = getattr(sample, "__dict__", None)
    return _OVERHEAD + int(getattr(sample, "nbytes", 0)) + (size_of(held) if held else 0)


def copy_of(sample: Any) -> Any:
    """A sample that may be changed without changing this one."""
    if isinstance(sample, _FIXED):
        return sample
    if hasattr(sample, "untyped_storage") and hasattr(sample, "clone"):
        return sample.clone()
    kind = type(sample)
    if kind in (list, tuple):
        return kind(copy_of(item) for item in sample)
    if kind is dict:
        return {key: copy_of(item) for key, item in sample.items()}
    return copy.deepcopy(sample)
