"""The state of one observed process. Patch points report to it; it ends rows, counts steps and
decides what happens after a step.
"""

import atexit
import ctypes
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from threading import get_ident
from time import monotonic_ns
from typing import Any, NamedTuple
from weakref import ref

from stepscope.probe.device_clock import DeviceClock
from stepscope.probe.host_sampler import HostSampler
from stepscope.probe.patches import drop_caller_frame
from stepscope.probe.points.seams import FixHost
from stepscope.probe.row_log import BACKWARD, MARKED, OPTIMIZER, STEPPED, RowLog
from stepscope.probe.sites import SiteKey, Sites, WaitSite
from stepscope.probe.step_rule import FIRST_STEPS, NEVER, Evaluations, StepRule
from stepscope.probe.unseen import unseen_by_program
from stepscope.probe.window import Window
from stepscope.record.facts import OptimizerMadeFact, ProblemFact, SiteKind
from stepscope.record.kinds import HostWait
from stepscope.record.probe_options import ProbeOptions
from stepscope.record.problems import ProblemKind
from stepscope.record.row_log import RowKind
from stepscope.store.json_lines import FactLog

IN_BACKWARD = 999  # the number shared by optimizers that step inside backward
_STEP = int(RowKind.STEP)
_LOOK_FIRST, _LOOK_EVERY = 64, 16
_PATIENCE = 3  # steps a program that swallows StopProgram may still make
_PATIENCE_AT_END = 100  # steps it may make in what `finally` and the like do on its way out


_IN_LOOP = {wait: WaitSite(SiteKind.SYNC, wait) for wait in HostWait}
_IN_SETUP = {wait: WaitSite(SiteKind.SETUP_SYNC, wait) for wait in HostWait}


class StopProgram(SystemExit):
    """Ends the program after `--steps`: exit code 0, `finally` and `atexit` run."""

    def __init__(self) -> None:
        super().__init__(0)


class FeedingLoader(NamedTuple):
    """A loader in use, and its batches."""

    loader: ref[Any]
    largest_bytes: int
    """Of the tensors in one."""


