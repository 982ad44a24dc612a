"""The operators that cost the device most, with what they cost the host."""

from dataclasses import dataclass

import numpy as np

from stepscope.analyze.timeline.attribution import Attribution, is_operator, nearest
from stepscope.record.timeline import NOTHING, Column, Timeline


@dataclass(frozen=True, slots=True)
class HeavyOperator:
    """All calls of an operator that is not part of another one."""

    name: str
    calls: int  # that launched work
    kernels: int
    device_ns: int  # of all it launched, itself or through the operators it called
    share: float  # of the time of all device work looked at
    host_ns: int  # from its calls' starts to their ends, added up
    host_self_ns: int  # the same without the operators it called


def heaviest_operators(
    timeline: Timeline, attribution: Attribution, selected: Column | None = None, limit: int = 10
) -> list[HeavyOperator]:
    """Outermost operators by the time of the device work `selected`, heaviest first."""
    host, device = timeline.host, timeline.device
    chosen = attribution.top != NOTHING
    use = np.flatnonzero(chosen if selected is None else chosen & selected)
    top, duration = attribution.top[use], device.duration[use]
    every = device.duration if selected is None else device.duration[selected]
    calls = np.unique(top)
    size = len(timeline.names)
    kernels = np.bincount(host.name[top], minlength=size)
    total = np.bincount(host.name[top], duration, size).astype(np.int64)
    count = np.bincount(host.name[calls], minlength=size)
    inside = np.bincount(host.name[calls], host.duration[calls], size).astype(np.int64)
    alone = np.bincount(host.name[calls], _self_times(timeline)[calls], size).astype(np.int64)
    order = np.argsort(-total, kind="stable")[:limit]
    whole = float(every.sum())
    return [
        HeavyOperator(
            name=timeline.names[n],
            calls=int(count[n]),
            kernels=int(kernels[n]),
            device_ns=int(total[n]),
            share=float(total[n] / whole) if whole else 0.0,
            host_ns=int(inside[n]),
            host_self_ns=int(alone[n]),
        )
        for n in order.tolist()
        if kernels[n]
    ]


def _self_times(timeline: Timeline) -> Column:
    """Of each operator, the time not spent in operators it called."""
    host = timeline.host
    operators = is_operator(timeline)
    caller = nearest(host.parent, operators)[host.parent]
    called = np.flatnonzero(operators & (caller != NOTHING))
    times: Column = host.duration.copy()
    np.subtract.at(times, caller[called], host.duration[called])
    return np.maximum(times, 0)
