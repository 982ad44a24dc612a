"""The measured ceilings by name and unit, kept between runs in the user's cache folder, one JSON
file per device.
"""

import hashlib
import json
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from stepscope.store.json_file import write_json


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


def format_quantity(value: float, unit: str) -> tuple[str, str]:
    """A number in about three digits, and its unit, which changes for small and large ones."""
    if unit == "TFLOP/s" and value < 1:
        value, unit = value * 1000, "GFLOP/s"
    if unit == "GB/s" and value >= 1000:
        value, unit = value / 1000, "TB/s"
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:,.{digits}f}", unit


CEILINGS_SCHEMA: Final = 1


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """$STEPSCOPE_CACHE, else $XDG_CACHE_HOME/stepscope, else ~/.cache/stepscope."""
    if environ.get("STEPSCOPE_CACHE"):
        return Path(environ["STEPSCOPE_CACHE"])
    if environ.get("XDG_CACHE_HOME"):
        return Path(environ["XDG_CACHE_HOME"]) / "stepscope"
    return Path("~/.cache/stepscope").expanduser()


def cache_file(key: str, kind: str = "ceilings") -> Path:
    """The file of a device or machine: a readable name, made unique by a digest."""
    name = re.sub(r"[^a-z0-9]+", "-", key.lower()).strip("-")[:60]
    return cache_folder() / f"{kind}-{name}-{short_digest(key)}.json"


def short_digest(text: str) -> str:
    """Eight hex digits."""
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:8]


def load_ceilings(device_key: str) -> dict[str, Any] | None:
    """What was measured on this device; None if it was not, or if the file cannot be trusted."""
    try:
        document = json.loads(cache_file(device_key).read_text())
    except (OSError, ValueError):
        return None
    return document if _is_sound(document, device_key) else None


def known_ceilings() -> list[dict[str, Any]]:
    """What was measured on all devices seen so far; files that cannot be trusted are left out."""
    found = []
    for path in sorted(cache_folder().glob("ceilings-*.json")):
        try:
            document = json.loads(path.read_text())
        except (OSError, ValueError):
            continue
        if isinstance(document, dict) and _is_sound(document, str(document.get("key"))):
            found.append(document)
    return found


def save_ceilings(document: dict[str, Any]) -> Path:
    """Keep a document. Raises OSError where the folder cannot be written."""
    path = cache_file(document["key"])
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, document)
    return path


def _is_sound(document: Any, device_key: str) -> bool:
    if not isinstance(document, dict) or document.get("schema") != CEILINGS_SCHEMA:
        return False
    ceilings = document.get("ceilings")
    return (
        document.get("key") == device_key
        and isinstance(ceilings, dict)
        and bool(ceilings)
        and all(isinstance(entry, dict) and _is_sound_entry(entry) for entry in ceilings.values())
    )


def _is_sound_entry(entry: dict[str, Any]) -> bool:
    value, spread = entry.get("value"), entry.get("spread")
    return (
        isinstance(value, int | float)
        and isinstance(spread, int | float)
        and math.isfinite(value)
        and math.isfinite(spread)
        and value > 0
    )
