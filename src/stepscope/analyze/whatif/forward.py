"""Where forward lies on the host chain: before backward, for as long as the clocks say."""

from dataclasses import dataclass

import numpy as np

from stepscope.analyze.timeline.attribution import BACKWARD, FORWARD
from stepscope.analyze.whatif.chain import Chain
from stepscope.record.timeline import NOTHING, Column

UNKNOWN = 255
"""A phase not told yet."""


@dataclass(frozen=True, slots=True)
class Clocks:
    """What the always-on clocks measured in each step of the window, in ns."""

    forward: Column
    backward: Column

    def of(self, steps: int) -> "Clocks | None":
        """For so many steps: these, or their mean where their number differs; None without any."""
        if not len(self.forward):
            return None
        if len(self.forward) == steps:
            return self
        return Clocks(np.full(steps, self.forward.mean()), np.full(steps, self.backward.mean()))


def mark_forward(
    phase: Column, call: Column, chain: Chain, step: Column, clocks: Clocks | None, cuts: list[int]
) -> None:
    """The stretch before each backward (before the end of a step without one).

    The clocks tell how long it is, and by how much backward began before its first node.
    """
    for number in range(int(step.max(initial=-1)) + 1):
        own = np.flatnonzero(step == number)
        if clocks is not None:
            known = float(chain.duration[own[phase[own] == BACKWARD]].sum())
            if known:
                _take(phase, own, chain, clocks.backward[number] - known, BACKWARD, cuts)
            _take(phase, own, chain, clocks.forward[number], FORWARD, cuts)
            continue
        for rows in _runs(phase, own):
            begun = np.flatnonzero(call[rows] != NOTHING)
            phase[rows[begun[0] :] if len(begun) else rows[:0]] = FORWARD


def _take(
    phase: Column, own: Column, chain: Chain, budget: float, kind: int, cuts: list[int]
) -> None:
    """Mark so much of the unknown time just before the backwards of a step, shared by length."""
    runs = _runs(phase, own)
    total = sum(float(chain.duration[rows].sum()) for rows in runs)
    for rows in runs:
        duration = chain.duration[rows]
        share = budget * float(duration.sum()) / total if total else 0.0
        from_end = np.cumsum(duration[::-1])[::-1]
        phase[rows[from_end - duration / 2 <= share]] = kind
        across = rows[(from_end > share) & (from_end - duration < share)]
        left = share - (from_end - duration)[(from_end > share) & (from_end - duration < share)]
        cuts.extend((chain.end[across] - left).astype(np.int64).tolist())


def _runs(phase: Column, own: Column) -> list[Column]:
    """The unknown stretches before each backward of a step."""
    return [own[_run(phase[own], end)] for end in _ends_of_forward(phase[own])]


def _ends_of_forward(phase: Column) -> list[int]:
    """Where, within a step, backwards begin that something unknown comes before."""
    begins = np.flatnonzero((phase == BACKWARD) & (np.append(UNKNOWN, phase[:-1]) != BACKWARD))
    return begins.tolist() if len(begins) else [len(phase)]


def _run(phase: Column, end: int) -> Column:
    """The unknown stretches before `end` back to the last backward; other phases are jumped."""
    earlier = np.flatnonzero(phase[:end] == BACKWARD)
    first = int(earlier[-1]) + 1 if len(earlier) else 0
    found: Column = first + np.flatnonzero(phase[first:end] == UNKNOWN)
    return found
