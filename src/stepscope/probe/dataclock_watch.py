"""A stopwatch for one fetch at a time: each nanosecond goes to exactly one slot.

A slot is named by the place of its `total_ns` in `sums`; its count stands before it.
"""

from collections.abc import Callable
from threading import get_ident
from time import perf_counter_ns, thread_time_ns
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stepscope.probe.dataclock_lines import LineTracer
    from stepscope.probe.dataclock_source import Source


class Watch:
    """The fetch under way, if any, and the stack of slots its time goes to."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget the fetch under way and all it belongs to."""
        self.sums: list[float] = []
        self.stack: list[int] | None = None
        self.slot_of: dict[int, int] = {}  # by the identity of a transform
        self.last_ns = 0
        self.thread = 0
        self.samples: int | None = None  # None until collate is reached
        self.source: Source | None = None
        self.tracer: LineTracer | None = None
        self.holder: Callable[[], object] | None = None  # gives None once the fetch is over
        self.processor_ns = 0  # of the last fetch: what a core worked on it
        self._started_ns = self._worked_ns = 0

    def busy(self) -> bool:
        """Whether a fetch is under way, in whatever thread."""
        return self.stack is not None and (self.holder is None or self.holder() is not None)

    def begin(self, source: "Source", slot: int) -> list[int]:
        """A fetch begins; what is not put elsewhere goes to `slot`."""
        self.source = source
        self.slot_of = source.slot_of
        self.stack = stack = [slot]
        self.samples = None
        self.thread = get_ident()
        self._worked_ns = thread_time_ns()
        self._started_ns = self.last_ns = perf_counter_ns()
        return stack

    def collate(self, slot: int, samples: int) -> None:
        """The samples are there: the rest of the fetch is collate's."""
        stack = self.stack
        if stack is not None and self.samples is None:
            now = perf_counter_ns()
            self.sums[stack[0]] += now - self.last_ns
            self.sums[slot - 1] += 1
            stack[:] = [slot]
            self.samples = samples
            self.last_ns = now

    def end(self) -> int:
        """The fetch is over; its duration in ns, 0 if none was under way."""
        stack, self.stack, self.holder = self.stack, None, None
        if stack is None:
            return 0
        now = perf_counter_ns()
        self.sums[stack[-1]] += now - self.last_ns
        elapsed = now - self._started_ns
        ours = self.thread == get_ident()  # a destructor may run in any thread
        self.processor_ns = thread_time_ns() - self._worked_ns if ours else elapsed
        return elapsed
