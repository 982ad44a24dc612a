"""The two recordings beside each other: speedup by kind of operator, and why they differ."""

from collections.abc import Sequence
from dataclasses import dataclass

from stepscope.bench.studies.kinds import KINDS, StepTimes
from stepscope.bench.studies.why import Ceilings, arithmetic, explain


@dataclass(frozen=True, slots=True)
class OperatorRow:
    """One kind of operator, per step. None: the device spent no time on it, or it is not known."""

    kind: str
    cpu_ms: float | None
    cpu_share: float | None
    gpu_ms: float | None
    gpu_share: float | None
    speedup: float | None
    kernels: float | None
    kernel_us: float | None
    bound: str | None
    """What limits it: "matrix products", "memory" or "sequence"."""
    possible: float | None
    """The speedup that the ratio of the ceilings would allow."""
    why: str


def operators(
    times: Sequence[StepTimes],
    ceilings: tuple[Ceilings, Ceilings],
    fastest: tuple[str, str],
    fixes: tuple[str, ...],
) -> list[OperatorRow]:
    """The kinds that took time on either, those that took most of the CPU's first."""
    ours, theirs = times
    rows = []
    for kind in KINDS:
        one, other = ours.kinds.get(kind), theirs.kinds.get(kind)
        if one is None and other is None:
            continue
        ratio = one.ms / other.ms if one and other and other.ms else None
        uses = (arithmetic(kind, fastest[0], fixes), arithmetic(kind, fastest[1], fixes))
        told = explain(kind, ratio, other if theirs.on_device else None, ceilings, uses)
        rows.append(
            OperatorRow(
                kind=kind,
                cpu_ms=one.ms if one else None,
                cpu_share=one.ms / ours.ms if one and ours.ms else None,
                gpu_ms=other.ms if other else None,
                gpu_share=other.ms / theirs.ms if other and theirs.ms else None,
                speedup=ratio,
                kernels=other.calls if other else None,
                **told,
            )
        )
    return sorted(rows, key=lambda row: -(row.cpu_ms or 0.0))
