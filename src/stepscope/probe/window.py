"""The window: a few consecutive steps recorded at kernel level through torch.profiler.

It opens once step times have settled, at a step's end, and closes some steps later. A second,
shorter one carries Python stacks: times come from the light one, source lines from the other.

torch has one recorder per process: the program's own profilers come first. Only the main thread
records: a recorder must be stopped by the thread that started it, and other threads may end.
"""

import ctypes
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from threading import Condition, get_ident, main_thread
from typing import Any

from torch.cuda import synchronize  # before the program may put its own there

from stepscope.probe.patches import Patches
from stepscope.probe.row_log import OBSERVER, RowLog
from stepscope.probe.unseen import is_profiled, own_function_modes, unseen_by_program
from stepscope.record.facts import ProblemFact, WindowFact
from stepscope.record.probe_options import ProbeOptions
from stepscope.record.problems import ProblemKind
from stepscope.record.row_log import FLAG_PROFILED, FLAG_STACKS, RowKind
from stepscope.stats import median
from stepscope.store.json_lines import FactLog

_EARLIEST = 9
_LATEST = 40
_SETTLED = 1.15
_COOLING = 3  # steps after a recording: the tracing library lets go of the device in them
_USUAL_WAIT_S = 1.0  # of a thread that profiles itself, for the step that is being recorded
_LONGEST_WAIT_S = 10.0  # … for a signal to be heard
_WAKE = getattr(signal, "SIGRTMAX", signal.SIGUSR2)  # wakes the main thread
OWN_PROFILER = "the program uses torch's profiler itself"
PYTHON_PROFILER = "the program profiles its Python calls"
OWN_MODES = "the program has torch function modes of its own, which would see it"
OWN_MODULE_CALL = "torch cannot record stacks with the program's own nn.Module.__call__"
_abandoned: list[Any] = []  # recorders that cannot be stopped: freeing one would crash


def is_settled(steps_ns: list[int]) -> bool:
    """Whether the last steps take about as long as those before them."""
    if len(steps_ns) < 8:
        return False
    before, after = median(steps_ns[-8:-4]), median(steps_ns[-4:])
    return max(before, after) <= _SETTLED * min(before, after)


@contextmanager
def _environ(name: str, value: str) -> Iterator[None]:
    """Set a variable that is not set already, for a while."""
    if name in os.environ:
        yield
        return
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]


def _detaching(when: bool = True) -> AbstractContextManager[None]:
    """Have CUPTI detached by a recorder that is stopped inside it: left attached it slows every
    launch from then on. It lets go at a later call of CUDA, and what another recorder has begun
    meanwhile is lost. (torch's own profiler leaves it attached before CUDA 12.6, whose graphs do
    not survive this.)"""
    return _environ("TEARDOWN_CUPTI", "1") if when else nullcontext()


def _stop_recording(profiler: Any) -> None:
    """Stop a recorder, which waits for the device first: by a name that may be the program's."""
    inner = profiler.profiler
    if inner.use_device is not None:
        inner.use_device = None
        synchronize()
    profiler.stop()


def _no_stacks() -> str | None:
    """Why stacks cannot be recorded now. torch reads `self` in each call of the function that is
    `nn.Module.__call__` as it first records them, and crashes where there is none."""
    from torch.nn import Module

    if own_function_modes():
        return OWN_MODES
    code = getattr(Module.__call__, "__code__", None)
    takes_self = code is not None and "self" in code.co_varnames[: code.co_argcount]
    return None if takes_self else OWN_MODULE_CALL


