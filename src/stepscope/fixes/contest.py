"""A contest inside a running program: what is kept against the same with a candidate, in turns of a
few steps each.

Two blocks of steps make a pair, in an order drawn by chance: `stats.paired` rests on that. The
steps after a switch are left out until they have settled. Nothing here waits for the device: on
CUDA the ends of steps are events on the program's stream, read once the device has passed them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf, log, log1p
from random import Random
from time import monotonic_ns
from typing import Any, Protocol

from stepscope.fixes.lazy import torch
from stepscope.stats import mean, median
from stepscope.stats.paired import (
    MIN_GAIN,
    Blocks,
    Decision,
    PairedRatio,
    decide,
    middle,
    paired_ratio,
)

_MOST_PAIRS = 150
_PATIENCE = 3  # times as long
_LEAST = log1p(MIN_GAIN)
_UNSETTLED = 1.1  # times the usual step of a block: so long a step still pays for the switch


class Clock(Protocol):
    """Tells when steps end."""

    def mark(self) -> Any:
        """The present moment."""

    def elapsed_ms(self, begin: Any, end: Any) -> float | None:
        """Between two marks; None: the device has not got there yet."""


class HostClock:
    """Where steps end as the host sees it, as on the CPU."""

    def mark(self) -> int:
        return monotonic_ns()

    def elapsed_ms(self, begin: int, end: int) -> float | None:
        return (end - begin) / 1e6


class StreamClock:
    """Where steps end on the stream that the program works on."""

    def mark(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def elapsed_ms(self, begin: Any, end: Any) -> float | None:
        return float(begin.elapsed_time(end)) if begin.query() and end.query() else None


@dataclass(frozen=True, slots=True)
class ContestResult:
    """How a contest ended."""

    decision: Decision
    """OPEN: it took too long."""
    ratio: PairedRatio
    pairs: int
    steps: int
    before_ms: float
    """A mean step without the candidate, and with it."""
    after_ms: float

    @property
    def gains(self) -> bool:
        """Whether the candidate stays on."""
        return self.decision is Decision.GAIN


@dataclass(slots=True)
class _Block:
    on: bool
    marks: list[Any] = field(default_factory=list)
    """Its beginning, and the end of each step."""
    step_ms: list[float] = field(default_factory=list)
    """Once they are known."""


class Contest:
    """Switches a candidate on and off between steps until it is decided."""

    def __init__(
        self,
        switch: Callable[[bool], None],
        clock: Clock,
        blocks: Blocks,
        draw: Random,
        most_steps: int | None = None,
        most_s: float = inf,
    ) -> None:
        """`most_steps` and `most_s`: after which it ends undecided; three times that many seconds
        while it looks like a gain."""
        self._switch = switch
        self._clock = clock
        self._blocks = blocks
        self._draw = draw
        most = _MOST_PAIRS * 2 * blocks.steps
        self._most_steps = most if most_steps is None else min(most, most_steps)
        self._most_ns, self._begun_ns = most_s * 1e9, monotonic_ns()
        self._steps = 0
        self._order: list[bool] = []  # of the blocks to come
        self._block = _Block(on=False)
        self._ended: list[_Block] = []  # whose times are not known yet
        self._known: list[_Block] = []
        self._judged = 0
        self._promising = False  # whether it looks like a gain
        self.blocks_tried = 0
        """Blocks that the candidate has been on in."""

    def begin(self) -> None:
        """A step has ended, and the first block begins."""
        if not self._order:
            first = self._draw.random() < 0.5
            self._order = [first, not first]
        self._block = _Block(self._order.pop(0))
        self._switch(self._block.on)
        self._block.marks.append(self._clock.mark())

    @property
    def late(self) -> bool:
        """Whether its time is over."""
        spent_ns = monotonic_ns() - self._begun_ns
        return spent_ns >= self._most_ns * (_PATIENCE if self._promising else 1)

    def step_ended(self) -> ContestResult | None:
        """Count a step. The result once there is one; then the candidate is on if it gains. There
        is none before two pairs, however late it is."""
        self._steps += 1
        self._block.marks.append(self._clock.mark())
        pairs, decision = len(self._known) // 2, Decision.OPEN
        ended = len(self._block.marks) > self._blocks.steps
        if ended:
            self._ended.append(self._block)
            self.blocks_tried += self._block.on
            self._read()
            pairs = len(self._known) // 2
        if pairs > self._judged:
            self._judged = pairs
            differences = self._differences()
            decision, self._promising = decide(differences), middle(differences) >= _LEAST
        over = pairs > 1 and (self.late or (ended and self._steps >= self._most_steps))
        if decision is not Decision.OPEN or over:
            self._switch(decision is Decision.GAIN)
            return self._result(decision)
        if ended:
            self.begin()
        return None

    def _read(self) -> None:
        """Take the times of blocks that the device has passed."""
        while self._ended:
            block = self._ended[0]
            if self._clock.elapsed_ms(block.marks[0], block.marks[-1]) is None:
                return
            ends = zip(block.marks, block.marks[1:], strict=False)
            block.step_ms = [self._clock.elapsed_ms(*both) or 0.0 for both in ends]
            block.marks.clear()
            self._known.append(self._ended.pop(0))

    def _means(self) -> list[float]:
        """Each block's mean step once it has settled."""
        every = ([one.step_ms for one in self._known if one.on is side] for side in (True, False))
        lead = max(steps_to_settle(blocks) for blocks in every if blocks)
        whole = max(1, (self._blocks.steps - lead) // self._blocks.cycle) * self._blocks.cycle
        return [mean(one.step_ms[-min(whole, self._blocks.steps - lead) :]) for one in self._known]

    def _differences(self) -> list[float]:
        """Of each pair, the logarithm of its time without the candidate over that with it."""
        means = self._means()
        pairs = range(0, len(means) - 1, 2)
        return [
            log(max(means[at], 1e-9) / max(means[at + 1], 1e-9)) * (-1 if self._known[at].on else 1)
            for at in pairs
        ]

    def _result(self, decision: Decision) -> ContestResult:
        sides: dict[bool, list[float]] = {True: [], False: []}
        for block, usual in zip(self._known, self._means(), strict=True):
            sides[block.on].append(usual)
        return ContestResult(
            decision=decision,
            ratio=paired_ratio(self._differences()),
            pairs=self._judged,
            steps=self._steps,
            before_ms=mean(sides[False]),
            after_ms=mean(sides[True]),
        )


def steps_to_settle(blocks: Sequence[Sequence[float]]) -> int:
    """How many steps after a switch are left out: the first, and more where they usually take
    longer than the second half of their block, which always counts."""
    half = len(blocks[0]) // 2
    left_out = 1
    for place in range(1, half):
        if median(block[place] / (median(block[half:]) or 1.0) for block in blocks) > _UNSETTLED:
            left_out = place + 1
    return left_out
