"""One recording against the ceilings, with what was counted in place of the model where it was."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepscope.analyze.timeline.attribution import Attribution, attribute
from stepscope.analyze.timeline.roofline import Roofline, roofline
from stepscope.analyze.timeline.roofline_ceilings import Ceilings, ceilings_for
from stepscope.analyze.timeline.roofline_counters import with_counters
from stepscope.analyze.timeline.roofline_work import OperatorWork, operator_work
from stepscope.record.timeline import NOTHING, DeviceKind, Timeline
from stepscope.trace.ncu import Counters
from stepscope.trace.ncu_join import Joined, join
from stepscope.trace.ncu_names import base_name


@dataclass(frozen=True, slots=True)
class Against:
    """A recording held against the ceilings: by the model alone, and with counters."""

    timeline: Timeline
    attribution: Attribution
    work: OperatorWork
    model: Roofline
    counted: Roofline  # the same as `model` where nothing was counted
    joined: Joined


def against(
    timeline: Timeline,
    counters: Sequence[Counters] = (),
    cached: Iterable[Mapping[str, Any]] = (),
    ceilings: Ceilings | None = None,
    steps: int = 1,
) -> Against:
    """`ceilings` None: those of the device, measured (`cached`) or its maker's."""
    attribution = attribute(timeline)
    work = operator_work(timeline, attribution)
    limits = ceilings or ceilings_for(timeline, cached)
    model = roofline(timeline, attribution, work, limits, steps)
    joined = join(counters, timeline) if len(timeline.device) else Joined()
    counted = model
    if joined.counters:
        counted = with_counters(timeline, attribution, work, model, joined.counters)
    return Against(timeline, attribution, work, model, counted, joined)


def heaviest_names(found: Against, most: int) -> set[str]:
    """Functions of the kernels that the heaviest calls launch (an operator on some shapes each),
    and of the heaviest kernels themselves. Calls count only when all their kernels are counted.
    """
    timeline, work = found.timeline, found.work
    device = timeline.device
    kernels = device.kind == DeviceKind.KERNEL
    owned = kernels & (work.owner != NOTHING)
    kind = np.append(work.kind, np.int32(NOTHING))[work.owner]
    times = np.bincount(kind[owned], device.duration[owned], len(work.kinds))
    heavy = np.argsort(-times, kind="stable")[:most]
    chosen = owned & np.isin(kind, heavy[times[heavy] > 0])
    by_name = np.bincount(device.name[kernels], device.duration[kernels], len(timeline.names))
    names = np.argsort(-by_name, kind="stable")[:most]
    use = {*device.name[chosen].tolist(), *names[by_name[names] > 0].tolist()}
    return {base_name(timeline.name_of(name)) for name in use}
