"""Measures one loop: its warm-up, then a section of steady calls until there are enough."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil
from statistics import fmean, median
from time import monotonic_ns, perf_counter

from stepscope.workloads.arguments import ProgramArguments
from stepscope.workloads.measure.clock import HostClock
from stepscope.workloads.measure.record import MeasureNote, ModelMeasured, Warmup

_RECENT, _BEFORE = 5, 10
_LONG_S = 1.0  # seconds after which fewer calls must do


@dataclass(frozen=True, slots=True)
class WarmupRule:
    """The least and greatest length of a warm-up, without its first call."""

    least_calls: int = 5
    least_s: float = 0.3
    most_calls: int | None = None
    most_s: float = 120.0

    def verdict(self, times_s: Sequence[float], calls: int, seconds: float) -> bool | None:
        """Whether calls have settled; None: undecided, continue. `times_s` are the call times known
        so far, in order; `calls` and `seconds` cover all."""
        steady = times_s[1:]
        enough = calls >= self.least_calls and sum(steady) >= self.least_s
        full = len(steady) >= _RECENT + _BEFORE or sum(steady) >= _LONG_S
        if enough and full and has_settled(steady):
            return True
        if seconds >= self.most_s or (self.most_calls is not None and calls >= self.most_calls):
            return has_settled(steady)
        return None


def has_settled(times_s: Sequence[float]) -> bool:
    """Whether the last five calls resemble the ten before them, within 10%, or up to 30% if those
    differ among themselves; with fewer calls, the last third the rest."""
    recent = min(_RECENT, max(2, len(times_s) // 3))
    before = times_s[-recent - _BEFORE : -recent]
    if len(before) < 2:
        return False
    usual = median(before)
    spread = median(abs(value - usual) for value in before)
    room = min(0.3 * usual, max(0.1 * usual, 4 * spread))
    return abs(median(times_s[-recent:]) - usual) <= room


_MOST_PLANNED = 100_000
_WARM_SHARE = 0.4
_SHORTEST_S = 1e-6


@dataclass(frozen=True, slots=True)
class Limits:
    """When a loop has run long enough. None: no such limit."""

    calls: int | None = None  # in total if `within`, else in the section
    seconds: float | None = None  # of the section
    least: int = 10  # calls of the section, if seconds are the limit
    within: bool = True
    """Whether `calls` includes the warm-up, as in training: then it takes 40% at most."""

    def reached(self, calls: int, seconds: float, warm_calls: int = 0) -> bool:
        """Whether a section of this many calls and seconds suffices, after a warm-up."""
        made = calls + warm_calls if self.within else calls
        if self.calls is not None and made >= self.calls:
            return True
        return self.seconds is not None and calls >= self.least and seconds >= self.seconds

    def warm(self, rule: WarmupRule) -> WarmupRule | None:
        """The rule, shortened if `calls` includes the warm-up; None: no warm-up."""
        if self.calls is None or not self.within:
            return rule
        most = int(_WARM_SHARE * self.calls)
        return WarmupRule(rule.least_calls, rule.least_s, most, rule.most_s) if most else None

    def planned(self, calls: int, usual_s: float, seconds: float) -> int:
        """Expected total calls of the section, given those made and the seconds left."""
        more = max(1, self.least - calls, ceil(seconds / max(usual_s, _SHORTEST_S)))
        return calls + min(_MOST_PLANNED, more)


def section_limits(asked: ProgramArguments, least: int) -> Limits:
    """Limits for a section after its own warm-up: as many calls or seconds as requested, else 2
    s."""
    seconds = asked.seconds or (2.0 if asked.steps is None else None)
    return Limits(asked.steps, seconds, least=least, within=False)


_NEARLY = 0.9


class Meter:
    """A loop calls `begin`, then `call` after every call until it returns false, then `end`. With a
    rule the first calls are a warm-up; without one all belong to the section. A section never waits
    for the device, except once if seconds are the limit and the host has made the planned calls: to
    see whether the device took as long as expected."""

    def __init__(self, clock: HostClock, limits: Limits, rule: WarmupRule | None) -> None:
        self.clock = clock
        self.going = True  # the loop may set it to False to end when it wants
        self.settled: bool | None = None
        """Whether the warm-up settled; None: there is none, or it is not over."""
        self.warm_calls = self.calls = self.samples = 0
        self.warm_s = self.section_s = 0.0
        self.first_call_s: float | None = None
        self.started_ns: int | None = None
        self.ended_ns: int | None = None
        self.series_s: list[float] = []  # seconds of each call in the section, known at its end
        self.pauses = 0  # how often the section was interrupted
        self._limits = limits
        self._rule = limits.warm(rule) if rule is not None else None
        self._warm: list[float] = []
        self._opened: float | None = None
        self._planned: int | None = None

    @property
    def all_calls(self) -> int:
        """All calls, including warm-up."""
        return self.warm_calls + self.calls

    def begin(self) -> None:
        if self._rule is None:
            self._begin_section()
        self._open()

    def call(self, samples: int) -> bool:
        """Record a call; returns whether another is wanted."""
        self.clock.mark()
        if self._rule is not None:
            self._warmed_up(self._rule)
        else:
            self.calls += 1
            self.samples += samples
            self.going = not self._enough()
        return self.going

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Excludes what happens inside from the measurement; it may end the loop."""
        self._close()
        yield
        if self.going:
            self.pauses += self._rule is None
            self._open()

    def end(self) -> None:
        """End the loop: wait for the device, and read the clock."""
        self._close()
        self.going = False
        if self._rule is not None:
            self.settled = False
        else:
            self.series_s = self.clock.take()

    def fill(self, measured: ModelMeasured) -> None:
        settled = bool(self.settled)
        measured.clock = self.clock.name
        measured.warmup = Warmup(self.warm_calls, self.warm_s, settled, self.first_call_s)
        measured.started_ns, measured.ended_ns = self.started_ns, self.ended_ns
        if self.calls:
            measured.elapsed_s = self.section_s
            usual = self.section_s / self.calls
            measured.first_calls_extra_s = max(0.0, self.warm_s - usual * self.warm_calls)
        measured.calls, measured.samples = self.calls, self.samples
        measured.series_ms = [1e3 * seconds for seconds in self.series_s]
        if not settled:
            measured.notes.append(MeasureNote.WARMUP_UNSETTLED)

    def _open(self) -> None:
        self.clock.begin()
        self._opened = perf_counter()

    def _close(self) -> None:
        """Add the time since the loop was last opened, if it is open."""
        if self._opened is None:
            return
        self.clock.wait()
        spent, self._opened = perf_counter() - self._opened, None
        if self._rule is not None:
            self.warm_s += spent
        else:
            self.section_s += spent
            self.ended_ns = monotonic_ns()

    def _so_far(self) -> float:
        """Seconds so far of the warm-up or section, as the host sees it."""
        before = self.section_s if self._rule is None else self.warm_s
        return before if self._opened is None else before + perf_counter() - self._opened

    def _warmed_up(self, rule: WarmupRule) -> None:
        """Count a warm-up call; begin the section if it was the last."""
        self.warm_calls += 1
        newest = self.clock.lately()
        if newest is not None:
            self._warm.append(newest)
        if self.first_call_s is None:
            self.clock.wait()
            self.first_call_s = self._so_far()
        self.settled = rule.verdict(self._warm, self.warm_calls, self._so_far())
        if self.settled is None:
            return
        self._close()
        times = self.clock.take()
        if self._limits.seconds is not None:
            self._planned = self._limits.planned(0, fmean(times[-5:]), self._limits.seconds)
        self._rule = None
        self._begin_section()
        self._open()

    def _begin_section(self) -> None:
        self.clock.reserve(self._planned or self._limits.calls or 0)
        self.started_ns = monotonic_ns()

    def _enough(self) -> bool:
        limits = self._limits
        if limits.reached(self.calls, self._so_far(), self.warm_calls):
            return True
        if self._planned is None or limits.seconds is None or self.calls < self._planned:
            return False
        self.clock.wait()  # sooner than planned: the device may lag behind the host
        spent = self._so_far()
        if spent >= _NEARLY * limits.seconds:
            return True
        self._planned = limits.planned(self.calls, spent / self.calls, limits.seconds - spent)
        return False
