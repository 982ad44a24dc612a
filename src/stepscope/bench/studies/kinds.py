"""Where a recorded step's time went by kind of operator, on a GPU or on the CPU itself."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np

from stepscope.analyze.timeline.attribution import is_operator
from stepscope.analyze.timeline.categories import categorise
from stepscope.analyze.timeline.devicework import device_work
from stepscope.analyze.timeline.document import launched_within
from stepscope.analyze.timeline.steps import find_steps
from stepscope.analyze.timeline.threads import self_time
from stepscope.record.timeline import NOTHING, Column, Timeline

KINDS: Final = (
    "convolution", "recurrent", "matmul", "attention", "normalisation", "pointwise", "optimizer",
    "other",
)  # fmt: skip
_OTHER: Final = ("communication", "compiled", "other")
_NODE: Final = "autograd::engine::evaluate_function"
_LOADER: Final = "enumerate(DataLoader)"


@dataclass(frozen=True, slots=True)
class KindTime:
    """Of one step: time, and how many kernels (on the CPU: operators) it took."""

    ms: float
    calls: float


@dataclass(frozen=True, slots=True)
class StepTimes:
    """A step by kind; kinds without time are left out."""

    steps: int
    on_device: bool
    kinds: dict[str, KindTime]

    @property
    def ms(self) -> float:
        """All kinds together."""
        return sum(kind.ms for kind in self.kinds.values())


def step_times(timeline: Timeline) -> StepTimes:
    """The recorded steps' work: kernels where there are any, else the operators' own time."""
    found = find_steps(timeline, device_work(timeline))
    start, end = found.steps[0].start_ns, found.steps[-1].end_ns
    host, device = timeline.host, timeline.device
    kinds = _host_kinds(timeline)
    if len(device):
        chosen = np.flatnonzero(launched_within(timeline, start, end))
        durations = device.duration[chosen]
        which = [_device_kind(timeline, row, kinds) for row in chosen.tolist()]
    else:
        inside = (host.start >= start) & (host.start < end)
        chosen = np.flatnonzero(inside & is_operator(timeline))
        durations = self_time(host)[chosen]
        which = [kinds[row] or "pointwise" for row in chosen.tolist()]
    return StepTimes(
        len(found.steps), len(device) > 0, dict(_sums(which, durations, len(found.steps)))
    )


def _sums(which: list[str], durations: Column, steps: int) -> Iterator[tuple[str, KindTime]]:
    numbers = np.array([KINDS.index(kind) for kind in which], np.int64)
    total = np.bincount(numbers, durations, len(KINDS))
    count = np.bincount(numbers, minlength=len(KINDS))
    for kind, ns, calls in zip(KINDS, total.tolist(), count.tolist(), strict=True):
        if ns:
            yield kind, KindTime(ns / steps / 1e6, calls / steps)


def _device_kind(timeline: Timeline, row: int, kinds: list[str | None]) -> str:
    """By the operator that launched it, else by its name."""
    launch = int(timeline.device.launch[row])
    known = kinds[launch] if launch != NOTHING else None
    if known is not None:
        return known
    return _folded(categorise(timeline.name_of(int(timeline.device.name[row]))))


def _host_kinds(timeline: Timeline) -> list[str | None]:
    """For each host event what it is part of: the outermost operator that has a kind decides.

    What autograd runs belongs with the operator whose backward it is, so that a gate of an LSTM
    counts as recurrent in both directions. None where no operator around it has a kind.
    """
    host = timeline.host
    operators = is_operator(timeline).tolist()
    found: list[str | None] = []
    made_by: dict[int, int] = {}  # autograd's number -> the last forward operator that carried it
    in_backward: list[bool] = []
    rows = zip(
        host.parent.tolist(), host.name.tolist(), host.sequence.tolist(), operators, strict=True
    )
    for row, (parent, name, sequence, operator) in enumerate(rows):
        text = timeline.name_of(name)
        node = text.startswith(_NODE)
        backward = node or (parent != NOTHING and in_backward[parent])
        kind = found[parent] if parent != NOTHING else None
        if kind is None and text.startswith(("Optimizer.", _LOADER)):
            kind = "other" if text.startswith(_LOADER) else "optimizer"
        elif kind is None and node and sequence in made_by:
            kind = found[made_by[sequence]]
        elif kind is None and operator:
            kind = _named(text)
        if operator and not backward and sequence != NOTHING:
            made_by[sequence] = row
        found.append(kind)
        in_backward.append(backward)
    return found


@cache
def _named(operator: str) -> str | None:
    """The kind an operator's name gives away; None where it does not."""
    category = categorise("", operator)
    return None if category in _OTHER else _folded(category)


def _folded(category: str) -> str:
    """What is bound by memory counts as pointwise; what none can tell as other."""
    if category in KINDS:
        return category
    return "other" if category in _OTHER else "pointwise"
