"""Interprets event names: user frames, copies, communication, and calls that block the host."""

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Final, NamedTuple

import numpy as np

from stepscope.record.timeline import (
    Column,
    DeviceKind,
    HostKind,
    Timeline,
    distinct_values,
    once_per_timeline,
)


def names_match(timeline: Timeline, column: Column, test: Callable[[str], object]) -> Column:
    """For each entry of a name column whether its name passes; nameless ones do not."""
    passes = np.zeros(len(timeline.names) + 1, bool)  # the last stands for NOTHING, which is -1
    passes[column] = True
    for index in np.flatnonzero(passes[:-1]).tolist():
        passes[index] = bool(test(timeline.names[index]))
    passes[-1] = False
    return passes[column]


_FRAME: Final = re.compile(r"(.+)\(\d+\): ")
# Kineto cuts the path of an installed package down to its name.
_LIBRARIES: Final = (
    "torch", "torchvision", "torchaudio", "torchtext", "torchmetrics", "functorch", "triton",
    "numpy", "scipy", "pandas", "PIL", "transformers", "accelerate", "lightning",
    "pytorch_lightning", "lightning_fabric", "timm", "deepspeed", "apex", "tqdm", "einops",
    "datasets", "ignite", "fastai", "stepscope", "_pytest", "pluggy",
)  # fmt: skip
# Standard modules that people also name their own scripts after.
_OFTEN_OWN: Final = ("test", "code", "trace", "profile", "cmd", "main", "select", "statistics")


def is_user_frame(name: str) -> bool:
    """Whether a Python frame is of the program itself, not of Python or of a library."""
    frame = _FRAME.match(name)
    if frame is None or name.startswith("<"):
        return False
    path = frame[1].replace("\\", "/")
    if "-packages/" in path or "/lib/python" in path:
        return False
    first = path.removeprefix("./").split("/")[0].removesuffix(".py")
    ours = first in _OFTEN_OWN and "/" not in path
    return ours or not (first in _LIBRARIES or first in sys.stdlib_module_names)


@once_per_timeline
def user_frames(timeline: Timeline) -> Column:
    """For each host event whether it is a Python frame of the program itself."""
    host = timeline.host
    named = names_match(timeline, host.name, is_user_frame)
    own: Column = (host.kind == HostKind.PYTHON) & named
    return own


def starts_with(timeline: Timeline, *prefixes: str) -> Column:
    """For each host event whether its name starts with one of these; names are read once."""
    key = f"{__name__}.starts_with{prefixes}"
    if key not in timeline.derived:
        timeline.derived[key] = np.append(timeline.named(*prefixes), False)  # the last: NOTHING
    found: Column = timeline.derived[key][timeline.host.name]
    return found


class CopyDirection(StrEnum):
    """From where to where; A is an array of the device."""

    HTOD = "HtoD"
    DTOH = "DtoH"
    DTOD = "DtoD"
    PTOP = "PtoP"
    HTOH = "HtoH"
    HTOA = "HtoA"
    ATOH = "AtoH"
    ATOA = "AtoA"
    ATOD = "AtoD"
    DTOA = "DtoA"
    MEMSET = "memset"
    UNKNOWN = "unknown"


class CopyMemory(StrEnum):
    """The host memory a copy reads or writes, or that it stays on devices."""

    PAGEABLE = "pageable"
    PINNED = "pinned"
    DEVICE = "device"
    UNKNOWN = "unknown"


_SIDES = re.compile(r"\(\s*([A-Za-z]{1,20})[A-Za-z ]{0,40}->\s*([A-Za-z]{1,20})")
_WAYS = {way.lower(): way for way in CopyDirection if "to" in way}
_WAY = re.compile("|".join(_WAYS), re.IGNORECASE)
_SPELLED = {
    ("host", "device"): CopyDirection.HTOD,
    ("device", "host"): CopyDirection.DTOH,
    ("device", "device"): CopyDirection.DTOD,
    ("host", "host"): CopyDirection.HTOH,
    ("peer", "peer"): CopyDirection.PTOP,
}
_HOST_MEMORY = {"pageable": CopyMemory.PAGEABLE, "pinned": CopyMemory.PINNED}
_WITHIN_DEVICES = ("DtoD", "PtoP", "AtoA", "AtoD", "DtoA")


