"""A recorded window as the bytes that the page's timeline draws."""

from typing import Any

import numpy as np

from stepscope.analyze.timeline.devicework import device_work
from stepscope.analyze.timeline.steps import Steps, find_steps
from stepscope.record.timeline import NOTHING, Column, Timeline
from stepscope.report.html.timeline_colours import colours
from stepscope.report.html.timeline_device import device_tracks
from stepscope.report.html.timeline_host import host_tracks
from stepscope.report.html.timeline_idle import idle_tracks
from stepscope.report.html.timeline_lod import Rows, fewer, rows_of
from stepscope.report.html.timeline_marks import phase_track, step_track
from stepscope.report.html.timeline_memory import Counter, counters
from stepscope.report.html.timeline_pack import Packing
from stepscope.report.html.timeline_tracks import Track, Words, readable

MOST_EVENTS = 600_000
"""Drawn one by one; beyond it short neighbours are merged."""
MOST_BYTES = 3_000_000
"""Of the compressed events."""


def encode(
    timeline: Timeline,
    *,
    trace: bytes | None = None,
    most_events: int = MOST_EVENTS,
    most_bytes: int = MOST_BYTES,
) -> bytes:
    """What `stepscopeTimeline` takes, gzipped. `trace`: the trace file's bytes, to be handed to
    Perfetto from the page; None leaves them out."""
    work = device_work(timeline)
    steps = find_steps(timeline, work)
    words = Words()
    tracks, untold = _tracks(timeline, steps, words)
    levels = counters(timeline, steps)
    rows, limit = rows_of(tracks), most_events
    untold += sum(map(len, tracks)) - len(rows.start)
    while True:
        shown = fewer(rows, tracks, limit)
        data = _packed(timeline, tracks, shown, untold, words, levels, trace)
        if len(data) - len(trace or b"") <= most_bytes or limit < 1000:
            return data
        limit = min(limit, len(shown.start)) * 3 // 4


def _tracks(timeline: Timeline, steps: Steps, words: Words) -> tuple[list[Track], int]:
    """In the order they stand in the page, and how many events have none."""
    work = device_work(timeline)
    ruler = (step_track(steps, words), phase_track(timeline, words))
    idle = idle_tracks(timeline, steps, work, words)
    devices = sorted(idle + device_tracks(timeline, words), key=lambda track: track.device or 0)
    hosts, untold = host_tracks(timeline, words)
    return [*(track for track in ruler if track is not None), *devices, *hosts], untold


def _packed(
    timeline: Timeline,
    tracks: list[Track],
    rows: Rows,
    untold: int,
    words: Words,
    levels: list[Counter],
    trace: bytes | None,
) -> bytes:
    origin, end = timeline.span
    packing = Packing()
    first = np.flatnonzero(_begins(rows))
    before = np.concatenate(([origin], rows.end[:-1])) if len(rows.end) else rows.end
    before[first] = origin
    packing.add("gap", rows.start - before)
    packing.add("duration", rows.end - rows.start)
    for column in ("name", "category", "detail"):
        own = _of_events(tracks, rows, column)
        if column == "name" and (own < 0).any():
            own[own < 0] = words.names.number("(no name)")
        packing.add(column, own + 1 if column == "detail" else own)
    launched, launch = _launches(timeline, tracks, rows)
    packing.add("launched", np.diff(launched, prepend=0))
    packing.add("launch", np.diff(launch, prepend=0))
    merged = np.flatnonzero(rows.count > 1)
    packing.add("merged", merged)
    packing.add("merged_count", rows.count[merged])
    packing.add("merged_busy", rows.busy[merged])
    for number, level in enumerate(levels):
        packing.add(f"time{number}", level.time - origin)
        packing.add(f"level{number}", level.bytes)
    stored = None if trace is None else packing.add_bytes(trace)
    head = {
        "origin": origin,
        "span": max(end - origin, 1),
        "source": readable(timeline.source),
        "names": words.names.texts,
        "details": words.details.texts,
        "categories": colours(words.categories.texts),
        "lanes": [_lane(track) for track in tracks],
        "rows": _row_table(rows, first),
        "counters": [{"label": level.label, "device": level.device} for level in levels],
        "events": len(timeline.host) + len(timeline.device),
        "merged": int(rows.count[merged].sum()),
        "untold": untold,
        "trace": stored,
    }
    return packing.packed(head)


def _lane(track: Track) -> dict[str, Any]:
    return {"kind": track.kind, "label": readable(track.label), "device": track.device}


def _begins(rows: Rows) -> Column:
    """Where another row begins."""
    changes = (rows.track[1:] != rows.track[:-1]) | (rows.row[1:] != rows.row[:-1])
    return np.concatenate((np.ones(min(len(rows.row), 1), bool), changes))


def _row_table(rows: Rows, first: Column) -> list[tuple[int, int, int]]:
    """Of each row its lane, its first event and how many it has."""
    counts = np.diff(np.append(first, len(rows.row)))
    return list(zip(rows.track[first].tolist(), first.tolist(), counts.tolist(), strict=True))


def _of_events(tracks: list[Track], rows: Rows, column: str) -> Column:
    """A column of the tracks in the order of the rows."""
    found = np.zeros(len(rows.event), np.int64)
    for number, track in enumerate(tracks):
        own = np.flatnonzero(rows.track == number)
        found[own] = getattr(track, column)[rows.event[own]]
    return found


def _launches(timeline: Timeline, tracks: list[Track], rows: Rows) -> tuple[Column, Column]:
    """Rows of device work and those of the calls that launched it, where both are shown."""
    source = _of_events(tracks, rows, "source")
    kinds = np.array([track.kind for track in tracks] or [""])[rows.track]
    place = np.full(len(timeline.host) + 1, NOTHING, np.int64)
    hosts = np.flatnonzero((kinds == "thread") & (rows.count == 1))
    place[source[hosts]] = hosts
    place[-1] = NOTHING
    works = np.flatnonzero(np.isin(kinds, ("stream", "copy")) & (rows.count == 1))
    calls = place[timeline.device.launch[source[works]]]
    return works[calls >= 0], calls[calls >= 0]
