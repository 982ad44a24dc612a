"""A host thread as a row of stretches, each owned by the innermost event there."""

import numpy as np

from stepscope.record.timeline import NOTHING, Column, HostEvents

Stretches = tuple[Column, Column, Column]
"""Starts, ends and owners (into the host events, NOTHING between events)."""


def stretches(host: HostEvents, rows: Column, start_ns: int, end_ns: int) -> Stretches:
    """One thread (its host events) between two times, cut wherever the innermost event changes.

    In no order; together they tile the time exactly. Where events overlap without nesting, the
    later to start owns the rest.
    """
    begin = host.start[rows]
    rows = rows[(begin < end_ns) & (begin + host.duration[rows] > start_ns)]
    begin = host.start[rows]
    head = np.full(1, start_ns), begin[:1] if len(rows) else np.full(1, end_ns), np.full(1, NOTHING)
    pieces = [head, *_owned(host, rows, np.append(begin[1:], end_ns)[: len(rows)])]
    starts, ends, owners = (np.concatenate(part) for part in zip(*pieces, strict=True))
    starts, ends = np.maximum(starts, start_ns), np.minimum(ends, end_ns)
    real = ends > starts
    return starts[real], ends[real], owners[real]


def within(pieces: Stretches, starts: Column, ends: Column) -> Stretches:
    """The parts of stretches inside some disjoint intervals, which are in order of time."""
    begin, end, owner = pieces
    first = np.searchsorted(ends, begin, "right")
    count = np.maximum(np.searchsorted(starts, end, "left") - first, 0)
    row = np.repeat(np.arange(len(begin)), count)
    nth = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
    interval = first[row] + nth
    return (
        np.maximum(begin[row], starts[interval]),
        np.minimum(end[row], ends[interval]),
        owner[row],
    )


def _owned(host: HostEvents, rows: Column, following: Column) -> list[Stretches]:
    """From each event's start until the next one's, who owns the time; empty pieces included."""
    begin = host.start[rows]
    end = begin + host.duration[rows]
    pieces = [(begin, np.minimum(end, following), rows)]
    left = np.flatnonzero(end < following)
    cursor, limit, owner = end[left], following[left], host.parent[rows[left]]
    # Climb out of what has ended: each event is left once, so the work is linear.
    while len(owner):
        around = np.where(owner >= 0, host.start[owner] + host.duration[owner], limit)
        stop = np.maximum(np.minimum(around, limit), cursor)
        pieces.append((cursor, stop, owner))
        on = (stop < limit) & (owner >= 0)
        cursor, limit, owner = stop[on], limit[on], host.parent[owner[on]]
    return pieces
