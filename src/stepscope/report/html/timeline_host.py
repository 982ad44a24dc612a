"""Host threads as tracks: the one that drives the program first, then the busiest."""

import numpy as np

from stepscope.analyze.timeline.threads import ByThread, calling_thread
from stepscope.record.timeline import Column, Thread, Timeline
from stepscope.report.html.timeline_device import shape_words
from stepscope.report.html.timeline_tracks import HOST_KINDS, Track, Words

_MOST = 64  # threads with a track of their own


def host_tracks(timeline: Timeline, words: Words) -> tuple[list[Track], int]:
    """The tracks, and how many events of further threads have none."""
    host, by_thread = timeline.host, ByThread(timeline)
    names = words.names.numbers(timeline.names, host.name)
    category = words.categories.numbers(list(HOST_KINDS), host.kind.astype(np.int64))
    shapes = [shape_words(one.dims, one.types) for one in timeline.shapes]
    detail = words.details.numbers(shapes, host.shapes)
    empty = words.details.number("")
    detail[detail == empty] = -1
    caller = calling_thread(timeline)
    counts = np.bincount(host.thread, minlength=len(timeline.threads))
    order = sorted(np.flatnonzero(counts).tolist(), key=lambda one: (one != caller, -counts[one]))
    tracks = []
    for thread in order[:_MOST]:
        rows: Column = by_thread.rows(thread)
        tracks.append(
            Track(
                "thread", _label(timeline.threads[thread], thread == caller), None,
                host.start[rows], host.duration[rows], names[rows], category[rows],
                detail[rows], rows,
            )
        )  # fmt: skip
    return tracks, int(counts[order[_MOST:]].sum())


def _label(thread: Thread, caller: bool) -> str:
    name = thread.name or f"thread {thread.tid}"
    return f"{name} · main" if caller else name
