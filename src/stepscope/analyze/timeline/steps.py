"""Where one step ends and the next begins, from whatever marks a recording carries."""

from dataclasses import dataclass

import numpy as np

from stepscope.analyze.timeline.devicework import DeviceWork, device_work
from stepscope.analyze.timeline.intervals import clip, total
from stepscope.analyze.timeline.stepmarks import (
    Marks,
    counted,
    optimizer_kernels,
    optimizer_steps,
    profiler_steps,
)
from stepscope.record.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Step:
    """One step, [start_ns, end_ns) on the host's clock."""

    name: str
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of a recording in order; each begins where the one before ends.

    Boundaries are host times: device work that runs past a step's end counts in the next step for
    the time it runs there, as in a steady program each window then holds one step's work. Where
    steps end with an optimizer, the last one goes on until the device has done what it launched.
    """

    steps: list[Step]
    how: str  # "ProfilerStep", "annotation", "optimizer" or "whole"
    between_ns: int  # lay between the marks of two steps; counted in the earlier one
    outside_ns: int  # devices' work before the first step or after the last, in no step


def find_steps(timeline: Timeline, work: list[DeviceWork] | None = None) -> Steps:
    """The steps, by the best marks there are; without any the whole recording is one."""
    work = device_work(timeline) if work is None else work
    for how, find in (
        ("ProfilerStep", profiler_steps),
        ("annotation", counted),
        ("optimizer", optimizer_steps),
        ("optimizer", optimizer_kernels),
    ):
        marks = find(timeline)
        if marks is not None:
            if how == "optimizer":
                marks = _until_done(timeline, marks)
            return _tiled(marks, how, work)
    start, end = timeline.span
    return Steps([Step("whole", start, max(end, start + 1))], "whole", 0, 0)


def _until_done(timeline: Timeline, marks: Marks) -> Marks:
    """The last step's end put off until the device work it launched is done."""
    device, last = timeline.device, int(marks.end[-1])
    launched = device.launch >= 0
    before = timeline.host.start[device.launch[launched]] < last
    done = device.start[launched][before] + device.duration[launched][before]
    end = marks.end.copy()
    end[-1] = max(last, int(done.max(initial=last)))
    return Marks(marks.names, marks.start, end)


def _tiled(marks: Marks, how: str, work: list[DeviceWork]) -> Steps:
    ends = np.append(marks.start[1:], max(marks.end[-1], marks.start[-1] + 1))
    between = int(np.maximum(marks.start[1:] - marks.end[:-1], 0).sum())
    rows = zip(marks.names, marks.start.tolist(), ends.tolist(), strict=True)
    steps = [Step(*row) for row in rows]
    first, last = steps[0].start_ns, steps[-1].end_ns
    outside = sum(total(w.busy) - total(clip(w.busy, first, last)) for w in work)
    return Steps(steps, how, between, outside)
