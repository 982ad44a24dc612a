"""The host sampler: what the observed thread does where phases do not tell.

Where code in no phase takes more than a fifth of the steps, a helper thread looks at the observed
thread's stack a few hundred times over the next steps, which are left out of the statistics as
recorded ones are. It needs no signal, no other process and no package.

It sees a stack when Python's global lock is its own. While it samples, the observed thread is to
hand that over at once: between bytecodes, in calls that release it, or as a call in C returns that
keeps it. So each sample counts for the time since the one before, and a call that keeps the lock
for its line. Other threads are not looked at.

The thread is gone before the program forks, profiles itself or ends, and before a window opens.
"""

import _thread
import gc
import sys
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from itertools import accumulate, chain, repeat, starmap, takewhile
from operator import attrgetter, call, itemgetter, truth
from pathlib import Path
from time import monotonic_ns
from types import CodeType
from typing import Any, NamedTuple

from stepscope.probe.row_log import LogState, RowLog
from stepscope.probe.sites import is_user_code
from stepscope.probe.unseen import is_profiled
from stepscope.record.facts import HostSamplesFact, HostStack
from stepscope.record.frames import module_name, work_of_call
from stepscope.record.kinds import SampleWork
from stepscope.record.row_log import FLAG_SAMPLED, UNEXPLAINED, Phase
from stepscope.store.json_lines import FactLog

_EARLIEST = 4  # the first step that may be followed by sampled ones
_JUDGED = 3  # steps it is decided on
_PER_STEP = 40  # samples
_SHORTEST_S, _LONGEST_S = 0.0001, 0.01  # from one sample to the next
_ENOUGH = 150  # samples of code in no phase
_FEWEST_STEPS, _MOST_STEPS = 3, 50
_MOST_NS = 10_000_000_000  # longer than that only one step
_AT_ONCE_S = 1e-6  # after that a thread is asked for the lock, instead of 5 ms
_SPARSER = 1000  # samples of one step, after which they are taken half as often
_MOST_FRAMES, _MOST_STACKS = 24, 300
_JOIN_S = 1.0
_OURS = str(Path(__file__).parent.parent)

_Line = tuple[CodeType, int]
_Key = tuple[int, tuple[_Line, ...], CodeType | None]
"""A phase, the program's lines outermost first, and the library code the last one calls."""
_lines_of = attrgetter("f_code", "f_lineno")
_known_of = attrgetter("current", "base", "returned", "call_ns")
_nothing = partial(bool)


class _Sample(NamedTuple):
    stack: list[tuple[CodeType, int | None]]
    """Innermost first."""
    state: LogState
    elapsed_ns: int


