"""What a blocking call costs beyond the time it lasts.

A blocking call also costs what comes after it: had the host not stood still while the device
worked, it would have been that much further ahead. So the host's busy time after the call is the
call's too, up to the time for which it blocked the host while the device was busy; only what is
left is the host's own slowness. A later call takes over where it blocked for longer than what is
left of that.
"""

import numpy as np

from stepscope.analyze.timeline.blocking import Blocking
from stepscope.analyze.timeline.devicework import DeviceWork
from stepscope.analyze.timeline.idlepieces import PieceList
from stepscope.analyze.timeline.intervals import Spans, covered
from stepscope.record.timeline import NOTHING, Column, Timeline


def charge(
    timeline: Timeline,
    work: DeviceWork,
    blocking: Blocking,
    threads: Column,
    busy: Spans,
    parts: PieceList,
) -> None:
    """Share the idle time in which the host was busy between it and the calls that held it up."""
    host = timeline.host
    own = np.isin(host.thread[blocking.events], threads)
    calls, uploads = blocking.events[own], blocking.uploads[own]
    start, end = host.start[calls], host.start[calls] + host.duration[calls]
    held = covered(work.busy, end) - covered(work.busy, start)
    order = np.argsort(end, kind="stable")
    order = order[held[order] > 0]
    sums = np.concatenate(([0], np.cumsum(busy.end - busy.start)))
    reached = np.append(covered(busy, end[order]), sums[-1]).tolist()
    charged: list[tuple[int, int, int]] = []  # from, to, in sums of idle time; call
    credit, owner, at = 0, NOTHING, 0
    for now, blocked, call in zip(reached, [*held[order].tolist(), 0], [*order, -1], strict=True):
        spent = min(credit, now - at)
        if spent:
            charged.append((at, at + spent, owner))
        credit, at = credit - spent, now
        if blocked > credit:
            credit, owner = blocked, int(call)
    if not charged:
        parts.add_spans(busy, "host")
        return
    first, until, owners = np.array(charged, np.int64).T
    first = _time_at(busy, sums, first, "right")
    until = _time_at(busy, sums, until, "left")
    cuts = np.unique(np.concatenate((busy.start, busy.end, first, until)))
    left, right = cuts[:-1], cuts[1:]
    inside = covered(busy, right) > covered(busy, left)
    left, right = left[inside], right[inside]
    at_call = np.searchsorted(first, left, side="right") - 1
    by_call = (at_call >= 0) & (left < until[np.maximum(at_call, 0)])
    call = owners[np.maximum(at_call, 0)]
    parts.add(~by_call, left, right, "host", np.full(len(left), NOTHING))
    parts.add(by_call & uploads[call], left, right, "copy", calls[call])
    parts.add(by_call & ~uploads[call], left, right, "synchronisation", calls[call])


def _time_at(spans: Spans, sums: Column, length: Column, side: str) -> Column:
    """The time by which the spans have summed up to a length."""
    index = np.searchsorted(sums, length, side="right" if side == "right" else "left") - 1
    index = np.clip(index, 0, len(spans.start) - 1)
    time: Column = spans.start[index] + length - sums[index]
    return time
