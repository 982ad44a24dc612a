"""A recorded window as the bytes that the page's timeline draws."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from stepscope.analyze.timeline.devicework import device_work
from stepscope.analyze.timeline.steps import find_steps
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
_LEAST = 1_000  # events that are shown whatever their size


@dataclass(frozen=True, slots=True)
class _Window:
    """A recording, laid out."""

    timeline: Timeline
    tracks: list[Track]
    words: Words
    counters: list[Counter]
    untold: int
    """Events that have no place in it."""


def encode(
    timeline: Timeline,
    *,
    trace: bytes | None = None,
    most_events: int = MOST_EVENTS,
    most_bytes: int = MOST_BYTES,
) -> bytes:
    """What `stepscopeTimeline` takes, gzipped. `trace`: the trace file's bytes, to be handed to
    Perfetto from the page; None leaves them out."""
    window = _window(timeline)
    rows, limit = rows_of(window.tracks), most_events
    deep = sum(map(len, window.tracks)) - len(rows.start)
    window = replace(window, untold=window.untold + deep)
    while True:
        shown = fewer(rows, window.tracks, limit)
        data = _packed(window, shown, trace)
        if len(data) - len(trace or b"") <= most_bytes or limit < _LEAST:
            return data
        limit = min(limit, len(shown.start)) * 3 // 4


def _window(timeline: Timeline) -> _Window:
    """The tracks in the order they stand in the page: the ruler, devices, threads."""
    work = device_work(timeline)
    steps = find_steps(timeline, work)
    words = Words()
    ruler = (step_track(steps, words), phase_track(timeline, words))
    idle = idle_tracks(timeline, steps, work, words)
    devices = sorted(idle + device_tracks(timeline, words), key=lambda track: track.device or 0)
    hosts, untold = host_tracks(timeline, words)
    tracks = [*(track for track in ruler if track is not None), *devices, *hosts]
    return _Window(timeline, tracks, words, counters(timeline, steps), untold)


def _packed(window: _Window, rows: Rows, trace: bytes | None) -> bytes:
    packing = Packing()
    origin, end = window.timeline.span
    first = np.flatnonzero(_begins(rows))
    before = np.concatenate(([origin], rows.end[:-1])) if len(rows.end) else rows.end
    before[first] = origin
    packing.add("gap", rows.start - before)
    packing.add("duration", rows.end - rows.start)
    names, details = _add_words(packing, window, rows)
    launched, launch = _launches(window.timeline, window.tracks, rows)
    packing.add("launched", np.diff(launched, prepend=0))
    packing.add("launch", np.diff(launch, prepend=0))
    merged = np.flatnonzero(rows.count > 1)
    packing.add("merged", merged)
    packing.add("merged_count", rows.count[merged])
    packing.add("merged_busy", rows.busy[merged])
    for number, level in enumerate(window.counters):
        packing.add(f"time{number}", level.time - origin)
        packing.add(f"level{number}", level.bytes)
    stored = None if trace is None else packing.add_bytes(trace)
    return packing.packed(
        {
            "origin": origin,
            "span": max(end - origin, 1),
            "names": names,
            "details": details,
            "categories": colours(window.words.categories.texts),
            "lanes": [_lane(track) for track in window.tracks],
            "rows": _row_table(rows, first),
            "counters": [{"label": one.label, "device": one.device} for one in window.counters],
            "events": len(window.timeline.host) + len(window.timeline.device),
            "merged": int(rows.count[merged].sum()),
            "untold": window.untold,
            "trace": stored,
        }
    )


def _add_words(packing: Packing, window: _Window, rows: Rows) -> tuple[list[str], list[str]]:
    """What each event is called, its category, and one more than its detail, since 0 has none.

    Gives the names and details that are left.
    """
    name = _of_events(window.tracks, rows, "name")
    if (name < 0).any():
        name[name < 0] = window.words.names.number("(no name)")
    used, name = np.unique(name, return_inverse=True)
    detail = _of_events(window.tracks, rows, "detail")
    told, detail = np.unique(np.append(detail, NOTHING), return_inverse=True)
    packing.add("name", name)
    packing.add("category", _of_events(window.tracks, rows, "category"))
    packing.add("detail", detail[:-1])
    names, details = window.words.names.texts, window.words.details.texts
    return [names[n] for n in used.tolist()], [details[n] for n in told[1:].tolist()]


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
