"""A recorded window as bytes for the page: events in rows, merged if there are too many, packed."""

import gzip
import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepscope.analyze.timeline.intervals import device_work
from stepscope.analyze.timeline.steps import find_steps
from stepscope.record.timeline import NOTHING, Column, Timeline
from stepscope.report.render.html.timeline_tracks import (
    Counter,
    TimelineText,
    Track,
    counters,
    device_tracks,
    host_tracks,
    idle_tracks,
    phase_track,
    readable,
    step_track,
)

_BY_COLOUR = {
    1: ("operator", "convolution", "matmul", "recurrent", "phase: forward"),
    2: ("runtime call", "idle: loader", "phase: data wait"),
    3: ("Python", "normalisation", "reduction", "pooling", "idle: other ranks", "phase: backward"),
    4: ("copy", "layout change", "set", "idle: copy", "phase: copy"),
    5: ("profiler", "loss", "communication", "idle: host"),
    6: ("pointwise", "optimizer", "compiled", "phase: optimizer"),
    7: ("attention", "softmax", "idle: synchronisation"),
}
_COLOURS = {name: colour for colour, names in _BY_COLOUR.items() for name in names}
"""The number of a category's `--series-` colour; others get 8."""


MAGIC = b"STL1"
_WHOLE = {
    "u1": (0, 0xFF),
    "u2": (0, 0xFFFF),
    "u4": (0, 0xFFFFFFFF),
    "i4": (-(1 << 31), (1 << 31) - 1),
}
"""The range of each type; values outside all are stored as float64, `f8`."""


class Packing:
    """Collects columns; each is split into byte planes, since high bytes are mostly alike."""

    def __init__(self) -> None:
        self._planes: list[bytes] = []
        self._at = 0
        self.columns: dict[str, tuple[str, int, int]] = {}
        """Type, number of values, offset in bytes."""

    def add(self, name: str, values: Column) -> None:
        """Add values in the smallest type that holds them exactly."""
        low, high = (int(values.min()), int(values.max())) if len(values) else (0, 0)
        fits = (kind for kind, (least, most) in _WHOLE.items() if least <= low and high <= most)
        kind = next(fits, "f8")
        column = np.ascontiguousarray(values.astype(f"<{kind}"))
        planes = column.view(np.uint8).reshape(len(column), column.itemsize).T
        self.columns[name] = (kind, len(column), self._at)
        self.add_bytes(np.ascontiguousarray(planes).tobytes())

    def add_bytes(self, data: bytes) -> tuple[int, int]:
        """Add bytes unchanged; returns their offset and length."""
        self._planes.append(data)
        self._at += len(data)
        return self._at - len(data), len(data)

    def packed(self, head: dict[str, Any]) -> bytes:
        """Everything, gzipped: a magic number, the header's length, the header as JSON, the
        columns."""
        text = json.dumps({**head, "columns": self.columns}, separators=(",", ":")).encode()
        whole = b"".join((MAGIC, np.array([len(text)], "<u4").tobytes(), text, *self._planes))
        return gzip.compress(whole, 6, mtime=0)


_TELLING = {"stream": 8.0, "copy": 8.0, "idle": 4.0, "step": np.inf, "phase": np.inf}
"""How much shorter than on a host thread events may be before they are merged."""
_DEEPEST = 96  # rows of a track
_SHORTEST, _LONGEST, _CLOSE = 6.0, 44.0, 0.1
"""The range of the merging threshold, as powers of two nanoseconds, and its resolution."""


@dataclass(frozen=True, slots=True)
class _EventRows:
    """Events by track and row, ordered by start; in a row none overlap."""

    track: Column
    row: Column
    """The row in the track, from 0; nested events have higher numbers."""
    event: Column
    """The event's index in its track; for a merged stretch, that of its longest event."""
    start: Column
    end: Column
    count: Column
    """How many events it represents."""
    busy: Column
    """Their total nanoseconds."""


