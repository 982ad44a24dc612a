"""How many steps are clocked, so that observing takes no more than its share of the time.

A clocked step takes longer than its hooks do: their code and data push the program's own out of
the processor's caches. So what one costs is measured in the program itself: blocks of clocked steps
lie between unclocked ones, at random distances, and are compared with them. Until enough of them
are seen, and where noise hides the difference, an estimate by the hooks' number stands for it.
"""

from collections import deque
from collections.abc import Callable, Sequence
from math import sqrt
from random import Random
from statistics import median
from threading import get_ident
from time import monotonic_ns

_COLD = 45.0  # of a hook amid real work, over the least one called again and again: 30 to 60
_ALWAYS_ON = 0.5  # of a hook, what an unclocked step takes
_USED = 0.6  # of the budget: what is measured may be wrong
_LEAST_USED = 0.1  # of the budget, even where unclocked steps need it all
_FEWEST_PAIRS = 6
_PAIRS = 40  # the latest ones count
_DOUBT = 4.0  # the measured cost may be that many times what the hooks make expect, or a part of it
_SURE = 0.005  # the standard error of the mean step, below which more steps tell nothing new
_SURE_STEPS = 200
_LONGEST_NS = 15_000_000_000
_RUN_SHARE = 40  # the longest gap is a 40th of the run, so that there are some 400 in any
_FEWEST_BETWEEN = 24  # on average, so that there are enough to compare with
_LOOPS = 200


def hook_ns(clock: Callable[[], int] = monotonic_ns) -> float:
    """What something like a hook takes on this machine, called again and again."""
    events: list[int] = []

    def hook(*args: object, **kwargs: object) -> int:
        append = events.append
        for _ in range(2):
            append(get_ident())
            append(clock())
        return len(events)

    best = float("inf")
    for _ in range(3):
        began = clock()
        for _ in range(_LOOPS):
            hook(began, place=began)
        best = min(best, (clock() - began) / _LOOPS)
        events.clear()
    return best


class Budget:
    """Decides how many steps lie between two clocked blocks. Times are nanoseconds."""

    def __init__(self, share: float, hook: float, begun: int, random: Random) -> None:
        self.share = share
        self._hook = hook * _COLD
        self._begun = begun
        self._random = random
        self._differences: deque[float] = deque(maxlen=_PAIRS)
        self._hooks = 8.0  # of a clocked step
        self._switches: deque[float] = deque([0.0], maxlen=9)
        self._count = 0
        self._sum = self._squares = 0.0

    @property
    def pairs(self) -> int:
        """How many the cost was measured on."""
        return len(self._differences)

    @property
    def expected(self) -> float:
        """What a clocked step costs, by the number of its hooks."""
        return self._hooks * self._hook

    @property
    def unclocked_cost(self) -> float:
        """What an unclocked step costs, likewise."""
        return _ALWAYS_ON * self._hook

    @property
    def cost(self) -> float:
        """What a clocked step takes longer than an unclocked one, rather too much than too little:
        the median over pairs of neighbouring blocks and its standard error."""
        expected = self.expected
        if len(self._differences) < _FEWEST_PAIRS:
            return expected
        middle = median(self._differences)
        spread = median(abs(one - middle) for one in self._differences)
        measured = middle + 1.86 * spread / sqrt(len(self._differences))
        return min(max(measured, expected / _DOUBT), expected * _DOUBT)

    def hooks_seen(self, each: float) -> None:
        """How many hooks a clocked step has."""
        if each > 0:
            self._hooks = each

    def switched(self, elapsed: float) -> None:
        """What it took to switch the clocks on and off again."""
        self._switches.append(elapsed)

    def compared(self, clocked: Sequence[int], between: Sequence[int]) -> None:
        """Durations of a block's steps, and of the unclocked ones before and after it."""
        self._differences.append(median(clocked) - median(between))
        for duration in clocked:
            self._count += 1
            self._sum += duration
            self._squares += duration * duration

    def is_enough_for_all(self, step: float) -> bool:
        """Whether every step may be clocked. Before pairs were seen the hooks' number decides, and
        with a margin."""
        margin = 1.0 if len(self._differences) >= _FEWEST_PAIRS else 2.0
        return self.cost * margin <= self._to_spend(step)

    def steps_between(self, step: float, block: int, now: int) -> int:
        """How many unclocked steps follow a block, at random so that they fall in with no rhythm of
        the program's. `step` is how long one takes."""
        step = max(step, 1.0)
        longest = max(_LONGEST_NS, (now - self._begun) / _RUN_SHARE) / step
        if self._is_sure():
            mean = longest
        else:
            spent = block * self.cost + median(self._switches)
            mean = min(spent / self._to_spend(step), longest)
        return round(max(mean, _FEWEST_BETWEEN) * self._random.uniform(0.5, 1.5))

    def _to_spend(self, step: float) -> float:
        """Of each step, on clocks."""
        used = self.share * _USED * step - self.unclocked_cost
        return max(used, self.share * _LEAST_USED * step)

    def _is_sure(self) -> bool:
        """Whether the mean of the clocked steps is known so well that few more are needed."""
        if self._count < _SURE_STEPS:
            return False
        mean = self._sum / self._count
        variance = max(0.0, self._squares / self._count - mean * mean)
        return variance <= self._count * (_SURE * mean) ** 2
