"""Communication: what each collective moved, how fast, and how much of it no computation hid."""

import json
import re
from math import prod
from typing import Final, NamedTuple

import numpy as np
from msgspec import Struct

from stepscope.analyze.timeline.attribution import nearest
from stepscope.analyze.timeline.host_threads import is_gloo
from stepscope.analyze.timeline.intervals import (
    covered,
    device_work,
    difference,
    merge,
    total,
)
from stepscope.analyze.timeline.names import communication_kernels
from stepscope.analyze.timeline.steps import RecordedStep, step_at
from stepscope.record.timeline import NOTHING, Collective, Column, Shapes, Timeline, distinct_rows

_KINDS: Final = tuple(
    (kind, re.compile(pattern, re.IGNORECASE))
    for kind, pattern in (
        ("all_reduce", r"all_?reduce|one_?shot|two_?shot|cross_device_reduce"),
        ("reduce_scatter", r"reduce_?scatter"),
        ("all_gather", r"all_?gather"),
        ("all_to_all", r"all_?to_?all|dispatch|combine"),
        ("broadcast", r"broadcast"),
        ("send_recv", r"send|recv|receive"),
        ("gather", r"gather"),
        ("scatter", r"scatter"),
        ("reduce", r"reduce"),
        ("barrier", r"barrier"),
        ("wait", r"^wait$"),
    )
)
_BYTES: Final = {
    "double": 8, "long": 8, "longint": 8, "int64": 8, "complexfloat": 8, "complexdouble": 16,
    "float": 4, "int": 4, "int32": 4, "half": 2, "float16": 2, "bfloat16": 2, "short": 2,
    "shortint": 2, "char": 1, "signedchar": 1, "byte": 1, "unsignedchar": 1, "bool": 1, "int8": 1,
    "uint8": 1, "float32": 4, "float64": 8, "complex<float>": 8, "complex<double>": 16,
}  # fmt: skip
_ABSURD: Final = 1 << 60  # elements


class _SizedCollective(NamedTuple):
    """A collective's kind, and what is known of it."""

    kind: str
    bytes: int | None = None
    ranks: int | None = None  # how many take part
    group: str | None = None  # the process group's name and the ranks in it


def size_collective(
    collective: Collective | None, name: str, world_size: int | None = None
) -> _SizedCollective:
    """A collective from its parameters, or where there are none from a kernel's name."""
    if collective is None:
        return _SizedCollective(collective_kind(name), None, world_size)
    kind = collective_kind(collective.name)
    kind = collective_kind(name) if kind == "other" else kind
    group = " ".join(filter(None, (collective.group, collective.ranks))) or None
    # As bandwidths are reckoned: an all-gather's size is its whole output.
    sent, received, ranks = collective.in_elements, collective.out_elements, collective.group_size
    elements = sent or received
    if kind == "all_gather":
        elements = received or (sent * ranks if sent is not None and ranks else None)
    return _SizedCollective(kind, _bytes(elements, collective.dtype), ranks, group)


def _bytes(elements: int | None, dtype: str | None) -> int | None:
    size = dtype_bytes(dtype)
    if size is None or elements is None or not 0 <= elements < _ABSURD:
        return None
    return elements * size


def collective_kind(name: str) -> str:
    """The kind of collective that a kernel, an annotation or a parameter names, or "other"."""
    return next((kind for kind, pattern in _KINDS if pattern.search(name)), "other")


def dtype_bytes(dtype: str | None) -> int | None:
    """Bytes of one element; None for a type not known."""
    plain = (dtype or "").lower().replace("c10::", "").replace("torch.", "").replace(" ", "")
    return 1 if plain.startswith("float8") else _BYTES.get(plain)


def shape_bytes(shapes: Shapes) -> int | None:
    """Bytes of the first input of an annotated collective; None where it was not recorded."""
    try:
        dims, types = json.loads(shapes.dims or b"[]"), json.loads(shapes.types or b"[]")
        return _bytes(prod(map(int, dims[0])), types[0])
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError):
        return None


def bus_factor(kind: str, ranks: int | None) -> float | None:
    """Bytes each link carries per byte of the collective's size; None where ranks are unknown."""
    if kind in ("broadcast", "send_recv", "reduce"):
        return 1.0
    if ranks is None or ranks < 2:
        return None
    factors = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0}
    return factors[kind] * (ranks - 1) / ranks if kind in factors else None


_LARGEST = 10


class CollectiveKind(Struct, frozen=True):
    """All collectives of one kind; None where their parameters were not recorded."""

    kind: str
    where: str  # "device", or "host" for gloo
    count: int
    sized: int  # how many of them have a known size: bytes and bandwidths are of these
    bytes: int | None
    time_ns: int  # each on its own
    algorithm_bytes_per_s: float | None
    bus_bytes_per_s: float | None
    group_sizes: list[int]
    overlap_share: float | None  # of the time, with anything computed at once
    exposed_ns: int | None  # the rest of it


class ExposedCollective(Struct, frozen=True):
    """One collective that the device spent time in without computing."""

    kind: str
    start_ns: int
    duration_ns: int
    exposed_ns: int
    bytes: int | None
    step: str | None  # that launched it; None outside the steps


