"""One loop measured: its warm-up, then a section of steady calls, and when that is enough."""

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
_LONG_S = 1.0  # calls that fill this time are long: fewer of them must do


@dataclass(frozen=True, slots=True)
class WarmupRule:
    """How long a warm-up lasts at least, the first call left out, and at most."""

    least_calls: int = 5
    least_s: float = 0.3
    most_calls: int | None = None
    most_s: float = 120.0

    def verdict(self, times_s: Sequence[float], calls: int, seconds: float) -> bool | None:
        """Whether calls have settled; None: go on to find out. `times_s` are those of the calls
        known so far, the first one first; `calls` and `seconds` are of all."""
        steady = times_s[1:]
        enough = calls >= self.least_calls and sum(steady) >= self.least_s
        full = len(steady) >= _RECENT + _BEFORE or sum(steady) >= _LONG_S
        if enough and full and has_settled(steady):
            return True
        if seconds >= self.most_s or (self.most_calls is not None and calls >= self.most_calls):
            return has_settled(steady)
        return None


def has_settled(times_s: Sequence[float]) -> bool:
    """Whether the last five calls are like the ten before them, within 10%, or up to 30% if those
    differ among themselves; where there are fewer, the last third like the rest."""
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
    """When a loop has gone on for long enough. None: not limited by it."""

    calls: int | None = None  # all in all if `within`, else in the section
    seconds: float | None = None  # of the section
    least: int = 10  # calls of the section, where seconds are the limit
    within: bool = True
    """Whether the warm-up is a part of `calls`, as in training: then it takes 40% at most."""

    def reached(self, calls: int, seconds: float, warm_calls: int = 0) -> bool:
        """Whether a section of so many calls and seconds is enough, after a warm-up."""
        made = calls + warm_calls if self.within else calls
        if self.calls is not None and made >= self.calls:
            return True
        return self.seconds is not None and calls >= self.least and seconds >= self.seconds

    def warm(self, rule: WarmupRule) -> WarmupRule | None:
        """The rule, kept short where the warm-up is a part of the calls; None: there is none."""
        if self.calls is None or not self.within:
            return rule
        most = int(_WARM_SHARE * self.calls)
        return WarmupRule(rule.least_calls, rule.least_s, most, rule.most_s) if most else None

    def planned(self, calls: int, usual_s: float, seconds: float) -> int:
        """Calls of the section all in all, if it has some and goes on for so many seconds."""
        more = max(1, self.least - calls, ceil(seconds / max(usual_s, _SHORTEST_S)))
        return calls + min(_MOST_PLANNED, more)


def section_limits(asked: ProgramArguments, least: int) -> Limits:
    """Of calls alike, after a warm-up of its own: as many or as long as asked for, else 2 s."""
    seconds = asked.seconds or (2.0 if asked.steps is None else None)
    return Limits(asked.steps, seconds, least=least, within=False)


_NEARLY = 0.9


class Meter:
    """A loop calls `begin`, then `call` after every call until that is false, then `end`. With a
    rule the first calls are a warm-up; without one all belong to the section. In a section nothing
    waits for the device, but where seconds are the limit and the host has made the calls planned
    for them: then once, to see whether the device needed as long as expected."""

    def __init__(self, clock: HostClock, limits: Limits, rule: WarmupRule | None) -> None:
        self.clock = clock
        self.going = True  # the loop may set it to False, to end in its own time
        self.settled: bool | None = None
        """Whether the warm-up settled; None: there was none, or it goes on."""
        self.warm_calls = self.calls = self.samples = 0
        self.warm_s = self.section_s = 0.0
        self.first_call_s: float | None = None
        self.started_ns: int | None = None
        self.ended_ns: int | None = None
        self.series_s: list[float] = []  # seconds of each call of the section, known at its end
        self.pauses = 0  # how often the section was interrupted
        self._limits = limits
        self._rule = limits.warm(rule) if rule is not None else None
        self._warm: list[float] = []
        self._opened: float | None = None
        self._planned: int | None = None

    @property
    def all_calls(self) -> int:
        """Those of the warm-up too."""
        return self.warm_calls + self.calls

    def begin(self) -> None:
        if self._rule is None:
            self._begin_section()
        self._open()

    def call(self, samples: int) -> bool:
        """A call has been made; whether another one is wanted."""
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
        """Something that is not to be measured happens inside; it may end the loop."""
        self._close()
        yield
        if self.going:
            self.pauses += self._rule is None
            self._open()

    def end(self) -> None:
        """The loop is over: wait for the device, and read the clock."""
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
        """Count the time since the loop was last opened, if it is open."""
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
        """Seconds of the warm-up or of the section, as the host sees it."""
        before = self.section_s if self._rule is None else self.warm_s
        return before if self._opened is None else before + perf_counter() - self._opened

    def _warmed_up(self, rule: WarmupRule) -> None:
        """One more call of the warm-up; the section begins if it was the last."""
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
        self.clock.wait()  # made sooner than planned: the device may be behind the host
        spent = self._so_far()
        if spent >= _NEARLY * limits.seconds:
            return True
        self._planned = limits.planned(self.calls, spent / self.calls, limits.seconds - spent)
        return False
