"""Each call of an operator whose cost is known, with the time its kernels took."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from stepscope.analyze.timeline.attribution import Attribution
from stepscope.analyze.timeline.roofline_work import OperatorWork
from stepscope.analyze.timeline.tensorcore import MATRIX, YES
from stepscope.record.timeline import NOTHING, Column, Timeline

SHORT_NS: Final = 4_000  # about what a launch costs: kernels shorter than that wait for the next


@dataclass(frozen=True, slots=True)
class Calls:
    """Columns, one entry per call, in order of start."""

    host: Column  # the call, as an index into the host events
    kind: Column  # into OperatorWork.kinds
    time: Column  # int64 nanoseconds of its kernels
    kernels: Column  # how many; 0 for work of the host itself
    on_matrix_units: Column  # bool, most of the time it multiplies
    waited_for: Column  # bool, its kernels are too short or the device idled longer than it worked
    recomputed: Column  # bool


def calls_of(
    timeline: Timeline, attribution: Attribution, work: OperatorWork, selected: Column | None
) -> Calls:
    """The calls that launched the device events `selected`; without a device, the host's own."""
    device, host = timeline.device, timeline.host
    if not len(device):
        own = np.flatnonzero(work.kind != NOTHING)
        no = np.zeros(len(own), bool)
        return Calls(own, work.kind[own], host.duration[own], no.astype(np.int64), no, no, no)
    used = work.owner != NOTHING
    use = np.flatnonzero(used if selected is None else used & selected)
    owners, which = np.unique(work.owner[use], return_inverse=True)
    which, size = which.ravel(), len(owners)
    duration = device.duration[use]
    time = np.bincount(which, duration, size).astype(np.int64)
    kernels = np.bincount(which, minlength=size)
    multiplies = np.bincount(which, duration * np.isin(work.category[use], MATRIX), size)
    on_units = np.bincount(which, duration * (work.units[use] == YES), size)
    idle = np.bincount(which, work.idle[use], size)
    again = np.bincount(which, attribution.recomputed[use], size) > 0
    short = time < SHORT_NS * np.maximum(kernels, 1)
    return Calls(
        host=owners,
        kind=work.kind[owners],
        time=time,
        kernels=kernels,
        on_matrix_units=on_units * 2 > multiplies,
        waited_for=short | (idle > time),
        recomputed=again,
    )


def alike(calls: Calls) -> list[Column]:
    """Calls of the same kind on the same units, as positions."""
    if not len(calls.kind):
        return []
    keys = calls.kind.astype(np.int64) * 2 + calls.on_matrix_units
    order = np.argsort(keys, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(keys[order])) + 1)


def used_dtype(dtype: str, matrix_units: bool) -> str:
    """The dtype whose ceiling holds: fp32 on matrix units is multiplied as tf32."""
    return "tf32" if dtype == "fp32" and matrix_units else dtype
