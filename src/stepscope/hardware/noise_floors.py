"""How far processes of one program differ on a machine, kept between commands.

One JSON file per machine and device in the user's cache folder holds mean step times of groups of
processes that did the same thing. A run stores what is known of its program when it is made, so
that comparisons with it do not depend on later measurements.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec import Struct

from stepscope.hardware.ceiling_cache import cache_file, short_digest
from stepscope.hardware.machine import Machine
from stepscope.stats.verdict import noise_floor
from stepscope.store.json_file import write_json

_SCHEMA: Final = 1
MIN_GROUP_SIZE: Final = 3  # processes of a group worth keeping
_MOST_GROUPS: Final = 100  # the oldest are dropped first


class _Group(Struct, frozen=True):
    """Mean step times of processes that did the same thing, named by a digest."""

    thing: str
    means_ms: list[float]


class _Cache(Struct, frozen=True):
    schema: int
    key: str
    groups: list[_Group]


@dataclass(frozen=True, slots=True)
class NoiseFloor:
    """The difference, as a share, within which two processes of one thing stay 19 times of 20."""

    share: float
    processes: int  # how many it was measured with


def machine_key(machine: Machine, device: str | None) -> str:
    """The key of noise: the processor, its cores and, on `cuda`, the GPU and its driver."""
    key = f"{machine.cpu.model} x {machine.cpu.usable_cores}"
    if device == "cuda" and machine.gpus:
        key += f" | {machine.gpus[0].name} | {machine.driver}"
    return key


def program_key(program: str) -> str:
    """The key of a program's noise, whether it was run or tuned."""
    name = program.replace("\\", "/").rpartition("/")[2]
    return f"program {name}"


def save_group(key: str, thing: str, means_ms: Sequence[float]) -> bool:
    """Store the mean step times of processes that did the same thing; returns whether they were
    stored. A group stored twice counts once; an unwritable cache is ignored."""
    if not _is_sound(means_ms):
        return False
    groups = [one for one in _groups(key) if one.means_ms != list(means_ms)]
    groups.append(_Group(short_digest(thing), list(means_ms)))
    try:
        path = cache_file(key, "noise")
        path.parent.mkdir(parents=True, exist_ok=True)
        document = _Cache(_SCHEMA, key, groups[-_MOST_GROUPS:])
        write_json(path, msgspec.to_builtins(document), indent=None)
    except OSError:
        return False
    return True


def known_noise_floor(key: str, thing: str) -> NoiseFloor | None:
    """The floor of this thing; None if never measured on the machine."""
    own = [one.means_ms for one in _groups(key) if one.thing == short_digest(thing)]
    share = noise_floor([[[ms] for ms in means] for means in own])
    return None if share is None else NoiseFloor(share, sum(map(len, own)))


def _groups(key: str) -> list[_Group]:
    """The stored groups; none if the file is not valid."""
    try:
        found = msgspec.json.decode(cache_file(key, "noise").read_bytes(), type=_Cache)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return []
    return [one for one in found.groups if found.schema == _SCHEMA and _is_sound(one.means_ms)]


def _is_sound(means_ms: Sequence[float]) -> bool:
    return len(means_ms) >= MIN_GROUP_SIZE and all(0 < ms < math.inf for ms in means_ms)
