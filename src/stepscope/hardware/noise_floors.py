"""How far processes of one program differ on a machine, kept between commands.

One JSON file per machine and device in the user's cache folder. It holds mean step times of groups
of processes that did the same, so that a later comparison of single processes knows the noise.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from stepscope.hardware.ceiling_cache import cache_file, short_digest
from stepscope.stats.verdict import noise_floor
from stepscope.store.json_file import write_json

SCHEMA: Final = 1
MIN_GROUP_SIZE: Final = 3
"""Processes of a group worth keeping."""
_MOST_GROUPS: Final = 100  # the oldest are forgotten first


@dataclass(frozen=True, slots=True)
class NoiseFloor:
    """The difference, as a share, that two processes of one thing stay within 19 times of 20."""

    share: float
    processes: int
    """It was measured with."""
    same: bool
    """Of the very thing that was asked for; otherwise of whatever else was measured here."""


def machine_key(machine: Mapping[str, Any], device: str | None) -> str:
    """What noise belongs to: the processor, its cores and, on `cuda`, the GPU and its driver."""
    cpu = machine.get("cpu") or {}
    key = f"{cpu.get('model')} x {cpu.get('usable_cores')}"
    gpus = machine.get("gpus") or ()
    if device == "cuda" and gpus:
        key += f" | {gpus[0].get('name')} | {machine.get('driver')}"
    return key


def save_group(key: str, thing: str, means_ms: Sequence[float]) -> bool:
    """Keep the mean step times of processes that did the same; whether that was worth it.

    The same group told twice counts once. A cache that cannot be written is done without.
    """
    if len(means_ms) < MIN_GROUP_SIZE or not all(math.isfinite(ms) and ms > 0 for ms in means_ms):
        return False
    groups = [one for one in _groups(key) if one["means_ms"] != list(means_ms)]
    groups.append({"thing": short_digest(thing), "means_ms": list(means_ms)})
    try:
        path = cache_file(key, "noise")
        path.parent.mkdir(parents=True, exist_ok=True)
        document = {"schema": SCHEMA, "key": key, "groups": groups[-_MOST_GROUPS:]}
        write_json(path, document, indent=None)
    except OSError:
        return False
    return True


def known_noise_floor(key: str, thing: str) -> NoiseFloor | None:
    """The floor of this thing, else of everything measured on the machine; None: nothing was."""
    groups = _groups(key)
    own = [one["means_ms"] for one in groups if one["thing"] == short_digest(thing)]
    chosen = own or [one["means_ms"] for one in groups]
    share = noise_floor([[[ms] for ms in means] for means in chosen])
    if share is None:
        return None
    return NoiseFloor(share, sum(map(len, chosen)), bool(own))


def _groups(key: str) -> list[dict[str, Any]]:
    """What is kept; nothing where the file cannot be trusted."""
    try:
        document = json.loads(cache_file(key, "noise").read_text())
    except (OSError, ValueError):
        return []
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        return []
    groups = document.get("groups")
    return [one for one in groups if _is_sound(one)] if isinstance(groups, list) else []


def _is_sound(group: Any) -> bool:
    means = group.get("means_ms") if isinstance(group, dict) else None
    return (
        isinstance(means, list)
        and len(means) >= MIN_GROUP_SIZE
        and isinstance(group.get("thing"), str)
        and all(isinstance(ms, int | float) and math.isfinite(ms) and ms > 0 for ms in means)
    )
