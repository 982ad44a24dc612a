"""Copies and memsets: how many bytes went which way, how fast, and whether compute hid them."""

from dataclasses import dataclass

import numpy as np

from stepscope.analyze.timeline.copynames import CopyName, read_copy_name
from stepscope.analyze.timeline.devicework import DeviceWork, device_work
from stepscope.analyze.timeline.intervals import covered
from stepscope.record.timeline import Column, DeviceKind, Timeline

SMALL_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Copies:
    """Those of one direction and memory, over all devices, the whole recording."""

    direction: str  # HtoD, DtoH, DtoD, PtoP, …, "memset" or "unknown"
    memory: str  # "pageable" or "pinned" host memory, "device", or "unknown"
    count: int
    small: int  # of at most 64 KiB
    bytes: int | None  # None: not recorded for any
    total_ns: int  # durations added up
    bytes_per_s: float | None  # of those whose size was recorded
    overlapped: float  # share of the time during which a kernel computed on the same device


def study_copies(timeline: Timeline, work: list[DeviceWork] | None = None) -> list[Copies]:
    """A row per direction and memory, longest in time first."""
    device = timeline.device
    moves = np.flatnonzero(device.kind != DeviceKind.KERNEL)
    hidden = np.zeros(len(device), np.int64)
    for one in device_work(timeline) if work is None else work:
        start = device.start[one.events]
        end = start + device.duration[one.events]
        hidden[one.events] = covered(one.compute, end) - covered(one.compute, start)
    groups = dict[CopyName, list[Column]]()
    names, member = np.unique(device.name[moves], return_inverse=True)
    for index, name in enumerate(names.tolist()):
        own = moves[member == index]
        sets = device.kind[own] == DeviceKind.SET
        groups.setdefault(read_copy_name(timeline.name_of(name)), []).append(own[~sets])
        groups.setdefault(CopyName("memset", "device"), []).append(own[sets])
    rows = [_row(timeline, key, np.concatenate(parts), hidden) for key, parts in groups.items()]
    return sorted((row for row in rows if row.count), key=lambda row: -row.total_ns)


def _row(timeline: Timeline, key: CopyName, events: Column, hidden: Column) -> Copies:
    duration, size = timeline.device.duration[events], timeline.device.bytes[events]
    sized = size >= 0
    moved, spent = int(size[sized].sum()), int(duration[sized].sum())
    total_ns = int(duration.sum())
    return Copies(
        direction=key.direction,
        memory=key.memory,
        count=len(events),
        small=int((sized & (size <= SMALL_BYTES)).sum()),
        bytes=moved if sized.any() else None,
        total_ns=total_ns,
        bytes_per_s=moved / spent * 1e9 if spent else None,
        overlapped=int(hidden[events].sum()) / total_ns if total_ns else 0.0,
    )
