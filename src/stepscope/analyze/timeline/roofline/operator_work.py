"""The operator calls that device time belongs to: what each had to do and how long it took."""

import re
from collections import Counter
from dataclasses import dataclass
from math import gcd, prod
from typing import Final, NamedTuple

import numpy as np

from stepscope.analyze.timeline.attribution import (
    CATEGORIES,
    Attribution,
    event_categories,
    nearest,
)
from stepscope.analyze.timeline.intervals import device_of_events
from stepscope.analyze.timeline.kernels import MATRIX_CATEGORIES, MATRIX_UNITS, event_tensor_cores
from stepscope.analyze.timeline.names import CopyDirection, copies_towards, names_match, starts_with
from stepscope.analyze.timeline.roofline.operator_costs import operator_cost, operator_weight
from stepscope.analyze.timeline.roofline.operator_inputs import Cost, read_inputs
from stepscope.record.timeline import (
    NOTHING,
    Column,
    HostKind,
    Timeline,
    distinct_rows,
    distinct_values,
)

_TAKES_LISTS: Final = re.compile(r"aten::_(foreach|fused)_")
_ELEMENT: Final = re.compile(r"Functor<([\w:]+)")
_CHUNK: Final = 65536  # elements a block of PyTorch's multi_tensor_apply takes at most
_STEP: Final = "Optimizer.step#"
_GRADIENT: Final = "torch::autograd::AccumulateGrad"


class ListFacts(NamedTuple):
    """Of the lists an operator got: element type as Kineto names it, and how many elements."""

    dtype: str | None
    elements: int | None  # None: cannot be told


def list_facts(timeline: Timeline, attribution: Attribution) -> dict[tuple[int, int], ListFacts]:
    """By name and shapes of the operator, for those that work on lists of parameters.

    The dtype is in their kernels' names. Lists of all parameters have as many elements as all
    gradients of a step; how many blocks were launched says whether it was such a list.
    """
    device, host = timeline.device, timeline.host
    names = timeline.host_names(attribution.operator)
    use = np.flatnonzero(names_match(timeline, names, _TAKES_LISTS.match))
    if not len(use):
        return {}
    parameters, tensors = _parameters(timeline)
    grids = [geometry.grid for geometry in timeline.geometries]
    per_grid = np.array([*(prod(grid) if grid else np.nan for grid in grids), np.nan], float)
    blocks = per_grid[device.geometry[use]]
    caller = attribution.operator[use]
    distinct, which = distinct_rows([host.name[caller], host.shapes[caller]])
    found = {}
    for n, (name, shapes) in enumerate(distinct):
        own = np.flatnonzero(which == n)
        kernels = {timeline.name_of(k) for k in distinct_values(device.name[use[own]]).tolist()}
        dtypes = {element[1] for k in kernels if (element := _ELEMENT.search(k))}
        launched = blocks[own].sum() / len(distinct_values(caller[own]))
        fits = (launched - tensors) * _CHUNK < parameters <= launched * _CHUNK
        if len(dtypes) == 1:
            found[name, shapes] = ListFacts(dtypes.pop(), parameters if fits else None)
    return found