class Core(FixHost):
    """The state of observing one process."""

    def __init__(self, options: ProbeOptions) -> None:
        super().__init__(options.fixes)
        folder = Path(options.folder)
        self.options = options
        self.last_step = options.steps
        """The program ends after it; None: by itself."""
        self.facts = FactLog(folder / "facts.jsonl")
        self.log: RowLog = RowLog(folder / "rows.npy", options.launched_ns, self._failed)
        self.sites = Sites(folder, self.facts)
        self.device = DeviceClock(self.log)
        self.window = Window(options, self.log, self.facts)
        self.device.watched = self.window.is_program_profiled
        keeps_budget = options.overhead is not None and not options.nvtx and options.auto is None
        self.sampler = HostSampler(self.log, self.facts, enabled=keeps_budget)
        self.window.before_start = self.sampler.stop
        self.rule = StepRule()
        self.clocks: Any = None
        """What turns the phase clocks off and on; None: they are on in every step."""
        self.evaluations = Evaluations()
        self.find_lines = True
        """Whether the lines that begin a step's phases are looked up in this step."""
        self.on_root: list[Callable[[Any, Any], None]] = []
        """Called with a root model that has returned, and its arguments."""
        self.on_optimizer: list[Callable[[Any, int], None]] = []
        self.on_config: list[Callable[[], None]] = []
        """Called whenever the configuration has been read."""
        self.scaler: ref[Any] | None = None
        """The loss scaler the program uses, if any."""
        self.captures = False
        """Whether a CUDA graph was captured."""
        self.feeding: FeedingLoader | None = None
        """The loader that steps get their batches from, as last seen."""
        self.environment_changed: list[str] = []
        """Variables the program had changed before it imported torch."""
        self.param_ids: set[int] = set()
        self.optimizers = 0
        self.skipped_updates = 0
        self.in_backward: list[int] = []
        """The threads that run a backward; one that runs a nested one is there twice."""
        self.backwards = 0
        self.grads = 0
        self.calls = 0
        self._elsewhere = _Elsewhere()
        self.delivering = False  # whether a loader has delivered: then samples are counted there
        self.batches = 0
        self.stepping = False  # whether steps are counted by optimizers or marks
        self._marked = False
        self._stepped = 0
        self._due = self._wake = 0
        self._recording = not self.window.done
        self._stopping = 0
        self._ends: SystemExit | None = None  # what has ended a thread

    def _failed(self, problem: BaseException) -> None:
        """Observing has stopped; said as a fact if that can still be written."""
        fact = ProblemFact(kind=ProblemKind.RECORDING_STOPPED, detail=repr(problem))
        try:
            self.facts.write(fact)
        except Exception:
            print(f"stepscope: {fact.text}", file=sys.stderr)
        try:
            self.window.drop()
        except Exception:
            pass

    def report(self, fix: str, **said: Any) -> None:
        self.facts.write("fix", name=fix, **said)

    def guard(self, problem: Exception) -> None:
        """On a fault of our own, switch off; it never reaches the program."""
        if not self.device.failed_by(problem):
            self.log.fail(problem)

    def optimizer_made(self, optimizer: Any, site: int) -> None:
        if self.clocks is not None:
            self.clocks.occasion()
        self.optimizers += 1
        self.param_ids.update(id(p) for group in optimizer.param_groups for p in group["params"])
        if self.roots is not None:
            self.roots.search()
        self.facts.write(OptimizerMadeFact(name=type(optimizer).__qualname__, site=site))

    def wake(self) -> None:
        self._due = self._wake = 0

    def wait_site(self, wait: HostWait) -> WaitSite:
        """The site key of a wait; those before the loop are kept apart."""
        looping = self.stepping or self.delivering or self.calls or self.backwards
        return _IN_LOOP[wait] if looping else _IN_SETUP[wait]

    def end_row(self, kind: RowKind, who: int = 0) -> None:
        """End a row. A failing device is reported by the program, not by us."""
        try:
            if self.log.unclocked and self.clocks is not None:
                self.clocks.settle()
            self.device.end_row(self.log.end_row(kind, who))
        except Exception as problem:
            self.guard(problem)

    def optimizer_stepped(self, who: int) -> None:
        """An optimizer has stepped, outside any other optimizer's step."""
        row = self.log.end_row(_STEP, who)
        if self.device.active:
            self.device.end_row(row)
        count = self.rule.step(who)
        if count > self._stepped and not self._marked:
            self._stepped = self.steps = count
            if count >= self._wake:
                self.stepping = True
                self._step_ended(count)

    def unclocked_step(self, code: int) -> None:
        """A row has ended while most clocks were off."""
        if code == MARKED:
            self.steps += 1
        else:
            count = self.rule.step(code - STEPPED)
            if self._marked or count <= self._stepped:
                return
            self._stepped = self.steps = count
        if self.steps >= self._wake:
            self._step_ended(self.steps)

    @property
    def steps_are_plain(self) -> bool:
        """Whether ends of optimizer steps, or marks, are all it takes to tell steps apart, and
        nothing but the summary wants to know more of them."""
        other = self._elsewhere
        return (
            self.stepping
            and not self.fixing
            and not self.optimizer_point.nested
            and not self.rule.has_seen(IN_BACKWARD)
            and not (other.rules or other.backwards or other.calls)
            and not self.evaluations.unannounced
        )

    @property
    def next_wake(self) -> int:
        """The step after which there is something to do."""
        return self._wake

    def evaluation_begins(self) -> None:
        """The program turns to evaluating, as far as can be told."""
        if get_ident() == self.log.thread:
            self.evaluations.announced = True
            if self.clocks is not None and not self.evaluations.common:
                self.clocks.occasion()

    def marked(self) -> None:
        """The program says that a step has ended."""
        if self.log.unclocked and self.clocks is not None and get_ident() == self.log.thread:
            if self._marked:
                self.optimizer_point.ends_unclocked(MARKED)
                return
            self.clocks.occasion()
        if not self._marked:
            self._marked = self.stepping = True
            self.steps = 0
        self.end_row(RowKind.MARK)
        self._step_ended(self.steps + 1)

    @property
    def steps_elsewhere(self) -> int:
        """Steps in threads that are not observed, counted as those of the observed one are."""
        other = self._elsewhere
        stepped = sum(rule.count for rule in other.rules.values())
        if stepped or self.stepping or self._marked:
            return stepped
        return other.backwards or (0 if self.backwards else other.calls)

    def optimizer_stepped_elsewhere(self, who: int) -> None:
        """An optimizer has stepped in a thread that is not observed."""
        self._elsewhere.rules.setdefault(get_ident(), StepRule()).add(who)

    def called_elsewhere(self) -> None:
        self._elsewhere.calls += 1

    def step_skipped(self, optimizer: Any) -> None:
        if self.optimizer_point is not None and not self.log.off and not self.runs_backward():
            self.skipped_updates += 1
            self.optimizer_stepped(self.optimizer_point.number(optimizer))

    def backward_ended_elsewhere(self) -> None:
        """An outermost backward has ended in a thread that is not observed."""
        if self.optimizer_point.stepped_in_backward():
            self.optimizer_stepped_elsewhere(IN_BACKWARD)
        else:
            self._elsewhere.backwards += 1

    def runs_backward(self) -> bool:
        """Whether the calling thread is inside a backward: its own, or as a thread of autograd's,
        which Python's `threading` has not started."""
        if not self.in_backward:
            return False
        return get_ident() in self.in_backward or not _started_by_python()

    def called(self, who: int, grad: bool, training: bool) -> None:
        """A root model has returned; `training`: in training mode."""
        self.calls += 1
        if grad and self.stepping:
            return
        acts = training and not self.delivering
        if self.stepping:
            self.evaluations.called(acts)
        self.end_row(RowKind.CALL if grad else RowKind.ACT if acts else RowKind.EVAL, who)
        if not (self.stepping or self.optimizers or self.backwards or self.grads):
            self._fallback(self.calls)

    def backward_ended(self) -> None:
        if self.optimizer_point.stepped_in_backward():
            self.optimizer_stepped(IN_BACKWARD)
            return
        self.backwards += 1
        if self.stepping:
            return
        self.end_row(RowKind.BACKWARD)
        if not self.optimizers:
            self._fallback(self.backwards)

    def grad_ended(self) -> None:
        """torch.autograd.grad has returned what no further gradient is to be taken of."""
        self.grads += 1
        if self.stepping or self.backwards:
            return
        self.end_row(RowKind.GRAD)
        if not self.optimizers:
            self._fallback(self.grads)

    def delivered(self) -> None:
        """A loader has delivered a batch, and no optimizer has stepped yet."""
        self.delivering = True
        if self.calls or self.backwards or self.optimizers:
            return
        self.batches += 1
        self.end_row(RowKind.BATCH)
        self._fallback(self.batches)

    def _fallback(self, count: int) -> None:
        """Steps of a program in which no optimizer steps."""
        if count > self.steps:
            self._step_ended(count)

    def _step_ended(self, count: int) -> None:
        self.steps = count
        clocked = not self.log.unclocked
        if clocked:
            self.find_lines = count < _LOOK_FIRST or count % _LOOK_EVERY == 0
        try:
            if clocked and not self.sampler.done:
                self._sample_host(count)
            if self._recording and clocked:
                self.window.step_ended(count, monotonic_ns(), self.device.capturing)
                self._recording = not self.window.done
            if count >= self._due:
                with unseen_by_program():
                    self._due = min((callback(count) for callback in self.on_step), default=NEVER)
            if clocked:
                self.evaluations.step_ended(count)
                if self.clocks is not None:
                    self.clocks.step_ended(count, monotonic_ns())
        except Exception as problem:
            self.guard(problem)
        if self.last_step is not None and count >= self.last_step:
            self._stop()
        self._wake = min(self._due, self.last_step or NEVER, self._look_at(count))

    def _sample_host(self, count: int) -> None:
        """Have the code that phases do not tell sampled, in steps that nothing else disturbs."""
        sampled = self.sampler.active
        self.sampler.step_ended(count, self.window.quiet and not self.evaluations.evaluated)
        if self.sampler.active and not sampled and self.clocks is not None and count > FIRST_STEPS:
            self.clocks.occasion()

    def _look_at(self, count: int) -> int:
        """The next step in which more is to be seen than its end."""
        if self.log.unclocked:
            return NEVER
        if self._recording or self.find_lines or self.clocks is not None or self.sampler.active:
            return count + 1
        return count - count % _LOOK_EVERY + _LOOK_EVERY

    def _stop(self) -> None:
        """End the program. The device is waited for first: what the program frees on its way out,
        such as captured graphs, may wait for it unseen."""
        if self._stopping == 0 and not self.log.off:
            try:
                self.device.catch_up()
            except Exception as problem:
                self.guard(problem)
        self._stopping += 1
        raised = sys.exc_info()[1]
        ending = raised is not None and (raised is self._ends or isinstance(raised, StopProgram))
        if self._stopping > (_PATIENCE_AT_END if ending else _PATIENCE):
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)
        if ending:  # in a `finally`, which is to be completed
            return
        if get_ident() == threading.main_thread().ident:
            raise StopProgram
        if self._stopping == 1:
            _raise_in_main_thread(StopProgram)
        self._ends = SystemExit(0)  # a thread ends by it without a word, not by a subclass
        raise self._ends


