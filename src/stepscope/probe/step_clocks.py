"""Phase clocks that are on in some steps only: blocks of a few, at random distances, as many as the
budget allows. In between they are really off: every function that only they need is the program's
own again. Ends of steps, waits for data and losses are noted in every step.

They are on for a reason, too: in the first steps, around windows, and when an evaluation begins,
an optimizer is made or a function compiled. Such steps stand for themselves, sampled ones for those
that are not clocked.

A clocked step takes longer than its hooks do: their code and data push the program's own out of
the processor's caches. So what one costs is measured in the program itself, by comparing blocks
with the unclocked steps around them. Until enough are seen, and where noise hides the difference,
an estimate by the hooks' number stands for it.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from math import sqrt
from random import Random
from threading import get_ident
from time import monotonic_ns

from stepscope.probe.core import Core
from stepscope.probe.dataclock.clock import DataClock
from stepscope.probe.patches import Patches
from stepscope.probe.step_rule import FIRST_STEPS, NEVER
from stepscope.record.facts import OverheadFact
from stepscope.stats import median

_AFTER_WINDOW = 16  # and those after a window
_LEAD, _BLOCK = 2, 8  # steps in which caches settle, and those that are sampled
_ON_OCCASION = 2
_RETRY = 16
_WHILE_ALL = 64  # steps until it is asked again whether all can be clocked
_PATIENCE = 3  # times as long as expected, an unclocked stretch may take
_WRITTEN_NS = 100_000_000  # unclocked rows are written at least so often
_SEED = 71


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


class StepClocks:
    """Turns the clocks on and off at the ends of steps."""

    def __init__(
        self, core: Core, points: Sequence[Patches], data_clock: DataClock, share: float
    ) -> None:
        self._core = core
        self._log = core.log
        self._points = points
        self._data_clock = data_clock
        self._budget = Budget(share, hook_ns(), monotonic_ns(), Random(_SEED))
        self._left = FIRST_STEPS  # clocked steps until they may go off
        self._recent: deque[int] = deque(maxlen=2 * _BLOCK)  # ends of clocked steps
        self._folded = 0  # events before the block
        self._block: list[int] | None = None  # ends of the steps of a sampled block
        self._compared: list[int] = []  # durations in the last block
        self._before: list[int] = []  # of unclocked steps before it
        self._ends: list[int] = []  # of unclocked steps since it
        self._until = 0  # the step after which the clocks go on
        self._latest_ns = 0
        self._off_ns = 0  # what turning them off took
        self.clocked = self.unclocked = 0
        """Steps that were, so far."""
        self._log.occasion = True

    def step_ended(self, step: int, now: int) -> None:
        """A step has ended in which the clocks were on."""
        self.clocked += 1
        self._left -= 1
        self._recent.append(now)
        block = self._block
        if block is not None:
            block.append(now)
            self._core.find_lines = False  # in the first one only
            if len(block) == _LEAD:
                self._stand_for_others(True)
        elif FIRST_STEPS - _AFTER_WINDOW <= step < FIRST_STEPS:  # they have settled
            self._stand_for_others(self._core.window.is_far(step, _ON_OCCASION))
        if self._left > 0:
            return
        if block is not None or step == FIRST_STEPS:
            hooks = (self._log.folded - self._folded) / 4
            self._budget.hooks_seen(hooks / (FIRST_STEPS if block is None else len(block)))
        if block is not None:
            self._compared = durations(block[_LEAD - 1 :])
            self._block = None
        self._stand_for_others(False)
        self._left = _RETRY
        if self._can_rest(step):
            self._rest(step, now)

    def _stand_for_others(self, on: bool) -> None:
        """Whether steps from now on stand for those that are not clocked."""
        self._log.occasion = not on
        self._core.sites.sampling = on

    def _can_rest(self, step: int) -> bool:
        core = self._core
        return (
            core.steps_are_plain
            and not core.sampler.active
            and core.window.is_far(step, _AFTER_WINDOW)
            and not core.roots.searching
            and not core.roots.suspended
            and self._log.depth == 0
        )

    def _rest(self, step: int, now: int) -> None:
        """Turn the clocks off until the next block, where the budget asks for it."""
        budget = self._budget
        usual = median(durations(self._recent) or [1])
        if budget.is_enough_for_all(usual):
            self._left = _WHILE_ALL
            self._stand_for_others(True)
            return
        between = budget.steps_between(usual, _LEAD + _BLOCK, now)
        if self._log.incomplete:  # no block would tell anything
            between = NEVER
        self._until = self._core.window.clocked_from(step + between, _AFTER_WINDOW)
        self._latest_ns = now + int(_PATIENCE * between * usual)
        self._ends = [now]
        self._off()

    def settle(self) -> None:
        """Count what unclocked steps have left."""
        core, log = self._core, self._log
        log.fold()
        if log.late:
            late, log.late = log.late, []
            core.device.take(late)
        stepped, log.stepped = log.stepped, []
        for code, now in stepped:
            before = core.steps
            core.unclocked_step(code)
            if core.steps > before:
                self.unclocked += 1
                self._ends.append(now)
        if len(self._ends) > 8 * _BLOCK:
            del self._ends[2 * _BLOCK : -2 * _BLOCK]

    def unclocked_step_ended(self, now: int) -> tuple[int, int]:
        """Count steps; one has just ended, perhaps the last before a block. The time and the number
        of events from which on to be called again."""
        core = self._core
        if self._log.off:
            self.give_up()
            return NEVER, NEVER
        self.settle()
        if core.steps >= self._until or now >= self._latest_ns:
            self._begin_block()
        # An event is a pair, and a step has at least one.
        left = min(core.next_wake, self._until) - core.steps
        return now + _WRITTEN_NS, 2 * max(1, left)

    def _begin_block(self) -> None:
        self._compare()
        self._on(between_steps=True)
        self._core.find_lines = True
        self._block = []
        self._left = _LEAD + _BLOCK

    def _compare(self) -> None:
        """The last block with the unclocked steps around it."""
        usual = durations(self._ends[_LEAD:])
        if self._compared and len(usual) >= _BLOCK:
            self._budget.compared(self._compared, [*self._before, *usual[:_BLOCK]])
        self._before = usual[-_BLOCK:]
        self._compared = []

    def occasion(self) -> None:
        """Something begins that is to be seen whole."""
        if get_ident() != self._log.thread or self._log.off:
            return
        if self._log.unclocked:
            self.settle()
            self._compare()
            self._on(between_steps=False)
        self._block = None
        self._before = []
        self._stand_for_others(False)
        self._left = max(self._left, _ON_OCCASION)

    @contextmanager
    def workers_start(self) -> Iterator[None]:
        """Inside it, workers that are started have their data clock."""
        off = self._log.unclocked
        if off:
            self._data_clock.patches.resume()
        try:
            yield
        finally:
            if off and self._log.unclocked:
                self._data_clock.patches.suspend()

    def _off(self) -> None:
        core, began = self._core, monotonic_ns()
        core.find_lines = False
        self._log.clock(False)
        for patches in reversed(self._points):
            patches.suspend()
        self._data_clock.pause(True)
        core.device.pause()
        core.optimizer_point.clock(False, True)
        self._off_ns = monotonic_ns() - began

    def _on(self, between_steps: bool) -> None:
        core, began = self._core, monotonic_ns()
        core.optimizer_point.clock(True, between_steps)
        self._data_clock.pause(False)
        whole = [patches.resume() for patches in self._points]
        self._log.incomplete = self._log.incomplete or not all(whole)
        self._log.clock(True)
        self._folded = self._log.folded
        core.device.resume(between_steps)
        core.wake()
        self._budget.switched(self._off_ns + monotonic_ns() - began)

    def give_up(self) -> None:
        """Nothing is observed any more, as in a forked child."""
        self._log.events.clear()
        self._core.optimizer_point.clock(True, between_steps=True)

    def conclude(self) -> None:
        """The program is over: say what observing it cost."""
        self.settle()
        budget = self._budget
        fact = OverheadFact(
            budget=budget.share,
            clocked_steps=self.clocked,
            unclocked_steps=self.unclocked,
            clocked_ns=budget.cost,
            measured_pairs=budget.pairs,
            unclocked_ns=budget.unclocked_cost,
        )
        self._core.facts.write(fact)


def durations(ends: Sequence[int]) -> list[int]:
    """From one to the next."""
    return [end - begin for begin, end in pairwise(ends)]
