"""The window: a few consecutive steps recorded at kernel level through torch.profiler.

It opens once step times have settled, at a step's end, and closes some steps later. A second,
shorter one carries Python stacks: times come from the light one, source lines from the other.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from stepscope.probe.row_log import OBSERVER, RowLog
from stepscope.record.facts import ProblemFact, WindowFact
from stepscope.record.probe_options import ProbeOptions
from stepscope.record.problems import ProblemKind
from stepscope.record.row_log import FLAG_PROFILED, FLAG_STACKS, RowKind
from stepscope.store.json_lines import FactLog

_EARLIEST = 9
_LATEST = 40
_SETTLED = 1.15


def is_settled(steps_ns: list[int]) -> bool:
    """Whether the last steps take about as long as those before them."""
    if len(steps_ns) < 8:
        return False
    before, after = median(steps_ns[-8:-4]), median(steps_ns[-4:])
    return max(before, after) <= _SETTLED * min(before, after)


@contextmanager
def _environ(name: str, value: str, when: bool = True) -> Iterator[None]:
    """Set a variable that is not set already, for a while. KINETO_LOG_LEVEL=99 keeps Kineto, which
    reads it at first use, from talking on stderr. TEARDOWN_CUPTI=1 detaches CUPTI after the last
    recording: left attached it slows every launch. (torch's own profiler leaves it attached before
    CUDA 12.6, whose graphs do not survive this.)"""
    if not when or name in os.environ:
        yield
        return
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]


class Window:
    """Decides when to record, and records."""

    def __init__(self, options: ProbeOptions, log: RowLog, facts: FactLog) -> None:
        self._folder = Path(options.folder)
        self._log = log
        self._facts = facts
        self._warmup = options.warmup
        self._at = options.window_at
        self._plans: list[tuple[str, int, int]] = []
        if options.window:
            self._plans.append(("window", options.window, FLAG_PROFILED))
            if options.stacks:
                self._plans.append(("stacks", options.stacks, FLAG_PROFILED | FLAG_STACKS))
        self._recent: list[int] = []
        self._last_ns = 0
        self._profiler: Any = None
        self._mark: Any = None
        self._name = ""
        self._left = 0
        self._gap = 0
        self._started_at = self._last_step = 0
        self._cooling = False

    @property
    def open(self) -> bool:
        return self._profiler is not None

    @property
    def done(self) -> bool:
        """Whether nothing is left to do."""
        return not self._plans and self._profiler is None and not self._cooling

    def step_ended(self, step: int, now_ns: int) -> None:
        if self._profiler is not None:
            self._mark.__exit__(None, None, None)
            self._last_step = step
            self._left -= 1
            if self._left > 0:
                self._begin_step(step + 1)
            else:
                self._stop(step)
            return
        if self._cooling and not self._plans:  # the recorder's after-effects are over
            self._log.flags = 0
            self._cooling = False
        if not self._plans:
            return
        if self._last_ns:
            self._recent.append(now_ns - self._last_ns)
            del self._recent[:-8]
        self._last_ns = now_ns
        if self._due(step):
            self._start(step)

    def _due(self, step: int) -> bool:
        if self._plans[0][0] == "stacks":
            self._gap += 1
            return self._gap > 1
        if self._at is not None:
            return step + 1 >= self._at
        if self._warmup is not None:
            return step >= self._warmup
        return step + 1 >= _LATEST or (step + 1 >= _EARLIEST and is_settled(self._recent))

    def _start(self, step: int) -> None:
        import torch
        from torch.profiler import ProfilerActivity, profile

        name, steps, flags = self._plans.pop(0)
        stacks = bool(flags & FLAG_STACKS)
        try:
            with self._at_work(), _environ("KINETO_LOG_LEVEL", "99"):
                cuda = torch.cuda.is_available()
                profiler = profile(
                    activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])],
                    record_shapes=not stacks,
                    profile_memory=not stacks and cuda,
                    with_stack=stacks,
                    acc_events=True,
                )
                profiler.start()
        except RuntimeError as problem:
            self._plans.clear()
            self._facts.write(ProblemFact(kind=ProblemKind.NO_WINDOW, detail=str(problem)))
            return
        self._log.end_row(RowKind.WINDOW)
        self._log.flags = flags
        self._profiler, self._name, self._left = profiler, name, steps
        self._started_at = self._last_step = step + 1
        self._begin_step(step + 1)

    def _begin_step(self, step: int) -> None:
        from torch.profiler import record_function

        self._mark = record_function(f"ProfilerStep#{step}")
        self._mark.__enter__()

    def _stop(self, step: int) -> None:
        with self._at_work():
            profiler, self._profiler = self._profiler, None
            with _environ("TEARDOWN_CUPTI", "1", when=not self._plans):
                profiler.stop()
            path = self._folder / f"{self._name}.pt.trace.json"
            partial = path.with_suffix(".part")  # the trace is written whole or not at all
            try:
                profiler.export_chrome_trace(str(partial))
                partial.rename(path)
                self._facts.write(WindowFact(name=self._name, first=self._started_at, last=step))
            except (OSError, RuntimeError) as problem:
                for leftover in self._folder.glob(f"{partial.name}*"):
                    leftover.unlink()
                self._plans.clear()
                self._facts.write(ProblemFact(kind=ProblemKind.TRACE_LOST, detail=str(problem)))
            del profiler  # freeing what it recorded takes a while
        self._log.end_row(RowKind.WINDOW)
        self._cooling = True
        self._gap = 0

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """Inside it is the observer that works, and waits, not the program."""
        self._log.enter(OBSERVER)
        self._log.observing = True
        try:
            yield
        finally:
            self._log.observing = False
            self._log.leave()

    def drop(self) -> None:
        """Observing has failed: a recorder left on would slow the program and crash its end."""
        self._plans.clear()
        profiler, self._profiler = self._profiler, None
        if profiler is not None:
            if self._mark is not None:
                self._mark.__exit__(None, None, None)
            profiler.stop()

    def abandon(self) -> None:
        """The program ends inside the window: what was recorded is kept."""
        if self._profiler is not None:
            self._mark.__exit__(None, None, None)
            self._stop(self._last_step)