def _rows_of(tracks: list[Track]) -> _EventRows:
    """The events of every track, without those nested too deeply to show."""
    pieces: list[tuple[Column, ...]] = []
    for number, track in enumerate(tracks):
        row = _nesting(track.start.tolist(), (track.start + track.duration).tolist())
        order = np.argsort(row, kind="stable")
        order = order[row[order] < _DEEPEST]
        start, length = track.start[order], track.duration[order]
        which = np.full(len(order), number, np.int64)
        ones = np.ones(len(order), np.int64)
        pieces.append((which, row[order], order, start, start + length, ones, length))
    if not pieces:
        return _EventRows(*(np.zeros(0, np.int64) for _ in _EventRows.__slots__))
    return _EventRows(*(np.concatenate(column) for column in zip(*pieces, strict=True)))


def _nesting(starts: list[int], ends: list[int]) -> Column:
    """Each event's row in its track: below the enclosing event, in a free row, since recordings
    contain events that overlap without nesting. _DEEPEST: no row is left.
    """
    rows, occupied = np.zeros(len(starts), np.int64), list[int]()
    still_open: list[tuple[int, int]] = []
    for at, (start, end) in enumerate(zip(starts, ends, strict=True)):
        while still_open and still_open[-1][0] <= start:
            still_open.pop()
        if len(still_open) > 2 * _DEEPEST:  # a finished event may lie below an unfinished one
            still_open = [one for one in still_open if one[0] > start]
        row = next((below + 1 for until, below in reversed(still_open) if until >= end), 0)
        while row < len(occupied) and occupied[row] > start:
            row += 1
        rows[at] = row
        if row == _DEEPEST:
            continue
        if row == len(occupied):
            occupied.append(end)
        occupied[row] = end
        still_open.append((end, row))
    return rows


def _merge_short_events(rows: _EventRows, tracks: list[Track], most: int) -> _EventRows:
    """At most `most` rows if possible: short neighbours in a row merge into one stretch.

    The threshold rises only as far as needed; steps and phases never merge.
    """
    if len(rows.start) <= most:
        return rows
    telling = np.array([_TELLING.get(track.kind, 1) for track in tracks], float)[rows.track]
    low, high = _SHORTEST, _LONGEST
    while high - low > _CLOSE:
        middle = (low + high) / 2
        left = len(rows.start) - int(_joins(rows, 2**middle / telling).sum())
        low, high = (low, middle) if left <= most else (middle, high)
    return _merged(rows, _joins(rows, 2**high / telling))


def _joins(rows: _EventRows, short_ns: Column) -> Column:
    """For each event but the first, whether it merges with the one before."""
    short = rows.end - rows.start < short_ns
    same_row = (rows.track[1:] == rows.track[:-1]) & (rows.row[1:] == rows.row[:-1])
    close = rows.start[1:] - rows.end[:-1] < short_ns[1:]
    joined: Column = short[1:] & short[:-1] & same_row & close
    return joined


def _merged(rows: _EventRows, joins: Column) -> _EventRows:
    first = np.flatnonzero(np.concatenate(([True], ~joins)))
    last = np.append(first[1:], len(rows.start)) - 1
    stretch = np.cumsum(np.concatenate(([True], ~joins))) - 1
    longest = np.lexsort((-(rows.end - rows.start), stretch))[first]
    return _EventRows(
        track=rows.track[first],
        row=rows.row[first],
        event=rows.event[longest],
        start=rows.start[first],
        end=rows.end[last],
        count=np.add.reduceat(rows.count, first),
        busy=np.add.reduceat(rows.busy, first),
    )


MOST_EVENTS = 600_000
"""Events drawn individually; beyond this, short neighbours are merged."""
MOST_BYTES = 3_000_000
"""Bytes of the compressed events."""
_LEAST = 1_000  # events shown whatever their size


@dataclass(frozen=True, slots=True)
class _Window:
    """A recording, laid out."""

    timeline: Timeline
    tracks: list[Track]
    words: TimelineText
    counters: list[Counter]
    untold: int
    """Number of events left out."""