class Communication(Struct, frozen=True):
    """Device and host communication; overlaps of several are counted once in the totals."""

    device_ns: int
    exposed_ns: int
    overlap_share: float | None  # None without device communication
    host_ns: int
    kinds: list[CollectiveKind]  # most time first
    largest_exposed: list[ExposedCollective]


def study_communication(timeline: Timeline, steps: list[RecordedStep]) -> Communication | None:
    """What was communicated; None where nothing was."""
    work = device_work(timeline)
    events = np.flatnonzero(communication_kernels(timeline))
    on_host = np.flatnonzero(is_gloo(timeline))
    if not len(events) and not len(on_host):
        return None
    device, host = timeline.device, timeline.host
    exposed = device.duration[events].copy()  # in which the device computed nothing
    for one in work:
        own = np.isin(events, one.events)
        start, end = device.start[events[own]], device.end[events[own]]
        exposed[own] -= covered(one.compute, end) - covered(one.compute, start)
    codes, table = collective_parameters(timeline, events)
    kinds = _by_kind(codes, table, device.duration[events], exposed)
    annotated, host_codes = distinct_rows([host.name[on_host], host.shapes[on_host]])
    host_table = [
        _SizedCollective(
            collective_kind(timeline.name_of(name)),
            shape_bytes(timeline.shapes[shapes]) if shapes >= 0 else None,
            timeline.world_size,
        )
        for name, shapes in annotated
    ]
    kinds += _by_kind(host_codes, host_table, host.duration[on_host], None)
    begun = launched_at(timeline, events)
    busy = sum(total(one.communication) for one in work)
    bare = sum(total(difference(one.communication, one.compute)) for one in work)
    return Communication(
        device_ns=busy,
        exposed_ns=bare,
        overlap_share=1 - bare / busy if busy else None,
        host_ns=total(merge(host.start[on_host], host.end[on_host])),
        kinds=sorted(kinds, key=lambda kind: -kind.time_ns),
        largest_exposed=[
            ExposedCollective(
                kind=table[codes[n]].kind,
                start_ns=int(device.start[events[n]]),
                duration_ns=int(device.duration[events[n]]),
                exposed_ns=int(exposed[n]),
                bytes=table[codes[n]].bytes,
                step=step_at(steps, int(begun[n])),
            )
            for n in np.argsort(-exposed, kind="stable")[:_LARGEST].tolist()
            if exposed[n] > 0
        ],
    )


def collective_parameters(
    timeline: Timeline, events: Column
) -> tuple[Column, list[_SizedCollective]]:
    """For each communication kernel an index into the list of what they are.

    Told by its own parameters, else those of the call that launched it, else by its name.
    """
    host, device = timeline.host, timeline.device
    calls = nearest(host.parent, host.collective != NOTHING)[device.launch[events]]
    called = np.append(host.collective, np.int32(NOTHING))[calls]
    own = device.collective[events]
    number = np.where(own != NOTHING, own, called)
    rows, codes = distinct_rows([number, device.name[events]])
    table = [
        size_collective(
            timeline.collectives[parameters] if parameters >= 0 else None,
            timeline.name_of(name),
            timeline.world_size,
        )
        for parameters, name in rows
    ]
    return codes, table


def launched_at(timeline: Timeline, events: Column) -> Column:
    """When the host launched device events, which tells their step; their start if unknown."""
    launch = timeline.device.launch[events]
    known = launch != NOTHING
    when: Column = timeline.device.start[events].copy()
    when[known] = timeline.host.start[launch[known]]
    return when


def _by_kind(
    codes: Column, table: list[_SizedCollective], duration: Column, exposed: Column | None
) -> list[CollectiveKind]:
    """`exposed` is None on the host, where what is computed meanwhile is not known."""
    counts = np.bincount(codes, minlength=len(table))
    times = np.bincount(codes, duration, minlength=len(table))
    bare = None if exposed is None else np.bincount(codes, exposed, minlength=len(table))
    kinds = []
    for kind in dict.fromkeys(one.kind for one in table):
        rows = [n for n, one in enumerate(table) if one.kind == kind]
        sized = [n for n in rows if table[n].bytes is not None]
        moved = sum((table[n].bytes or 0) * int(counts[n]) for n in sized)
        time, spent = sum(int(times[n]) for n in rows), sum(int(times[n]) for n in sized)
        factors = {n: bus_factor(kind, table[n].ranks) for n in sized}
        carried = sum((table[n].bytes or 0) * int(counts[n]) * (factors[n] or 0) for n in sized)
        known = spent and None not in factors.values()
        alone = None if bare is None else sum(int(bare[n]) for n in rows)
        kinds.append(
            CollectiveKind(
                kind=kind,
                where="host" if exposed is None else "device",
                count=sum(int(counts[n]) for n in rows),
                sized=sum(int(counts[n]) for n in sized),
                bytes=moved if sized else None,
                time_ns=time,
                algorithm_bytes_per_s=moved * 1e9 / spent if spent else None,
                bus_bytes_per_s=carried * 1e9 / spent if known else None,
                group_sizes=sorted({table[n].ranks or 0 for n in rows} - {0}),
                overlap_share=1 - alone / time if alone is not None and time else None,
                exposed_ns=alone,
            )
        )
    return kinds