def _end_without_cleanup() -> None:
    """Have this process, a fork, skip the destructors of C++ when it exits: Kineto's wait for ever
    for a thread that only the parent has. Buffers of C are flushed before."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "on_exit"):  # of glibc: `_exit` is called with the exit code
        libc.on_exit(libc._exit, None)
        libc["__cxa_atexit"](libc.fflush, None, None)


class Window:
    """Decides when to record, and records."""

    def __init__(self, options: ProbeOptions, log: RowLog, facts: FactLog) -> None:
        self._folder = Path(options.folder)
        self._log = log
        self._facts = facts
        self._warmup = options.warmup
        self._at = options.window_at
        self._memory = options.memory is not None
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
        self._cooling = 0  # steps until the recorder's after-effects are over
        self._thread = get_ident()  # the one that has imported torch
        self._turn = Condition()  # held while the recorder is started or stopped
        self._giving_way = False
        self._lost = False  # whether a recorder was left on in the main thread
        self.before_start: Callable[[], None] = lambda: None
        self.guard_stacks: Callable[[], Patches] | None = None
        """Has profile functions of the program's give notice while stacks are recorded."""
        self._stacks_guard: Patches | None = None
        self._wakes = False  # whether a signal has the main thread give way
        self._used = False

    @property
    def open(self) -> bool:
        return self._profiler is not None

    @property
    def quiet(self) -> bool:
        """Whether steps are as they would be without it: it is not open, nor was it just now."""
        return self._profiler is None and not self._cooling

    @property
    def done(self) -> bool:
        """Whether nothing is left to do."""
        return not self._plans and self._profiler is None and not self._cooling

    def is_program_profiled(self) -> bool:
        """Whether one of torch's profilers is on that is not ours."""
        return is_profiled() and self._profiler is None

    def agree_on(self, step: int) -> None:
        """Open at that step, as in all other ranks, unless the user named one."""
        self._at = self._at or step

    def is_far(self, step: int, after: int) -> bool:
        """Whether nothing was recorded in the last `after` steps, or will be in the next ones."""
        if self.done:
            return step >= self._last_step + after
        return not self._last_step and self._at is not None and step + 2 * after < self._at

    def clocked_from(self, step: int, before: int) -> int:
        """That step, or an earlier one, `before` steps from a recording."""
        return step if self.done or self._at is None else min(step, self._at - before)

    def step_ended(self, step: int, now_ns: int, capturing: bool = False) -> None:
        """`capturing`: a CUDA graph is being captured, which to start or stop here would break."""
        if self._profiler is not None:
            if get_ident() != self._thread:
                return
            if self._giving_way and not capturing:
                self.drop()
                return
            self._end_step()
            self._last_step = step
            self._left -= 1
            if self._left > 0 or capturing:
                self._begin_step(step + 1)
            else:
                self._stop(step)
            return
        if self._cooling and not self._plans:
            self._cooling -= 1
            if not self._cooling:
                self._log.flags = 0
                self._last_step = step
        if not self._plans:
            return
        if self._last_ns:
            self._recent.append(now_ns - self._last_ns)
            del self._recent[:-8]
        self._last_ns = now_ns
        if self._due(step) and not capturing:
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

        if not get_ident() == self._thread == main_thread().ident:
            self._give_up("the steps do not run in the main thread")
            return
        if is_profiled():
            self._give_up(OWN_PROFILER)
            return
        self.before_start()
        name, steps, flags = self._plans[0]
        stacks = bool(flags & FLAG_STACKS)
        if stacks and (why := _no_stacks()):
            self._give_up(why)
            return
        self._wakes = signal.getsignal(_WAKE) is signal.SIG_DFL
        if self._wakes:
            signal.signal(_WAKE, self._woken)
        try:
            os.close(os.open(os.devnull, os.O_RDONLY))  # without any left Kineto would complain
            # Kineto reads it at first use, and then does not talk on stderr.
            with self._at_work(), _environ("KINETO_LOG_LEVEL", "99"):
                self._used = True
                cuda = torch.cuda.is_available()
                profiler = profile(
                    activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])],
                    record_shapes=not stacks,
                    profile_memory=self._memory and not stacks and cuda,
                    with_stack=stacks,
                    acc_events=True,
                )
                profiler.start()
                self._profiler = profiler
        except (OSError, RuntimeError) as problem:
            self._sleep_on()
            self._give_up(str(problem))
            return
        if stacks and self.guard_stacks is not None:
            self._stacks_guard = self.guard_stacks()
        del self._plans[0]
        self._log.end_row(RowKind.WINDOW)
        self._log.flags = flags
        self._name, self._left = name, steps
        self._started_at = self._last_step = step + 1
        self._begin_step(step + 1)

    def _begin_step(self, step: int) -> None:
        from torch.profiler import record_function

        with unseen_by_program():
            self._mark = record_function(f"ProfilerStep#{step}")
            self._mark.__enter__()

    def _end_step(self) -> None:
        mark, self._mark = self._mark, None
        if mark is not None:  # None: it has failed to begin
            with unseen_by_program():
                mark.__exit__(None, None, None)

    def _stop(self, step: int) -> None:
        with self._at_work():
            profiler = self._take()
            if profiler is None:  # dropped while another thread was waited for
                return
            if self._plans and (why := _no_stacks()):
                self._give_up(why)
            with _detaching(when=not self._plans):
                _stop_recording(profiler)
            path = self._folder / f"{self._name}.pt.trace.json"
            partial = path.with_suffix(".part")  # the trace is written whole or not at all
            try:
                partial.touch()  # where that fails, Kineto would complain on stderr
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
        self._cooling = _COOLING
        self._gap = 0

    def _take(self) -> Any:
        """The recorder, to be stopped here and now."""
        profiler, self._profiler = self._profiler, None
        self._turn.notify_all()
        self._sleep_on()
        if self._stacks_guard is not None:
            self._stacks_guard.restore()
        return profiler

    def _woken(self, *_: Any) -> None:
        """Another thread waits for the recorder to end. Where this one was about to note something
        in the log, its step ends soon."""
        try:
            if len(self._log.events) % 2 == 0:
                self.drop()
        except Exception as problem:
            self._log.fail(problem)

    def _sleep_on(self) -> None:
        """The signal that wakes the main thread is the program's again, unless it was sent: then
        it may still be under way, and its default is to end the process."""
        if self._wakes and not self._giving_way:
            self._wakes = False
            signal.signal(_WAKE, signal.SIG_DFL)

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """Inside it is the observer that works, and waits, not the program."""
        with self._turn, unseen_by_program():
            self._log.enter(OBSERVER)
            self._log.observing = True
            try:
                yield
            finally:
                self._log.observing = False
                self._log.leave()

    def _give_up(self, why: str) -> None:
        """Record nothing any more."""
        lost = self._name if self._profiler is not None else self._plans[0][0]
        kind = ProblemKind.NO_STACKS if lost == "stacks" else ProblemKind.NO_WINDOW
        self._plans.clear()
        self._facts.write(ProblemFact(kind=kind, detail=why))

    def give_way(self, why: str = OWN_PROFILER) -> None:
        """The program is about to start a recorder of its own: ours ends before, in the thread that
        started it: at the end of its step or, where it waits, perhaps for this one, by a signal.
        Where it computes for long, ours is left as it is: stopped after the program's it would
        crash."""
        here = get_ident() == self._thread
        if here and self._log.observing:  # it is ours
            return
        with self._turn:
            if here and self._lost:
                self._forget_lost()
            if self._giving_way or (self._profiler is None and not self._plans):
                return
            self._giving_way = True
            self._give_up(why)
            if here:
                self.drop()
                return
            if self._turn.wait_for(lambda: self._profiler is None, _USUAL_WAIT_S):
                return
            if self._wakes:
                signal.pthread_kill(self._thread, _WAKE)
            if not self._turn.wait_for(lambda: self._profiler is None, _LONGEST_WAIT_S):
                _abandoned.extend([self._profiler, self._mark])
                self._lost, self._profiler = True, None

    def _forget_lost(self) -> None:
        """The program is about to record in this thread, for which torch still keeps the recorder
        that was left as it was. Stopped it would crash; this is what takes it away unread."""
        from torch import _C

        autograd: Any = _C._autograd  # its types leave out what it takes
        self._lost, self._cooling = False, _COOLING
        with self._at_work():
            autograd._disable_profiler_legacy(autograd._ProfilerDisableOptions(True, False))

    def drop(self) -> None:
        """Stop without keeping anything: a recorder left on would slow the program and crash its
        end. What another thread has started is stopped by that one, at the program's end."""
        self._plans.clear()
        if self._profiler is not None and get_ident() == self._thread:
            with self._at_work():
                profiler = self._take()
                if profiler is not None:  # not while another thread was waited for
                    self._end_step()
                    profiler.profiler.acc_events = False  # what is not kept is not read either
                    with _detaching(when=not self._giving_way):
                        _stop_recording(profiler)
            self._cooling = _COOLING

    def abandon(self) -> None:
        """The program ends inside the window: what was recorded is kept."""
        if self._profiler is not None and get_ident() == self._thread:
            self._end_step()
            self._stop(self._last_step)

    def forked(self) -> None:
        """In a forked child nothing is recorded. The parent's recorder is no longer its own."""
        self._plans.clear()
        self._turn = Condition()
        profiler, self._profiler = self._profiler, None
        self._sleep_on()
        if self._used:
            _end_without_cleanup()
        if profiler is not None:
            import torch

            _abandoned.extend([profiler, self._mark])
            if profiler.use_device is not None:  # CUPTI cannot be asked to stop here
                torch._C._autograd._enable_record_function(False)
            elif get_ident() == self._thread:
                torch._C._autograd._disable_profiler()
                torch.autograd.profiler._set_is_profiler_enabled(False)