def encode_timeline(
    timeline: Timeline,
    *,
    trace: bytes | None = None,
    most_events: int = MOST_EVENTS,
    most_bytes: int = MOST_BYTES,
) -> bytes:
    """The gzipped input of `stepscopeTimeline`. `trace`: the trace file's bytes, for opening in
    Perfetto from the page; None leaves them out."""
    steps, words = find_steps(timeline), TimelineText()
    # In page order: the ruler, devices, threads.
    ruler = (step_track(steps, words), phase_track(timeline, words))
    idle = idle_tracks(timeline, steps, device_work(timeline), words)
    devices = sorted(idle + device_tracks(timeline, words), key=lambda track: track.device or 0)
    hosts, untold = host_tracks(timeline, words)
    tracks = [*(track for track in ruler if track is not None), *devices, *hosts]
    rows, limit = _rows_of(tracks), most_events
    untold += sum(map(len, tracks)) - len(rows.start)
    window = _Window(timeline, tracks, words, counters(timeline, steps), untold)
    while True:
        shown = _merge_short_events(rows, window.tracks, limit)
        data = _packed(window, shown, trace)
        if len(data) - len(trace or b"") <= most_bytes or limit < _LEAST:
            return data
        limit = min(limit, len(shown.start)) * 3 // 4


def _packed(window: _Window, rows: _EventRows, trace: bytes | None) -> bytes:
    packing = Packing()
    origin, end = window.timeline.span
    another = (rows.track[1:] != rows.track[:-1]) | (rows.row[1:] != rows.row[:-1])
    first = np.flatnonzero(np.concatenate((np.ones(min(len(rows.row), 1), bool), another)))
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
    counts = np.diff(np.append(first, len(rows.row)))
    lanes, columns = window.tracks, (rows.track[first], first, counts)
    return packing.packed(
        {
            "origin": origin,
            "span": max(end - origin, 1),
            "names": names,
            "details": details,
            "categories": [(one, _COLOURS.get(one, 8)) for one in window.words.categories.texts],
            "lanes": [
                {"kind": one.kind, "label": readable(one.label), "device": one.device}
                for one in lanes
            ],
            # Each row's lane, first event and number of events.
            "rows": list(zip(*(column.tolist() for column in columns), strict=True)),
            "counters": [{"label": one.label, "device": one.device} for one in window.counters],
            "events": len(window.timeline.host) + len(window.timeline.device),
            "merged": int(rows.count[merged].sum()),
            "untold": window.untold,
            "trace": stored,
        }
    )


def _add_words(packing: Packing, window: _Window, rows: _EventRows) -> tuple[list[str], list[str]]:
    """Add each event's name, category, and detail plus one (0: none).

    Returns the names and details in use.
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


def _of_events(tracks: list[Track], rows: _EventRows, column: str) -> Column:
    """A column of the tracks in the order of the rows."""
    found = np.zeros(len(rows.event), np.int64)
    for number, track in enumerate(tracks):
        own = np.flatnonzero(rows.track == number)
        found[own] = getattr(track, column)[rows.event[own]]
    return found


def _launches(timeline: Timeline, tracks: list[Track], rows: _EventRows) -> tuple[Column, Column]:
    """Rows of device work and of the calls that launched it, if both are shown."""
    source = _of_events(tracks, rows, "source")
    kinds = np.array([track.kind for track in tracks] or [""])[rows.track]
    place = np.full(len(timeline.host) + 1, NOTHING, np.int64)
    hosts = np.flatnonzero((kinds == "thread") & (rows.count == 1))
    place[source[hosts]] = hosts
    place[-1] = NOTHING
    works = np.flatnonzero(np.isin(kinds, ("stream", "copy")) & (rows.count == 1))
    calls = place[timeline.device.launch[source[works]]]
    return works[calls >= 0], calls[calls >= 0]
