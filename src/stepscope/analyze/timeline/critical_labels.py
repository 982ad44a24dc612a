"""What the segments of the critical path are: a side, a category and a name for each."""

import re
from typing import Final

import numpy as np

from stepscope.analyze.timeline.blocking import blocking_calls
from stepscope.analyze.timeline.categories import CATEGORIES
from stepscope.analyze.timeline.critical_segments import On, Segments
from stepscope.analyze.timeline.intervals import holder
from stepscope.analyze.timeline.namematch import names_that
from stepscope.analyze.timeline.threads import ByThread, busiest, gloo
from stepscope.record.timeline import NOTHING, Column, HostKind, Timeline

SIDES: Final = ("device", "between", "host")
LABELS: Final = (
    *CATEGORIES, "operator", "python", "runtime call", "synchronisation", "data loading",
    "profiler", "unrecorded", "launch latency", "between kernels",
)  # fmt: skip
_SIDE_OF: Final = {On.DEVICE: 0, On.LAUNCH: 1, On.BETWEEN: 1, On.HOST: 2, On.UNKNOWN: 2}
_KINDS: Final = {
    HostKind.OPERATOR: "operator", HostKind.ANNOTATION: "python", HostKind.PYTHON: "python",
    HostKind.RUNTIME: "runtime call", HostKind.OVERHEAD: "profiler",
}  # fmt: skip
_LOADS: Final = re.compile(r"^enumerate\(DataLoader\)|(^|/)torch/utils/data/")
_LOADERS: Final = 64  # threads
_CHANGING: Final = re.compile(r" at 0x[0-9a-fA-F]+|#\d+$")  # an object's address, a step's number

Group = tuple[str, str, str]
"""Side, category, name."""


def add_up(timeline: Timeline, path: Segments, categories: Column) -> dict[Group, tuple[int, int]]:
    """Nanoseconds and number of segments of each side, category and name."""
    sides = np.array([_SIDE_OF[on] for on in On], np.int64)[path.on]
    kinds = sides * len(LABELS) + _label(timeline, path, categories)
    names = len(timeline.names) + len(timeline.threads) + 1
    name, length = _name(timeline, path), path.end - path.start
    found: dict[Group, tuple[int, int]] = {}
    for kind in np.flatnonzero(np.bincount(kinds)).tolist():
        rows = kinds == kind
        counts = np.bincount(name[rows], minlength=names)
        sums = np.bincount(name[rows], length[rows], minlength=names)
        side, label = SIDES[kind // len(LABELS)], LABELS[kind % len(LABELS)]
        for used in np.flatnonzero(counts).tolist():
            group = side, label, _text(timeline, used) or label
            ns, count = found.get(group, (0, 0))
            found[group] = ns + int(sums[used]), count + int(counts[used])
    return found


def _label(timeline: Timeline, path: Segments, categories: Column) -> Column:
    """Into LABELS."""
    label = np.full(len(path), LABELS.index("unrecorded"), np.int64)
    device = path.on == On.DEVICE
    label[device] = categories[path.event[device]]
    label[path.on == On.LAUNCH] = LABELS.index("launch latency")
    label[path.on == On.BETWEEN] = LABELS.index("between kernels")
    on_host = np.flatnonzero((path.on == On.HOST) & (path.event != NOTHING))
    event = path.event[on_host]
    host = timeline.host
    kinds = np.array([LABELS.index(_KINDS[kind]) for kind in HostKind])
    label[on_host] = kinds[host.kind[event]]
    label[on_host[gloo(timeline)[event]]] = LABELS.index("communication")
    blocks = np.isin(event, blocking_calls(timeline).events)
    label[on_host[blocks]] = LABELS.index("synchronisation")
    label[_loading(timeline, path)] = LABELS.index("data loading")
    return label


def _loading(timeline: Timeline, path: Segments) -> Column:
    """Which segments lie inside the data loader."""
    host = timeline.host
    loads = names_that(timeline, host.name, _LOADS.search)
    loading = ByThread(timeline, loads)
    inside = np.zeros(len(path), bool)
    for thread in busiest(timeline, loads, _LOADERS):
        inside |= (path.thread == thread) & (holder(loading.spans(thread), path.start) >= 0)
    return inside


def _name(timeline: Timeline, path: Segments) -> Column:
    """Into the names, then the threads for what is not recorded there, then nothing."""
    names, threads = len(timeline.names), len(timeline.threads)
    name = np.full(len(path), names + threads, np.int64)
    unnamed = (path.on == On.HOST) & (path.event == NOTHING)
    name[unnamed] = names + path.thread[unnamed]
    for on, table in ((On.DEVICE, timeline.device), (On.HOST, timeline.host)):
        rows = np.flatnonzero((path.on == on) & (path.event != NOTHING))
        given = table.name[path.event[rows]]
        name[rows[given >= 0]] = given[given >= 0]
    return name


def _text(timeline: Timeline, name: int) -> str:
    if name < len(timeline.names):
        return _CHANGING.sub("", timeline.names[name])
    thread = name - len(timeline.names)
    if thread == len(timeline.threads):
        return ""
    return timeline.threads[thread].name or f"thread {timeline.threads[thread].tid}"
