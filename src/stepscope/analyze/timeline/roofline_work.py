"""Which calls of operators the device's time belongs to, and what each had to do."""

from dataclasses import dataclass

import numpy as np

from stepscope.analyze.timeline.attribution import Attribution, nearest
from stepscope.analyze.timeline.categories import CATEGORIES, event_categories
from stepscope.analyze.timeline.devicework import device_of_events
from stepscope.analyze.timeline.flops import Cost, cost_of, weight_of
from stepscope.analyze.timeline.namematch import names_that
from stepscope.analyze.timeline.roofline_lists import list_facts
from stepscope.analyze.timeline.tensorcore import event_tensor_cores
from stepscope.record.timeline import NOTHING, Column, DeviceKind, HostKind, Timeline


@dataclass(frozen=True, slots=True)
class Call:
    """Calls alike: of the same operator on the same shapes."""

    name: str
    shape: str  # dims as recorded
    cost: Cost


@dataclass(frozen=True, slots=True)
class OperatorWork:
    """One entry per device event, or per host event where said."""

    kinds: list[Call]
    kind: Column  # int32 per host event, into `kinds`; NOTHING where nothing is known of it
    owner: Column  # int32, the host event (a counted call) each device event was launched for
    category: Column  # uint8, into CATEGORIES
    units: Column  # uint8, NO, YES or UNKNOWN: on matrix units
    idle: Column  # int64, how long the device stood idle before it, for want of its launch
    on_device: Column  # bool: neither communication nor a copy from or to the host


def operator_work(timeline: Timeline, attribution: Attribution) -> OperatorWork:
    """Match the device's work with the operators whose cost is known."""
    host, device = timeline.host, timeline.device
    kinds, kind = _costs(timeline, attribution)
    counted = _counted(timeline, attribution, kinds, kind)
    category = event_categories(timeline, attribution)
    crossing = names_that(timeline, device.name, _crosses) & (device.kind == DeviceKind.COPY)
    on_device = ~crossing & (category != CATEGORIES.index("communication"))
    owner = nearest(host.parent, counted)[attribution.operator]
    return OperatorWork(
        kinds=kinds,
        kind=np.where(counted, kind, np.int32(NOTHING)),
        owner=np.where(on_device, owner, np.int32(NOTHING)),
        category=category,
        units=event_tensor_cores(timeline, category),
        idle=_idle_before(timeline),
        on_device=on_device,
    )


def _crosses(name: str) -> bool:
    return "htod" in name.lower() or "dtoh" in name.lower() or "ptop" in name.lower()


def _costs(timeline: Timeline, attribution: Attribution) -> tuple[list[Call], Column]:
    """The distinct calls with a known cost, and which of them each host event is."""
    host = timeline.host
    has_formula = names_that(timeline, host.name, weight_of)
    use = np.flatnonzero((host.kind == HostKind.OPERATOR) & (host.shapes != NOTHING) & has_formula)
    pairs = host.name[use].astype(np.int64) * (len(timeline.shapes) + 1) + host.shapes[use]
    distinct, which = np.unique(pairs, return_inverse=True)
    lists = list_facts(timeline, attribution)
    calls: list[Call] = []
    number = np.full(len(distinct), NOTHING, np.int32)
    for n, pair in enumerate(distinct.tolist()):
        name, shape = divmod(pair, len(timeline.shapes) + 1)
        shapes = timeline.shapes[shape]
        known = lists.get((name, shape))
        dtype, elements = (known.dtype, known.elements) if known else (None, None)
        cost = cost_of(timeline.names[name], shapes, dtype, elements)
        if cost is not None:
            number[n] = len(calls)
            calls.append(Call(timeline.names[name], shapes.dims.decode("utf-8", "replace"), cost))
    kind = np.full(len(host), NOTHING, np.int32)
    kind[use] = number[which.ravel()]
    return calls, kind


def _counted(
    timeline: Timeline, attribution: Attribution, kinds: list[Call], kind: Column
) -> Column:
    """Of nested calls the innermost that says as much: aten::addmm, not the aten::linear around it.

    A helper that says less (a copy below a convolution) is counted beside what it helps; so are
    light ones that run kernels themselves (a loss, and the mean it calls).
    """
    host = timeline.host
    launches = np.zeros(len(host) + 1, bool)
    launches[attribution.operator] = True
    weights = np.array([*(weight_of(call.name) for call in kinds), 0], np.uint8)[kind]
    around = nearest(host.parent, kind != NOTHING)[host.parent]
    counted: Column = kind != NOTHING
    may_nest = launches[:-1] & (weights == 1)
    for weight in np.unique(weights[counted]).tolist():
        seen = np.zeros(len(host), bool)
        above = np.unique(around[weights == weight])
        while len(above := above[above != NOTHING]):
            seen[above] = True
            above = np.unique(around[above])
            above = above[~seen[above]]
        counted &= ~(seen & (weights <= weight) & ~may_nest)
    return counted


def _idle_before(timeline: Timeline) -> Column:
    """Of each device event, how long its device idled before it with nothing launched yet."""
    device, host = timeline.device, timeline.host
    idle = np.zeros(len(device), np.int64)
    owners = device_of_events(timeline)
    launched = np.append(host.end, np.int64(np.iinfo(np.int64).min))[device.launch]
    for number in np.unique(owners).tolist():
        own = np.flatnonzero(owners == number)
        done = np.maximum.accumulate(device.end[own])[:-1]
        gap = np.maximum(device.start[own][1:] - done, 0)
        idle[own[1:]] = np.where(launched[own[1:]] > done, gap, 0)
    return idle
