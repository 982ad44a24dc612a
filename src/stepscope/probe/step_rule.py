"""Which optimizer step ends a step.

Optimizers whose ranges of steps overlap in time belong to one loop. In a loop the optimizer that
steps most often is the anchor; its steps count, and those of any optimizer that ever steps twice in
a row. The others ride along: the generator of a GAN, the second half of a split model.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(slots=True)
class _Optimizer:
    first: int
    last: int
    count: int = 1
    twice: bool = False  # stepped twice in a row at some time


class StepRule:
    """Counts steps as optimizer steps arrive; O(1) while there is one optimizer."""

    def __init__(self) -> None:
        self.count = 0
        self._seen: dict[int, _Optimizer] = {}
        self._position = 0
        self._previous: int | None = None

    def add(self, who: int) -> bool:
        """Optimizer `who` stepped. True when that makes one more step than before."""
        self._position += 1
        optimizer = self._seen.get(who)
        if optimizer is None:
            self._seen[who] = _Optimizer(self._position, self._position)
        else:
            optimizer.last = self._position
            optimizer.count += 1
            optimizer.twice = optimizer.twice or self._previous == who
        self._previous = who
        before = self.count
        if len(self._seen) == 1:
            self.count += 1
        else:
            self.count = sum(self._seen[w].count for w in self.counted())
        return self.count > before

    def step(self, who: int) -> int:
        """`add`, and the settled count; quick while one optimizer is all there is."""
        if who == self._previous and len(self._seen) == 1:
            optimizer = self._seen[who]
            self._position += 1
            optimizer.last = self._position
            optimizer.count += 1
            optimizer.twice = True
            self.count += 1
            return self.count
        self.add(who)
        return self.settled

    def has_seen(self, who: int) -> bool:
        """Whether that optimizer has ever stepped."""
        return who in self._seen

    @property
    def settled(self) -> int:
        """The count without the first step of a second optimizer: whether that one rides along
        shows at the next step."""
        newest = self._seen.get(self._previous) if self._previous is not None else None
        tentative = newest is not None and newest.count == 1 and len(self._seen) > 1
        return self.count - tentative

    def counted(self) -> set[int]:
        """The optimizers whose steps count."""
        counted = {who for who, optimizer in self._seen.items() if optimizer.twice}
        for loop in self._loops():
            counted.add(max(loop, key=lambda w: (self._seen[w].count, self._seen[w].last)))
        return counted

    def _loops(self) -> Iterable[list[int]]:
        loop: list[int] = []
        end = 0
        for who, optimizer in sorted(self._seen.items(), key=lambda item: item[1].first):
            if loop and optimizer.first > end:
                yield loop
                loop = []
            loop.append(who)
            end = max(end, optimizer.last)
        if loop:
            yield loop


def step_ends(events: Sequence[int]) -> list[bool]:
    """For each optimizer step, given by its optimizer, whether it ends a step."""
    rule = StepRule()
    for who in events:
        rule.add(who)
    counted = rule.counted()
    return [who in counted for who in events]
