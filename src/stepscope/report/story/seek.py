"""Where in the timeline a finding can be seen."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from stepscope.record.timeline import HostKind, Timeline

Document = dict[str, Any]
Place = tuple[tuple[int, int] | None, str]
"""From and to in the timeline's nanoseconds, None where it is not there; what to search for."""

_NOT_THERE: Place = (None, "")
_IDLE = {"data": "loader", "sync": "synchronisation", "launch.launch_bound": "host"}
"""By a finding's id or its group: the idle cause whose longest gap shows it."""
_BEGINS = {
    "data": ("enumerate(DataLoader)",),
    "sync": ("aten::item", "cudaStreamSynchronize", "cudaDeviceSynchronize"),
    "launch.unfused_optimizer": ("Optimizer.step#",),
}
"""The same, by how names of host events begin."""


def place_of(one: Document, timeline: Timeline | None, window: Document | None) -> Place:
    """The longest run of what the finding names, or else a gap or an event of its kind."""
    if timeline is None:
        return _NOT_THERE
    for where in one["where"]:
        found = _operator(timeline, where["operator"]) or _kernel(timeline, where["kernel"])
        if found is not None:
            return found
    keys = (one["id"], one["id"].partition(".")[0])
    return next(_of_kind(keys, timeline, window), _NOT_THERE)


def _of_kind(keys: tuple[str, ...], timeline: Timeline, window: Document | None) -> Iterator[Place]:
    for key in keys:
        gap = _gap(window, _IDLE.get(key, ""))
        if gap is not None:
            yield gap, ""
        for beginning in _BEGINS.get(key, ()):
            host = timeline.host
            which = timeline.named(beginning)[host.name] if len(host) else np.zeros(0, bool)
            if which.any():
                yield _longest(timeline, host, which)


def _gap(window: Document | None, cause: str) -> tuple[int, int] | None:
    """The longest stretch that a device was idle for this reason."""
    gaps = [
        gap
        for device in (window or {}).get("devices", ())
        for gap in device["idle"].get(cause, {}).get("largest", ())
    ]
    if not gaps:
        return None
    longest = max(gaps, key=lambda gap: int(gap["duration_ns"]))
    return longest["start_ns"], longest["start_ns"] + longest["duration_ns"]


def _operator(timeline: Timeline, name: str | None) -> Place | None:
    host = timeline.host
    if name is None or not len(host) or name not in timeline.names:
        return None
    which = (host.name == timeline.names.index(name)) & (host.kind != HostKind.OVERHEAD)
    return _longest(timeline, host, which) if which.any() else None


def _kernel(timeline: Timeline, name: str | None) -> Place | None:
    device = timeline.device
    if name is None or not len(device) or name not in timeline.names:
        return None
    which = device.name == timeline.names.index(name)
    return _longest(timeline, device, which) if which.any() else None


def _longest(timeline: Timeline, events: Any, which: Any) -> Place:
    rows = np.flatnonzero(which)
    row = int(rows[np.argmax(events.duration[rows])])
    start, duration = int(events.start[row]), int(events.duration[row])
    return (start, start + duration), timeline.name_of(int(events.name[row]))
