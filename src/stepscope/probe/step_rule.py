"""Which optimizer step ends a step.

Optimizers whose ranges of steps overlap in time belong to one loop. In a loop the optimizer that
steps most often is the anchor; its steps count, and those of any optimizer that ever steps twice in
a row. The others ride along: the generator of a GAN, the second half of a split model.

And which calls of models are evaluations, no part of steps.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

FIRST_STEPS = 64
"""They show how a program's loop goes: whatever it costs, they are seen in full."""
NEVER = 1 << 62
"""No step has this number."""


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


class Evaluations:
    """Whether evaluations inside the training loop can be foretold, so that clocks which are off
    go on in time: by `eval()`, or by an iterator of a loader that steps are not made from."""

    def __init__(self) -> None:
        self.announced = False
        self.unannounced = False
        """Whether one was not foretold, and steps without one are the rule."""
        self.common = False
        """Whether most steps have one, or what foretells it: then they are a part of the step."""
        self.seen = False
        """Whether a model was called without gradients in this step,"""
        self.evaluated = False
        """… and not to act, for the next steps."""
        self._surprises = self._steps = 0
        self._loader: int | None = None  # the latest of which an iterator was made
        self._feeding: set[int] = set()
        self._evaluating: set[int] = set()

    def feeds_steps_only(self, loader: int | None) -> bool:
        """Whether a loader is known to be one that steps are made from, and no evaluations."""
        return loader in self._feeding and loader not in self._evaluating

    def loads(self, loader: int) -> None:
        """An iterator was made of a loader."""
        self._loader = loader

    def called(self, acts: bool) -> None:
        """A root model has returned without recording gradients. `acts`: for the next steps."""
        if self._loader is not None:
            self._evaluating.add(self._loader)
        self.seen = True
        self.evaluated = self.evaluated or not acts
        if not self.announced:
            self._surprises += 1

    def step_ended(self, step: int) -> None:
        """Of a step that was clocked."""
        if self._loader is not None:
            self._feeding.add(self._loader)
        if step <= FIRST_STEPS:
            self._steps += self.seen or self.announced
            self.common = self._steps > step / 2
        self.unannounced = self._surprises > 0 and not self.common
        self.seen = self.evaluated = self.announced = False