def _parameters(timeline: Timeline) -> tuple[int, int]:
    """Elements and tensors that get a gradient in a step; 0 where it cannot be told.

    A step may run backward several times: then each shape occurs that many times as often.
    """
    host = timeline.host
    is_step = starts_with(timeline, _STEP)
    steps = np.count_nonzero(is_step & (host.kind == HostKind.ANNOTATION))
    gradients = names_match(timeline, host.name, lambda n: n == _GRADIENT)
    counts = Counter(host.shapes[gradients & (host.shapes != NOTHING)].tolist())
    if not steps or not counts or any(count % steps for count in counts.values()):
        return 0, 0
    passes = gcd(*counts.values())
    elements = tensors = 0
    for shapes, count in counts.items():
        inputs = read_inputs(timeline.shapes[shapes])
        if inputs is None or not inputs.tensors:
            return 0, 0
        elements += inputs.tensors[0].elements * (count // passes)
        tensors += count // passes
    return elements, tensors


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """Calls alike: of the same operator on the same shapes."""

    name: str
    shape: str  # dims as recorded
    cost: Cost


@dataclass(frozen=True, slots=True)
class OperatorWork:
    """One entry per device event, or per host event where said."""

    kinds: list[OperatorCall]
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
    category = event_categories(timeline)
    crossing = copies_towards(timeline, CopyDirection.HTOD, CopyDirection.DTOH, CopyDirection.PTOP)
    on_device = ~crossing & (category != CATEGORIES.index("communication"))
    owner = nearest(host.parent, counted)[attribution.operator]
    devices, idle = device_of_events(timeline), np.zeros(len(device), np.int64)
    launched = np.append(host.end, np.int64(np.iinfo(np.int64).min))[device.launch]
    for number in distinct_values(devices).tolist():
        own = np.flatnonzero(devices == number)
        done = np.maximum.accumulate(device.start[own] + device.duration[own])[:-1]
        gap = np.maximum(device.start[own][1:] - done, 0)
        idle[own[1:]] = np.where(launched[own[1:]] > done, gap, 0)
    return OperatorWork(
        kinds=kinds,
        kind=np.where(counted, kind, np.int32(NOTHING)),
        owner=np.where(on_device, owner, np.int32(NOTHING)),
        category=category,
        units=event_tensor_cores(timeline, category),
        idle=idle,
        on_device=on_device,
    )


def _costs(timeline: Timeline, attribution: Attribution) -> tuple[list[OperatorCall], Column]:
    """The distinct calls with a known cost, and which of them each host event is."""
    host = timeline.host
    has_formula = names_match(timeline, host.name, operator_weight)
    use = np.flatnonzero((host.kind == HostKind.OPERATOR) & (host.shapes != NOTHING) & has_formula)
    distinct, which = distinct_rows([host.name[use], host.shapes[use]])
    lists = list_facts(timeline, attribution)
    calls: list[OperatorCall] = []
    number = np.full(len(distinct), NOTHING, np.int32)
    for n, (name, shape) in enumerate(distinct):
        shapes = timeline.shapes[shape]
        known = lists.get((name, shape), ListFacts(None, None))
        cost = operator_cost(timeline.names[name], shapes, *known)
        if cost is not None:
            number[n] = len(calls)
            dims = shapes.dims.decode("utf-8", "replace")
            calls.append(OperatorCall(timeline.names[name], dims, cost))
    kind = np.full(len(host), NOTHING, np.int32)
    kind[use] = number[which]
    return calls, kind


def _counted(
    timeline: Timeline, attribution: Attribution, kinds: list[OperatorCall], kind: Column
) -> Column:
    """Of nested calls the innermost that says as much: aten::addmm, not the aten::linear around it.

    A helper that says less (a copy below a convolution) is counted beside what it helps; so are
    light ones that run kernels themselves (a loss, and the mean it calls).
    """
    host = timeline.host
    launches = np.zeros(len(host) + 1, bool)
    launches[attribution.operator] = True
    weights = np.array([*(operator_weight(call.name) for call in kinds), 0], np.uint8)[kind]
    around = nearest(host.parent, kind != NOTHING)[host.parent]
    counted: Column = kind != NOTHING
    may_nest = launches[:-1] & (weights == 1)
    for weight in distinct_values(weights[counted]).tolist():
        seen = np.zeros(len(host), bool)
        above = distinct_values(around[weights == weight])
        while len(above := above[above != NOTHING]):
            seen[above] = True
            above = distinct_values(around[above])
            above = above[~seen[above]]
        counted &= ~(seen & (weights <= weight) & ~may_nest)
    return counted


SHORT_NS: Final = 4_000  # about what a launch costs: kernels shorter than that wait for the next


@dataclass(frozen=True, slots=True)
class TimedCalls:
    """Columns, one entry per call, in order of start."""

    host: Column  # the call, as an index into the host events
    kind: Column  # into OperatorWork.kinds
    time: Column  # int64 nanoseconds of its kernels
    kernels: Column  # how many; 0 for work of the host itself
    on_matrix_units: Column  # bool, most of the time it multiplies
    waited_for: Column  # bool, its kernels are too short or the device idled longer than it worked
    recomputed: Column  # bool


def timed_calls(
    timeline: Timeline, attribution: Attribution, work: OperatorWork, selected: Column | None
) -> TimedCalls:
    """The calls that launched the device events `selected`; without a device, the host's own."""
    device, host = timeline.device, timeline.host
    if not len(device):
        own = np.flatnonzero(work.kind != NOTHING)
        no = np.zeros(len(own), bool)
        return TimedCalls(own, work.kind[own], host.duration[own], no.astype(np.int64), no, no, no)
    used = work.owner != NOTHING
    use = np.flatnonzero(used if selected is None else used & selected)
    owners, which = np.unique(work.owner[use], return_inverse=True)
    which, size = which.ravel(), len(owners)
    duration = device.duration[use]
    time = np.bincount(which, duration, size).astype(np.int64)
    kernels = np.bincount(which, minlength=size)
    multiplies = np.bincount(which, duration * np.isin(work.category[use], MATRIX_CATEGORIES), size)
    on_units = np.bincount(which, duration * (work.units[use] == MATRIX_UNITS), size)
    idle = np.bincount(which, work.idle[use], size)
    again = np.bincount(which, attribution.recomputed[use], size) > 0
    short = time < SHORT_NS * np.maximum(kernels, 1)
    return TimedCalls(
        host=owners,
        kind=work.kind[owners],
        time=time,
        kernels=kernels,
        on_matrix_units=on_units * 2 > multiplies,
        waited_for=short | (idle > time),
        recomputed=again,
    )


def group_calls(calls: TimedCalls) -> list[Column]:
    """Calls of the same kind on the same units, as positions."""
    if not len(calls.kind):
        return []
    keys = calls.kind.astype(np.int64) * 2 + calls.on_matrix_units
    order = np.argsort(keys, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(keys[order])) + 1)


def ceiling_dtype(dtype: str, matrix_units: bool) -> str:
    """The dtype whose ceiling holds: fp32 on matrix units is multiplied as tf32."""
    return "tf32" if dtype == "fp32" and matrix_units else dtype