class HostSampler:
    """Decides in which steps to sample, and samples."""

    def __init__(self, log: RowLog, facts: FactLog, enabled: bool) -> None:
        self._log = log
        self._facts = facts
        self.done = not enabled
        """Whether nothing is left to do."""
        self._other = self._seen = 0  # of the log's totals, at the last step's end
        self._recent: deque[tuple[int, int]] = deque(maxlen=_JUDGED)
        self._stacks: Counter[_Key] = Counter()
        self._pending: list[_Sample] = []  # of the step under way
        self._works: dict[CodeType, SampleWork | None] = {}
        self._users: dict[CodeType, bool] = {}
        self._counted = self._in_other = 0
        self._steps = self._first = self._last = 0
        self._begun_ns = self._last_ns = 0
        self._interval_s = _LONGEST_S
        self._locks: list[tuple[Any, Any]] = []  # held until it is to end; until it has ended
        self._usual_s = 0.0  # the switch interval as the program has it

    @property
    def active(self) -> bool:
        """Whether the helper thread runs."""
        return bool(self._locks)

    def step_ended(self, step: int, plain: bool) -> None:
        """`plain`: a clocked step without an evaluation, and nothing else is being recorded."""
        if self.done:
            return
        try:
            self._step_ended(step, plain)
        except Exception:
            self.finish()

    def _step_ended(self, step: int, plain: bool) -> None:
        log = self._log
        log.fold()
        other, seen = log.other_ns - self._other, log.seen_ns - self._seen
        self._other, self._seen = log.other_ns, log.seen_ns
        pending, self._pending = self._pending, []
        if not self.active:
            log.flags &= ~FLAG_SAMPLED
        if not plain:
            self._recent.clear()
            return
        if not self.active:
            self._recent.append((other, seen))
            others, whole = (sum(times) for times in zip(*self._recent, strict=True))
            if len(self._recent) == _JUDGED and step >= _EARLIEST and others > UNEXPLAINED * whole:
                self._start(step, whole / _JUDGED)
            return
        for sample in pending:
            self._count(sample)
        self._steps += 1
        self._last = step
        enough = self._in_other >= _ENOUGH and self._steps >= _FEWEST_STEPS
        long = self._last_ns - self._begun_ns > _MOST_NS or self._steps >= _MOST_STEPS
        if enough or long:
            self.finish()

    def _start(self, step: int, step_ns: float) -> None:
        if is_profiled() or sys.getprofile() is not None:
            return
        self._recent.clear()
        self._interval_s = min(max(step_ns / 1e9 / _PER_STEP, _SHORTEST_S), _LONGEST_S)
        self._first = self._first or step + 1
        wake, ended = _thread.allocate_lock(), _thread.allocate_lock()
        wake.acquire()
        ended.acquire()
        self._begun_ns = self._begun_ns or monotonic_ns()
        self._last_ns = monotonic_ns()
        self._usual_s = sys.getswitchinterval()
        sys.setswitchinterval(min(_AT_ONCE_S, self._usual_s))
        self._locks.append((wake, ended))
        self._log.flags |= FLAG_SAMPLED
        try:
            _thread.start_new_thread(self._sample, (wake, ended, self._log.thread))
        except RuntimeError:  # no more threads
            ended.release()
            raise

    def stop(self) -> None:
        """The helper thread ends. What it saw of the step under way is dropped; it may go on after
        a later step."""
        try:
            wake, ended = self._locks.pop()
        except IndexError:
            return
        wake.release()
        ended.acquire(timeout=_JOIN_S)
        if (
            abs(sys.getswitchinterval() - min(_AT_ONCE_S, self._usual_s)) < 5e-7
        ):  # else the program's
            sys.setswitchinterval(self._usual_s)
        self._pending = []
        self._recent.clear()

    def finish(self) -> None:
        """Sampling is over: write what was seen."""
        self.done = True
        self.stop()
        self._log.flags &= ~FLAG_SAMPLED
        if not self._stacks:
            return
        stacks = [self._told(*one) for one in self._stacks.most_common(_MOST_STACKS)]
        fact = HostSamplesFact(
            first=self._first,
            last=self._last,
            steps=self._steps,
            samples=self._counted,
            stacks=stacks,
        )
        self._stacks.clear()
        self._facts.write(fact)

    def forked(self) -> None:
        """In a forked child there is nothing to sample."""
        self.done = True
        self._locks.clear()

    def _told(self, key: _Key, elapsed_ns: int) -> HostStack:
        phase, lines, called = key
        return HostStack(
            phase=Phase(phase).name.lower(),
            frames=[[code.co_filename, line, code.co_name] for code, line in lines],
            calls="" if called is None else f"{_module(called)}.{called.co_qualname}",
            work=None if called is None else self._work(called),
            ns=elapsed_ns,
        )

    def _sample(self, wake: Any, ended: Any, thread: int) -> None:
        """The helper thread."""
        try:
            while not wake.acquire(timeout=self._interval_s):
                self._look(thread)
        except BaseException:
            self.done = True
        finally:
            ended.release()

    def _look(self, thread: int) -> None:
        """Take one sample, in one call in C. Between bytecodes the lock could be lost: frames held
        for longer would keep the program's objects alive, which then might end in this thread, as
        those might that a collection finds here; and the program might see collection off. Only
        hooks for audits may lose it; where the log has gone on meanwhile, the sample tells nothing.
        """
        found = map(itemgetter(thread), starmap(sys._current_frames, ((),)))
        frames = accumulate(chain(found, repeat("f_back")), getattr)
        lines = map(_lines_of, takewhile(truth, frames))
        log = self._log
        reads: tuple[Callable[[], Any], ...] = (
            partial(list, log.events),
            partial(list, log.open_phases),
            partial(_known_of, log),
            partial(list, lines),
            partial(len, log.events),
        )
        off, on = (gc.disable, gc.enable) if gc.isenabled() else (_nothing, _nothing)
        try:
            taken: tuple[Any, ...] = tuple(map(call, (off, *reads, on)))
        except BaseException:
            on()
            raise
        _, events, open_phases, known, stack, length, _ = taken
        same = length == len(events)
        if same:
            now = monotonic_ns()
            elapsed, self._last_ns = now - self._last_ns, now
            current, base, returned, call_ns = known
            state = LogState(events, open_phases, current, base, now, returned, call_ns)
            self._pending.append(_Sample(stack, state, elapsed))
            if len(self._pending) % _SPARSER == 0:
                self._interval_s *= 2

    def _count(self, sample: _Sample) -> None:
        """Add a sample to its like; not one in which the observer itself was at work."""
        stack, state, elapsed = sample
        if self._is_ours(stack[0][0]):
            return
        lines: list[_Line] = []
        called = None
        for code, line in stack:
            if self._is_user(code):
                lines.append((code, line or 0))
            elif not lines and not self._is_ours(code) and not self._is_known(called):
                called = code
        phase = state.phase()
        self._stacks[phase, tuple(lines[: -_MOST_FRAMES - 1 : -1]), called] += elapsed
        self._counted += 1
        self._in_other += phase == Phase.OTHER

    def _is_known(self, called: CodeType | None) -> bool:
        """Whether its kind of work is: else what calls it, up to the program's line, tells more."""
        return called is not None and self._work(called) is not None

    def _is_ours(self, code: CodeType) -> bool:
        return code.co_filename.startswith(_OURS) and not self._is_user(code)

    def _is_user(self, code: CodeType) -> bool:
        found = self._users.get(code)
        if found is None:
            found = self._users[code] = is_user_code(code)
        return found

    def _work(self, code: CodeType) -> SampleWork | None:
        if code not in self._works:
            self._works[code] = work_of_call(_module(code), code.co_qualname)
        return self._works[code]


def _module(code: CodeType) -> str:
    return module_name(code.co_filename)
