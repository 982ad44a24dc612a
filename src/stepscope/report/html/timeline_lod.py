"""Rows of events, and fewer of them where they are too many to hand out."""

from dataclasses import dataclass

import numpy as np

from stepscope.record.timeline import Column
from stepscope.report.html.timeline_tracks import Track

_TELLING = {"stream": 8.0, "copy": 8.0, "idle": 4.0, "step": np.inf, "phase": np.inf}
"""How much shorter than on a host thread an event may be before it is merged."""
_DEEPEST = 96  # rows of a track
_SHORTEST, _LONGEST, _CLOSE = 6.0, 44.0, 0.1
"""What may count as short, as powers of two nanoseconds, and how closely that is found."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Events by track and row, ordered by start; in a row none overlap."""

    track: Column
    row: Column
    """Of the track, from 0; an event lies in a lower row than the one around it."""
    event: Column
    """The place in its track of the event, of a merged stretch that of its longest."""
    start: Column
    end: Column
    count: Column
    """How many events it stands for."""
    busy: Column
    """Their nanoseconds together."""


def rows_of(tracks: list[Track]) -> Rows:
    """The events of every track, but for those that lie too deep to be looked at."""
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
        return Rows(*(np.zeros(0, np.int64) for _ in Rows.__slots__))
    return Rows(*(np.concatenate(column) for column in zip(*pieces, strict=True)))


def _nesting(starts: list[int], ends: list[int]) -> Column:
    """For each event of a track its row: below the event around it, where none is in the way.

    Recordings hold events that overlap without one being in the other. _DEEPEST: no row is left.
    """
    rows, occupied = np.zeros(len(starts), np.int64), list[int]()
    still_open: list[tuple[int, int]] = []
    for at, (start, end) in enumerate(zip(starts, ends, strict=True)):
        while still_open and still_open[-1][0] <= start:
            still_open.pop()
        if len(still_open) > 2 * _DEEPEST:  # some that are over lie below ones that are not
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


def fewer(rows: Rows, tracks: list[Track], most: int) -> Rows:
    """At most so many, where that can be: short neighbours of a row count as one stretch.

    What is short is raised only as far as needed; steps and phases stay as they are.
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


def _joins(rows: Rows, short_ns: Column) -> Column:
    """For each event but the first, whether it is one with the event before it."""
    short = rows.end - rows.start < short_ns
    joined: Column = (
        short[1:]
        & short[:-1]
        & (rows.track[1:] == rows.track[:-1])
        & (rows.row[1:] == rows.row[:-1])
        & (rows.start[1:] - rows.end[:-1] < short_ns[1:])
    )
    return joined


def _merged(rows: Rows, joins: Column) -> Rows:
    first = np.flatnonzero(np.concatenate(([True], ~joins)))
    last = np.append(first[1:], len(rows.start)) - 1
    stretch = np.cumsum(np.concatenate(([True], ~joins))) - 1
    longest = np.lexsort((-(rows.end - rows.start), stretch))[first]
    return Rows(
        track=rows.track[first],
        row=rows.row[first],
        event=rows.event[longest],
        start=rows.start[first],
        end=rows.end[last],
        count=np.add.reduceat(rows.count, first),
        busy=np.add.reduceat(rows.busy, first),
    )
