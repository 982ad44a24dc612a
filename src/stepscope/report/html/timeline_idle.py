"""When each device was idle within the steps, and why, as a track."""

import numpy as np

from stepscope.analyze.timeline.blocking import blocking_calls
from stepscope.analyze.timeline.devicework import DeviceWork
from stepscope.analyze.timeline.gaps import find_gaps
from stepscope.analyze.timeline.hostat import main_thread
from stepscope.analyze.timeline.idlecauses import find_causes
from stepscope.analyze.timeline.idlepieces import CAUSES, Pieces
from stepscope.analyze.timeline.steps import Steps
from stepscope.analyze.timeline.waits import HostWaits
from stepscope.record.timeline import NOTHING, Column, Timeline
from stepscope.report.html.timeline_tracks import Track, Words, device_name


def idle_tracks(
    timeline: Timeline, steps: Steps, work: list[DeviceWork], words: Words
) -> list[Track]:
    """One per device that did anything: the pieces whose sums `analyze` prints."""
    blocking = blocking_calls(timeline)
    waits, main = HostWaits(timeline, blocking), main_thread(timeline)
    start, end = steps.steps[0].start_ns, steps.steps[-1].end_ns
    tracks = []
    for one in work:
        gaps = find_gaps(timeline, one, start, end, main)
        pieces = find_causes(timeline, one, gaps, blocking, waits, main)
        if len(pieces.start):
            tracks.append(_track(timeline, one.device, pieces, words))
    return tracks


def _track(timeline: Timeline, device: int, pieces: Pieces, words: Words) -> Track:
    """Touching pieces with the same cause and the same call to blame are one."""
    same = (pieces.cause[1:] == pieces.cause[:-1]) & (pieces.event[1:] == pieces.event[:-1])
    first = np.concatenate(([True], ~same | (pieces.start[1:] != pieces.end[:-1])))
    last = np.concatenate((first[1:], [True]))
    start, end = pieces.start[first], pieces.end[last]
    cause, event = pieces.cause[first], pieces.event[first].astype(np.int64)
    spelt = [cause.replace("_", " ") for cause in CAUSES]
    names = words.names.numbers([f"idle: {one}" for one in spelt], cause)
    category = words.categories.numbers([f"idle: {one}" for one in spelt], cause)
    blamed = np.append(timeline.host.name, NOTHING)[event]
    detail = words.details.numbers(timeline.names, blamed)
    source: Column = np.full(len(start), NOTHING, np.int64)
    return Track(
        "idle", f"{device_name(device)} idle, by cause", device,
        start, end - start, names, category, detail, source,
    )  # fmt: skip
