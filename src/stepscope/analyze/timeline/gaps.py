"""The times a device had nothing to run, and the work each ended with."""

from dataclasses import dataclass

import numpy as np

from stepscope.analyze.timeline.devicework import DeviceWork
from stepscope.analyze.timeline.intervals import difference, span
from stepscope.record.timeline import NOTHING, Column, Timeline


@dataclass(frozen=True, slots=True)
class Gaps:
    """One row per gap, in order of time."""

    start: Column
    end: Column
    next: Column  # the device event that ended it, NOTHING where none follows
    launch: Column  # the runtime call that launched that, as a host event, NOTHING if unknown
    launch_start: Column  # the gap's end where there is no such call
    launch_end: Column
    thread: Column  # that made the call, or the main thread


def find_gaps(timeline: Timeline, work: DeviceWork, start: int, end: int, main: int) -> Gaps:
    """The gaps of a device within [start, end)."""
    idle = difference(span(start, end), work.busy)
    host, device = timeline.host, timeline.device
    real = work.events[device.duration[work.events] > 0]
    at = np.searchsorted(device.start[real], idle.end, side="left")
    follows = at < len(real)
    upcoming = np.full(len(at), NOTHING, np.int64)
    upcoming[follows] = real[at[follows]]
    launch = np.full(len(at), NOTHING, np.int64)
    launch[follows] = device.launch[upcoming[follows]]
    known = launch >= 0
    began, ended, thread = idle.end.copy(), idle.end.copy(), np.full(len(at), main, np.int64)
    began[known] = host.start[launch[known]]
    ended[known] = began[known] + host.duration[launch[known]]
    thread[known] = host.thread[launch[known]]
    return Gaps(idle.start, idle.end, upcoming, launch, began, ended, thread)
