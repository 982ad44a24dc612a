"""Why each device was idle within the steps, and what the host was doing then."""

from dataclasses import dataclass

import numpy as np

from stepscope.analyze.timeline.blocking import blocking_calls
from stepscope.analyze.timeline.devicework import DeviceWork, device_work
from stepscope.analyze.timeline.gaps import find_gaps
from stepscope.analyze.timeline.hostat import main_thread
from stepscope.analyze.timeline.idlecauses import find_causes
from stepscope.analyze.timeline.idlepieces import CAUSES, Pieces
from stepscope.analyze.timeline.idleplaces import Place, Samples, look, rank
from stepscope.analyze.timeline.intervals import covered, merge
from stepscope.analyze.timeline.steps import Steps
from stepscope.analyze.timeline.waits import HostWaits
from stepscope.record.timeline import Column, Timeline

_LARGEST = 5


@dataclass(frozen=True, slots=True)
class IdleGap:
    """What one cause had of one gap."""

    device: int
    step: str
    start_ns: int  # of the first part that is this cause's
    duration_ns: int  # of all those parts
    where: str | None  # source line or operator on the host; None: nothing was recorded there
    operator: str | None


@dataclass(frozen=True, slots=True)
class IdleCause:
    """One cause of a device's idle time."""

    total_ns: int
    gaps: int  # how many had a part due to it
    steps_ns: list[int]  # its time in each step
    largest: list[IdleGap]
    places: list[Place]  # costliest first


@dataclass(frozen=True, slots=True)
class DeviceIdle:
    """A device's idle time within the steps; the causes add up to it exactly.

    Causes: `loader` (the host waited for data), `host` (it was busy and launched too late),
    `synchronisation` (it was blocked, or still catching up after that), `copy` (the same for a
    copy from host to device), `other_ranks` (a collective had not begun), `between_kernels` (the
    device went from one queued kernel to the next), `unknown`.
    """

    device: int
    idle_ns: int
    causes: dict[str, IdleCause]


def explain_idle(
    timeline: Timeline, steps: Steps, work: list[DeviceWork] | None = None
) -> list[DeviceIdle]:
    """The idle time of each device that did anything, by cause."""
    blocking = blocking_calls(timeline)
    waits, main = HostWaits(timeline, blocking), main_thread(timeline)
    start, end = steps.steps[0].start_ns, steps.steps[-1].end_ns
    found = []
    for one in device_work(timeline) if work is None else work:
        gaps = find_gaps(timeline, one, start, end, main)
        pieces = find_causes(timeline, one, gaps, blocking, waits, main)
        idle = int((gaps.end - gaps.start).sum())
        gap = np.searchsorted(gaps.start, pieces.start, side="right") - 1
        samples = look(timeline, pieces, gaps.thread[gap], main)
        causes = {
            cause: _cause(timeline, steps, one.device, pieces, gap, samples, code)
            for code, cause in enumerate(CAUSES)
        }
        found.append(DeviceIdle(one.device, idle, causes))
    return found


def _cause(
    timeline: Timeline,
    steps: Steps,
    device: int,
    pieces: Pieces,
    gap: Column,
    samples: Samples,
    code: int,
) -> IdleCause:
    """One cause's share; gap is the one each piece is of."""
    samples = Samples(*(column[pieces.cause[samples.piece] == code] for column in samples))
    mine = pieces.cause == code
    begin, length, of = pieces.start[mine], (pieces.end - pieces.start)[mine], gap[mine]
    edges = np.array([steps.steps[0].start_ns, *(s.end_ns for s in steps.steps)])
    in_steps = np.diff(covered(merge(begin, begin + length), edges))
    members, first = np.unique(of, return_index=True)
    sums = np.add.reduceat(length, first) if len(first) else length
    largest = []
    for index in np.argsort(-sums, kind="stable")[:_LARGEST].tolist():
        start = int(begin[first[index]])
        own = gap[samples.piece] == members[index]
        place = rank(timeline, Samples(*(column[own] for column in samples)))[0]
        step = steps.steps[int(np.searchsorted(edges, start, side="right")) - 1].name
        duration = int(sums[index])
        largest.append(IdleGap(device, step, start, duration, place.where, place.operator))
    return IdleCause(
        total_ns=int(sums.sum()),
        gaps=len(members),
        steps_ns=in_steps.tolist(),
        largest=largest,
        places=rank(timeline, samples),
    )