class CopyName(NamedTuple):
    """What a copy's name says."""

    direction: CopyDirection
    memory: CopyMemory


@cache
def read_copy_name(name: str) -> CopyName:
    """As Kineto writes it: "Memcpy HtoD (Pageable -> Device)", or with only Host and Device."""
    match, sides = _WAY.search(name), _SIDES.search(name)
    ends = (sides[1].lower(), sides[2].lower()) if sides else ("", "")
    direction = _WAYS[match[0].lower()] if match else _SPELLED.get(ends, CopyDirection.UNKNOWN)
    if direction in _WITHIN_DEVICES:
        return CopyName(direction, CopyMemory.DEVICE)
    known = (_HOST_MEMORY[end] for end in ends if end in _HOST_MEMORY)
    return CopyName(direction, next(known, CopyMemory.UNKNOWN))


def copies_towards(timeline: Timeline, *directions: CopyDirection) -> Column:
    """For each device event whether it is a copy of one of these directions."""
    device = timeline.device
    named = names_match(timeline, device.name, lambda n: read_copy_name(n).direction in directions)
    copies: Column = (device.kind == DeviceKind.COPY) & named
    return copies


_COMMUNICATES = re.compile(
    r"nccl|rccl|gloo|nvshmem|mscclpp|cross_device_reduce|(one|two)_?shot_all_?reduce"
    r"|multimem_(all|one|two)|deep_?ep::",
    re.IGNORECASE,
)


@once_per_timeline
def communication_kernels(timeline: Timeline) -> Column:
    """A bool per device event; copies between devices are copies, not communication."""
    device = timeline.device
    named = names_match(timeline, device.name, _COMMUNICATES.search)
    talks: Column = (device.kind == DeviceKind.KERNEL) & (named | (device.collective >= 0))
    return talks


_WAITS = re.compile(
    r"^((cuda|hip)(Device|Stream|Event)|cu(Ctx|Stream|Event)|hipCtx)Synchronize"
    r"|^(cuda|hip|cu)Memcpy(?!.{0,60}Async)"
    r"|^(cuda|hip)Free(_v\d+)?$|^cuMemFree(_v\d+)?$"
)


@dataclass(frozen=True, slots=True)
class BlockingCalls:
    """Blocking calls as indices into the host events, in order of their starts."""

    events: Column
    uploads: Column  # bool: the call waits for a copy from host to device to be done


@once_per_timeline
def blocking_calls(timeline: Timeline) -> BlockingCalls:
    """Synchronisations, copies that are not asynchronous, and copies of pageable memory.

    A synchronisation that the same operator makes right after starting a copy to the device is
    that copy's, as in a plain `.to(device)`.
    """
    host, device = timeline.host, timeline.device
    calls = np.flatnonzero(host.kind == HostKind.RUNTIME)
    waits = calls[names_match(timeline, host.name[calls], _WAITS.search)]
    copies = np.flatnonzero((device.kind == DeviceKind.COPY) & (device.launch >= 0))
    launch, name = device.launch[copies], device.name[copies]
    to_device = launch[copies_towards(timeline, CopyDirection.HTOD)[copies]]
    pageable = launch[
        names_match(timeline, name, lambda n: read_copy_name(n).memory is CopyMemory.PAGEABLE)
    ]
    events = distinct_values(np.append(waits, pageable)).astype(np.int64)
    uploads, uploading = np.isin(events, to_device), distinct_values(to_device)
    if len(uploading):
        last = uploading[np.maximum(np.searchsorted(uploading, events) - 1, 0)]
        parent = host.parent[events]
        uploads |= (last < events) & (parent >= 0) & (host.parent[last] == parent)
    return BlockingCalls(events, uploads)
