"""The time of a recorded step by kind of operator, on two devices, and why one kind gains more than
another."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict

from stepscope.analyze.timeline.attribution import AUTOGRAD_NODE, categorise, is_operator
from stepscope.analyze.timeline.document import launched_within
from stepscope.analyze.timeline.host_threads import self_time
from stepscope.analyze.timeline.steps import find_steps
from stepscope.bench.results import OperatorRow
from stepscope.hardware.ceiling_cache import format_quantity
from stepscope.record.timeline import NOTHING, Timeline

_MATRIX: Final = ("convolution", "matmul", "attention")
_MEMORY: Final = ("normalisation", "pointwise", "optimizer")
_KINDS: Final = ("convolution", "recurrent", "matmul", "attention", *_MEMORY, "other")
_OTHER: Final = ("communication", "compiled", "other")
_LOADER: Final = "enumerate(DataLoader)"


@dataclass(frozen=True, slots=True)
class KindTime:
    """Time per step, and the number of kernels (on the CPU: operators)."""

    ms: float
    calls: float


@dataclass(frozen=True, slots=True)
class StepTimes:
    """A step's time by kind, without kinds that took none."""

    steps: int
    on_device: bool
    kinds: dict[str, KindTime]

    @property
    def ms(self) -> float:
        """All kinds together."""
        return sum(kind.ms for kind in self.kinds.values())


def step_times(timeline: Timeline) -> StepTimes:
    """The recorded steps' work: kernels if there are any, else operators' self time."""
    found = find_steps(timeline)
    start, end = found.steps[0].start_ns, found.steps[-1].end_ns
    host, device = timeline.host, timeline.device
    kinds = _host_kinds(timeline)
    if len(device):
        chosen = np.flatnonzero(launched_within(timeline, start, end))
        durations = device.duration[chosen]
        # By the operator that launched it, else by its own name.
        which = [
            (kinds[launch] if launch != NOTHING else None)
            or _folded(categorise(timeline.name_of(name)))
            for launch, name in zip(
                device.launch[chosen].tolist(), device.name[chosen].tolist(), strict=True
            )
        ]
    else:
        inside = (host.start >= start) & (host.start < end)
        chosen = np.flatnonzero(inside & is_operator(timeline))
        durations = self_time(host)[chosen]
        which = [kinds[row] or "pointwise" for row in chosen.tolist()]
    numbers = np.array([_KINDS.index(kind) for kind in which], np.int64)
    total = np.bincount(numbers, durations, len(_KINDS))
    count, steps = np.bincount(numbers, minlength=len(_KINDS)), len(found.steps)
    sums = {
        kind: KindTime(ns / steps / 1e6, calls / steps)
        for kind, ns, calls in zip(_KINDS, total.tolist(), count.tolist(), strict=True)
        if ns
    }
    return StepTimes(steps, len(device) > 0, sums)


def _host_kinds(timeline: Timeline) -> list[str | None]:
    """The kind of each host event: that of the outermost operator with a kind. What autograd runs
    belongs to the operator whose backward it is, so that an LSTM's gate counts as recurrent in both
    directions. None if no operator around it has a kind."""
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
        node = text.startswith(AUTOGRAD_NODE)
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
    """The kind an operator's name implies, or None."""
    category = categorise("", operator)
    return None if category in _OTHER else _folded(category)


def _folded(category: str) -> str:
    """Maps categories to kinds: memory-bound work counts as pointwise, unknown work as other."""
    if category in _KINDS:
        return category
    return "other" if category in _OTHER else "pointwise"


_Ceilings = Mapping[str, float]  # measured ceilings by name, as in `hardware.ceiling_cache`

_LATENCY_US: Final = 10.0  # shorter kernels spend much of their time starting and ending
_REACHED: Final = 0.5


class Explanation(Struct, frozen=True):
    """What bounds a kind of operators, and the speedup the ceilings allow (None: unknown)."""

    bound: str | None
    possible: float | None
    why: str
    kernel_us: float | None


def explain(
    kind: str,
    speedup: float | None,
    gpu: KindTime | None,
    ceilings: tuple[_Ceilings, _Ceilings],
    arithmetic: tuple[str, str],
) -> Explanation:
    """Explains a kind's speedup."""
    kernel_us = gpu.ms * 1e3 / gpu.calls if gpu and gpu.calls else None
    small = ""
    if gpu and kernel_us is not None and kernel_us < _LATENCY_US:
        small = f"{gpu.calls:,.0f} kernels of {kernel_us:.1f} µs, too short to fill the GPU"
    if kind == "recurrent":
        words = "each time step waits for the previous one"
        return Explanation("sequence", None, "; ".join(filter(None, [words, small])), kernel_us)
    if kind in _MATRIX:
        names = tuple(f"matmul_{which}_tflops" for which in arithmetic)
        bound, unit, notes = "matrix products", "TFLOP/s", f" ({arithmetic[1]}, {arithmetic[0]})"
    elif kind in _MEMORY:
        names = ("memory_gb_per_s", "memory_gb_per_s")
        bound, unit, notes = "memory", "GB/s", ""
    else:
        return Explanation(None, None, small, kernel_us)
    slow, fast = ceilings[0].get(names[0]), ceilings[1].get(names[1])
    if not slow or not fast:
        return Explanation(bound, None, small or f"bound by {bound}", kernel_us)
    possible = fast / slow
    rates = " against ".join(" ".join(format_quantity(rate, unit)) for rate in (fast, slow))
    words = f"{rates}{notes}: {possible:,.0f}× possible"
    if speedup is not None and speedup < _REACHED * possible and small:
        words += f"; {small}"
    return Explanation(bound, possible, words, kernel_us)


def arithmetic_of(kind: str, fastest: str, fixes: tuple[str, ...]) -> str:
    """The arithmetic of a kind: PyTorch allows TF32 in convolutions by default, in products only on
    request."""
    asked = any(fix in ("tf32", "tf32=on") for fix in fixes)
    if fastest == "tf32" and kind in ("matmul", "attention") and not asked:
        return "fp32"
    return fastest


def operator_rows(
    times: Sequence[StepTimes],
    ceilings: tuple[_Ceilings, _Ceilings],
    fastest: tuple[str, str],
    fixes: tuple[str, ...],
) -> list[OperatorRow]:
    """The kinds that took time on either device, largest CPU time first."""
    ours, theirs = times
    rows = []
    for kind in _KINDS:
        one, other = ours.kinds.get(kind), theirs.kinds.get(kind)
        if one is None and other is None:
            continue
        ratio = one.ms / other.ms if one and other and other.ms else None
        uses = (arithmetic_of(kind, fastest[0], fixes), arithmetic_of(kind, fastest[1], fixes))
        explained = explain(kind, ratio, other if theirs.on_device else None, ceilings, uses)
        rows.append(
            OperatorRow(
                kind=kind,
                cpu_ms=one.ms if one else None,
                cpu_share=one.ms / ours.ms if one and ours.ms else None,
                gpu_ms=other.ms if other else None,
                gpu_share=other.ms / theirs.ms if other and theirs.ms else None,
                speedup=ratio,
                kernels=other.calls if other else None,
                **asdict(explained),
            )
        )
    return sorted(rows, key=lambda row: -(row.cpu_ms or 0.0))
