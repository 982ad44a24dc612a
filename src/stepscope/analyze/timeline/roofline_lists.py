"""What is known of tensors in lists, whose dtype and (for long lists) dims Kineto leaves out."""

import re
from collections import Counter
from dataclasses import dataclass
from math import gcd, prod
from typing import Final

import numpy as np

from stepscope.analyze.timeline.attribution import Attribution
from stepscope.analyze.timeline.flops_inputs import read_inputs
from stepscope.analyze.timeline.namematch import names_that
from stepscope.record.timeline import NOTHING, Column, HostKind, Timeline

_TAKES_LISTS: Final = re.compile(r"aten::_(foreach|fused)_")
_ELEMENT: Final = re.compile(r"Functor<([\w:]+)")
_CHUNK: Final = 65536  # elements a block of PyTorch's multi_tensor_apply takes at most
_STEP: Final = "Optimizer.step#"
_GRADIENT: Final = "torch::autograd::AccumulateGrad"


@dataclass(frozen=True, slots=True)
class Lists:
    """Of the lists an operator got: element type as Kineto names it, and how many elements."""

    dtype: str
    elements: int | None  # None: cannot be told


def list_facts(timeline: Timeline, attribution: Attribution) -> dict[tuple[int, int], Lists]:
    """By name and shapes of the operator, for those that work on lists of parameters.

    The dtype is in their kernels' names. Lists of all parameters have as many elements as all
    gradients of a step; how many blocks were launched says whether it was such a list.
    """
    device, host = timeline.device, timeline.host
    names = np.append(host.name, np.int32(NOTHING))[attribution.operator]
    use = np.flatnonzero(names_that(timeline, names, _TAKES_LISTS.match))
    if not len(use):
        return {}
    parameters, tensors = _parameters(timeline)
    blocks = _blocks(timeline)[device.geometry[use]]
    caller = attribution.operator[use]
    keys = np.stack([host.name[caller], host.shapes[caller]])
    distinct, which = np.unique(keys, axis=1, return_inverse=True)
    which = which.ravel()
    found = {}
    for n, (name, shapes) in enumerate(distinct.T.tolist()):
        own = np.flatnonzero(which == n)
        kernels = {timeline.name_of(k) for k in np.unique(device.name[use[own]]).tolist()}
        dtypes = {element[1] for k in kernels if (element := _ELEMENT.search(k))}
        launched = blocks[own].sum() / len(np.unique(caller[own]))
        fits = (launched - tensors) * _CHUNK < parameters <= launched * _CHUNK
        if len(dtypes) == 1:
            found[name, shapes] = Lists(dtypes.pop(), parameters if fits else None)
    return found


def _blocks(timeline: Timeline) -> Column:
    grids = [geometry.grid for geometry in timeline.geometries]
    return np.array([*(prod(grid) if grid else np.nan for grid in grids), np.nan], float)


def _parameters(timeline: Timeline) -> tuple[int, int]:
    """Elements and tensors that get a gradient in a step; 0 where it cannot be told.

    A step may run backward several times: then each shape occurs that many times as often.
    """
    host = timeline.host
    is_step = names_that(timeline, host.name, lambda n: n.startswith(_STEP))
    steps = np.count_nonzero(is_step & (host.kind == HostKind.ANNOTATION))
    gradients = names_that(timeline, host.name, lambda n: n == _GRADIENT) & (host.shapes != NOTHING)
    counts = Counter(host.shapes[gradients].tolist())
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
