"""The measured ceilings by name and unit, kept between runs in the user's cache folder, one JSON
file per device.
"""

import math
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct

from stepscope.store.json_file import write_json


class CeilingName(NamedTuple):
    """A ceiling's name on screen; ceilings are compared within their `group`."""

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


def format_quantity(value: float, unit: str) -> tuple[str, str]:
    """A number with about three digits and a unit that suits its size."""
    if unit == "TFLOP/s" and value < 1:
        value, unit = value * 1000, "GFLOP/s"
    if unit == "GB/s" and value >= 1000:
        value, unit = value / 1000, "TB/s"
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:,.{digits}f}", unit


_SCHEMA: Final = 1


class Ceiling(Struct, frozen=True):
    """A measured rate or time: the sustained value, the median of the steady repeats. `spread` is
    the width of their middle 80% over the median; `best` the best repeat, which a GPU reaches only
    until its power limit sets in."""

    value: float
    spread: float
    best: float | None = None
    repeats: int = 0
    size: int = 0


class DeviceCeilings(Struct, frozen=True, kw_only=True):
    """What was measured on a device, by the names of `CEILING_NAMES`."""

    schema: int = _SCHEMA
    key: str
    device: str | None = None
    torch: str | None = None
    threads: int = 0
    busy_percent: float = 0.0  # how busy the CPU was before
    measured_at: str = ""
    ceilings: dict[str, Ceiling]
    failed: dict[str, str] = {}  # why the others could not be measured


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """$STEPSCOPE_CACHE, else $XDG_CACHE_HOME/stepscope, else ~/.cache/stepscope."""
    if own := environ.get("STEPSCOPE_CACHE"):
        return Path(own)
    return Path(environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "stepscope"


def cache_file(key: str, kind: str = "ceilings") -> Path:
    """The cache file of a device or machine: a readable name made unique by a digest."""
    name = re.sub(r"[^a-z0-9]+", "-", key.lower()).strip("-")[:60]
    return cache_folder() / f"{kind}-{name}-{short_digest(key)}.json"


def short_digest(text: str) -> str:
    from hashlib import sha256  # loads OpenSSL

    return sha256(text.encode(errors="replace")).hexdigest()[:8]


def load_ceilings(device_key: str) -> DeviceCeilings | None:
    """This device's ceilings; None if not measured, or if the file is not valid."""
    found = _read([cache_file(device_key)])
    return found[0] if found and found[0].key == device_key else None


def known_ceilings() -> list[DeviceCeilings]:
    """Ceilings of all devices seen so far, without invalid files."""
    return _read(sorted(cache_folder().glob("ceilings-*.json")))


def save_ceilings(document: DeviceCeilings) -> None:
    """Raises OSError if the folder cannot be written."""
    path = cache_file(document.key)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, msgspec.to_builtins(document))


def _read(paths: Iterable[Path]) -> list[DeviceCeilings]:
    found = []
    for path in paths:
        try:
            document = msgspec.json.decode(path.read_bytes(), type=DeviceCeilings)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            continue
        known = document.ceilings.values() if document.schema == _SCHEMA else ()
        if known and all(0 < one.value < math.inf and math.isfinite(one.spread) for one in known):
            found.append(document)
    return found