class _Elsewhere:
    """What was counted in threads that are not observed."""

    def __init__(self) -> None:
        self.rules: dict[int, StepRule] = {}  # by thread
        self.backwards = 0
        self.calls = 0


def _started_by_python() -> bool:
    """Whether `threading` knows this thread as one that it has started; asking it for the current
    thread would make it known."""
    known = threading._active.get(get_ident())  # type: ignore[attr-defined]
    return known is not None and not isinstance(known, threading._DummyThread)


def _raise_in_main_thread(kind: type[BaseException]) -> None:
    """Raise there as soon as it runs Python again, as after joining the thread that ends now."""
    ident = ctypes.c_ulong(threading.main_thread().ident or 0)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(kind))


_EVERY_STEP = frozenset((BACKWARD, OPTIMIZER))


def call_in_phase(
    core: Core, phase: int, what: SiteKey, call: Callable[..., Any], args: Any, kwargs: Any
) -> Any:
    log = core.log
    begun = log.enter(phase)
    try:
        return call(*args, **kwargs)
    except BaseException as error:
        drop_caller_frame(error)
        raise
    finally:
        if begun:
            now = log.leave()
            if core.find_lines or phase not in _EVERY_STEP:
                note_site(core, what, now - begun)


def note_site(core: Core, what: SiteKey, elapsed_ns: int) -> None:
    """Count an occurrence at the user's line that led here."""
    try:
        core.sites.add(core.sites.locate(what), elapsed_ns)
    except Exception as problem:
        core.guard(problem)
