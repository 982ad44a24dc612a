"""Every idle nanosecond of a device gets a cause.

A gap ends with some work, and that work's launch cuts it in two. Until the launch the device waits
for the host: the launching thread (or the main one, while that has nothing open) sat in a loader,
in a collective on the host, in a blocking copy to the device, in a synchronisation, or was simply
busy, which `idlecharge` shares with the calls that held it up before. From the launch on it is the
launch's own latency.
"""

import numpy as np

from stepscope.analyze.timeline.blocking import Blocking
from stepscope.analyze.timeline.communicates import communication_kernels
from stepscope.analyze.timeline.devicework import DeviceWork
from stepscope.analyze.timeline.gaps import Gaps
from stepscope.analyze.timeline.idlecharge import charge
from stepscope.analyze.timeline.idlepieces import PieceList, Pieces
from stepscope.analyze.timeline.intervals import (
    difference,
    intersection,
    merge,
    union,
)
from stepscope.analyze.timeline.waits import HostWaits
from stepscope.record.timeline import NOTHING, Timeline

SOON_NS = 20_000  # a device needs no longer from one queued kernel to the next, nor to start one


def find_causes(
    timeline: Timeline,
    work: DeviceWork,
    gaps: Gaps,
    blocking: Blocking,
    waits: HostWaits,
    main: int,
) -> Pieces:
    """The pieces of a device's gaps."""
    last = gaps.next < 0
    known = gaps.launch >= 0
    queued = (known & (gaps.launch_end <= gaps.start)) | (~known & ~last)
    short = gaps.end - gaps.start <= SOON_NS
    late = ~queued if main != NOTHING else ~queued & known
    reach = np.clip(gaps.launch_start, gaps.start, gaps.end)
    started = np.where(last, gaps.end, np.maximum(gaps.launch_end, reach) + SOON_NS)
    started = np.minimum(started, gaps.end)
    uploads = late & np.isin(gaps.launch, blocking.events[blocking.uploads])
    talks = communication_kernels(timeline)[gaps.next] & ~last

    parts = PieceList()
    parts.add(queued & short, gaps.start, gaps.end, "between_kernels", gaps.launch)
    stalled = queued & ~short
    parts.add(stalled & talks & known, gaps.start, gaps.end, "other_ranks", gaps.launch)
    parts.add(stalled & ~(talks & known), gaps.start, gaps.end, "unknown", gaps.launch)
    parts.add(~queued & ~late, gaps.start, gaps.end, "unknown", gaps.launch)
    parts.add(uploads, reach, gaps.end, "copy", gaps.launch)
    rest = late & ~uploads
    parts.add(rest & talks, started, gaps.end, "other_ranks", gaps.launch)
    parts.add(rest & ~talks, started, gaps.end, "unknown", gaps.launch)

    busy = merge(reach[rest], started[rest])
    for thread in np.unique(gaps.thread[late]).tolist():
        own = late & (gaps.thread == thread)
        left = merge(gaps.start[own], reach[own])
        sources = [waits.of(thread)]
        if thread != main:
            sources.append(waits.of_others(thread, main))
        for source in sources:
            for cause, spans in source.items():
                hit = intersection(left, spans)
                left = difference(left, hit)
                parts.add_spans(hit, cause)
        busy = union(busy, left)
    threads = np.unique(np.append(gaps.thread[late], main))
    charge(timeline, work, blocking, threads, busy, parts)
    return parts.sorted()
