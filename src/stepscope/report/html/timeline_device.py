"""The work of devices as tracks: kernels by stream; copies and sets by device."""

import json

import numpy as np

from stepscope.analyze.timeline.attribution import attribute
from stepscope.analyze.timeline.categories import CATEGORIES, event_categories
from stepscope.analyze.timeline.devicework import device_of_events
from stepscope.record.timeline import NOTHING, Column, DeviceKind, Geometry, Timeline
from stepscope.report.html.timeline_tracks import Track, Words, device_name
from stepscope.report.text import size


def device_tracks(timeline: Timeline, words: Words) -> list[Track]:
    """By device: its streams in the order of their work, then what was copied."""
    events, owners = timeline.device, device_of_events(timeline)
    if not len(events):
        return []
    columns = (
        words.names.numbers(timeline.names, events.name),
        words.categories.numbers(_kinds(), _category(timeline)),
        _details(timeline, words),
    )
    kernel, tracks = events.kind == DeviceKind.KERNEL, []
    for device in np.unique(owners).tolist():
        mine = owners == device
        streams, counts = np.unique(events.stream[mine & kernel], return_counts=True)
        for stream in streams[np.argsort(-counts, kind="stable")].tolist():
            name = timeline.streams[stream].stream if stream >= 0 else "unknown"
            rows = np.flatnonzero(mine & kernel & (events.stream == stream))
            label = f"{device_name(device)} stream {name}"
            tracks.append(_track(timeline, "stream", label, device, rows, columns))
        rows = np.flatnonzero(mine & ~kernel)
        if len(rows):
            label = f"{device_name(device)} copies and sets"
            tracks.append(_track(timeline, "copy", label, device, rows, columns))
    return tracks


def _kinds() -> list[str]:
    return [*CATEGORIES, "set"]


def _category(timeline: Timeline) -> Column:
    """Into _kinds()."""
    found = event_categories(timeline, attribute(timeline)).astype(np.int64)
    found[timeline.device.kind == DeviceKind.SET] = len(CATEGORIES)
    return found


def _track(
    timeline: Timeline,
    kind: str,
    label: str,
    device: int,
    rows: Column,
    columns: tuple[Column, Column, Column],
) -> Track:
    events = timeline.device
    rows = rows[np.lexsort((-events.duration[rows], events.start[rows]))]
    names, category, detail = (column[rows] for column in columns)
    start, duration = events.start[rows], events.duration[rows]
    return Track(kind, label, device, start, duration, names, category, detail, rows)


def _details(timeline: Timeline, words: Words) -> Column:
    """How a kernel was launched, what a collective moved, how much was copied."""
    events = timeline.device
    copies = (events.kind != DeviceKind.KERNEL) & (events.bytes >= 0)
    sizes, which = np.unique(np.where(copies, events.bytes, NOTHING), return_inverse=True)
    moved = words.details.numbers([size(one) for one in sizes.tolist()], which.ravel())
    launched = words.details.numbers(
        [_geometry(one) for one in timeline.geometries], events.geometry
    )
    spoken = words.details.numbers(
        [f"{c.name} {c.dtype or ''} {c.in_elements or ''}".strip() for c in timeline.collectives],
        events.collective,
    )
    found = np.where(events.collective >= 0, spoken, launched)
    chosen: Column = np.where(copies, moved, found)
    return chosen


def _geometry(one: Geometry) -> str:
    """`grid 98×1×1 · block 256×1×1 · 32 registers · 48 KiB shared · occupancy 50%`."""
    parts = []
    if one.grid:
        parts.append("grid " + "×".join(map(str, one.grid)))
    if one.block:
        parts.append("block " + "×".join(map(str, one.block)))
    if one.registers:
        parts.append(f"{one.registers} registers")
    if one.shared_bytes:
        parts.append(f"{size(one.shared_bytes)} shared")
    if one.occupancy is not None:
        parts.append(f"occupancy {one.occupancy:.0%}")
    return " · ".join(parts)


def shape_words(dims: bytes, types: bytes) -> str:
    """`float 64×3×224×224, float 64×3×7×7`; as recorded where it is no such list."""
    try:
        shapes, kinds = json.loads(dims), json.loads(types or b"[]")
    except ValueError:
        return dims.decode("utf-8", "replace")
    if not isinstance(shapes, list) or not isinstance(kinds, list):
        return dims.decode("utf-8", "replace")
    shown = []
    for at, shape in enumerate(shapes):
        if isinstance(shape, list) and shape and not isinstance(shape[0], list):
            kind = kinds[at] if at < len(kinds) else ""
            shown.append(f"{kind} {'×'.join(map(str, shape))}".strip())
    return ", ".join(shown)
