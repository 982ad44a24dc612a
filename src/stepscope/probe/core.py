"""The state of one observed process. Patch points report to it; it ends rows, counts steps and
decides what happens after a step.
"""

import atexit
import os
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic_ns
from typing import Any

from stepscope.probe.device_clock import DeviceClock
from stepscope.probe.row_log import BACKWARD, OPTIMIZER, RowLog
from stepscope.probe.sites import SiteKey, Sites, WaitSite
from stepscope.probe.step_rule import StepRule
from stepscope.probe.window import Window
from stepscope.record.facts import OptimizerMadeFact, ProblemFact, SiteKind
from stepscope.record.kinds import HostWait
from stepscope.record.probe_options import ProbeOptions
from stepscope.record.problems import ProblemKind
from stepscope.record.row_log import RowKind
from stepscope.store.json_lines import FactLog

IN_BACKWARD = 999  # the number shared by optimizers that step inside backward
NEVER = 1 << 62
_STEP = int(RowKind.STEP)
_LOOK_FIRST, _LOOK_EVERY = 64, 16
_PATIENCE = 3  # steps a program that swallows StopProgram may still make


_IN_LOOP = {wait: WaitSite(SiteKind.SYNC, wait) for wait in HostWait}
_IN_SETUP = {wait: WaitSite(SiteKind.SETUP_SYNC, wait) for wait in HostWait}


class StopProgram(SystemExit):
    """Ends the program after `--steps`: exit code 0, `finally` and `atexit` run."""

    def __init__(self) -> None:
        super().__init__(0)


class Core:
    """The state of observing one process."""

    def __init__(self, options: ProbeOptions) -> None:
        folder = Path(options.folder)
        self.options = options
        self.facts = FactLog(folder / "facts.jsonl")
        self.log = RowLog(folder / "rows.npy", options.launched_ns, self._failed)
        self.sites = Sites(folder, self.facts)
        self.device = DeviceClock(self.log)
        self.window = Window(options, self.log, self.facts)
        self.rule = StepRule()
        self.steps = 0
        self.on_step: list[Callable[[int], int]] = []
        """Called after a step; each says from which step on it wants to be called again."""
        self.find_lines = True
        """Whether the lines that begin a step's phases are looked up in this step."""
        self.on_root: list[Callable[[Any], None]] = []
        self.on_first_call: list[Callable[[Any], None]] = []
        """Called with a root model before its first call."""
        self.around_root: list[Callable[..., Any]] = []
        """Called around every call of a root model, as `handler(call, module, …)`."""
        self.fixing = False  # whether any fix wants to know of root models
        self.on_optimizer: list[Callable[[Any, int], None]] = []
        self.on_end: list[Callable[[], None]] = []
        self.roots: Any = None
        self.optimizer_point: Any = None
        self.scaler: Any = None
        self.param_ids: set[int] = set()
        self.optimizers = 0
        self.skipped_updates = 0
        self.backward_depth = 0
        self.backwards = 0
        self.calls = 0
        self.delivering = False  # whether a loader has delivered: then samples are counted there
        self.batches = 0
        self.compiles = False
        """Whether torch.compile or torch.export is in use: only then can Dynamo be tracing us."""
        self.stepping = False  # whether steps are counted by optimizers or marks
        self._marked = False
        self._stepped = 0
        self._due = self._wake = 0
        self._recording = not self.window.done
        self._stopping = 0

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

    def guard(self, problem: Exception) -> None:
        """A fault of our own: switch off, never reach the program."""
        self.log.fail(problem)

    def optimizer_made(self, optimizer: Any, site: int) -> None:
        self.optimizers += 1
        self.param_ids.update(id(p) for group in optimizer.param_groups for p in group["params"])
        if self.roots is not None:
            self.roots.search()
        self.facts.write(OptimizerMadeFact(name=type(optimizer).__qualname__, site=site))

    def wake(self) -> None:
        """Call the callbacks of steps after the next one."""
        self._due = self._wake = 0

    def wait_site(self, wait: HostWait) -> WaitSite:
        """The site key of a wait; those before the loop are kept apart."""
        looping = self.stepping or self.delivering or self.calls or self.backwards
        return _IN_LOOP[wait] if looping else _IN_SETUP[wait]

    def end_row(self, kind: RowKind, who: int = 0) -> None:
        """A row ends here. A device in trouble is the program's to report, not ours."""
        try:
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

    def marked(self) -> None:
        """The program says that a step has ended."""
        if not self._marked:
            self._marked = self.stepping = True
            self.steps = 0
        self.end_row(RowKind.MARK)
        self._step_ended(self.steps + 1)

    def called(self, who: int, grad: bool) -> None:
        self.calls += 1
        if grad and self.stepping:
            return
        self.end_row(RowKind.CALL if grad else RowKind.EVAL, who)
        if not self.stepping and not self.optimizers and not self.backwards:
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
        self.find_lines = count < _LOOK_FIRST or count % _LOOK_EVERY == 0
        try:
            if self._recording:
                self.window.step_ended(count, monotonic_ns())
                self._recording = not self.window.done
            if count >= self._due:
                self._due = min((callback(count) for callback in self.on_step), default=NEVER)
        except Exception as problem:
            self.guard(problem)
        if self.options.steps is not None and count >= self.options.steps:
            self._stop()
        if self._recording or self.find_lines:
            self._wake = count + 1
        else:  # the next step after which there is anything to do
            look = count - count % _LOOK_EVERY + _LOOK_EVERY
            self._wake = min(look, self._due, self.options.steps or NEVER)

    def _stop(self) -> None:
        """End the program. The device is waited for first: what the program frees on its way out,
        such as captured graphs, may wait for it unseen."""
        if self._stopping == 0 and not self.log.off:
            try:
                self.device.catch_up()
            except Exception as problem:
                self.guard(problem)
        self._stopping += 1
        if self._stopping > _PATIENCE:
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)
        raise StopProgram


_EVERY_STEP = frozenset((BACKWARD, OPTIMIZER))


def call_in_phase(
    core: Core, phase: int, what: SiteKey, call: Callable[..., Any], args: Any, kwargs: Any
) -> Any:
    log = core.log
    begun = log.enter(phase)
    if not begun:
        return call(*args, **kwargs)
    try:
        return call(*args, **kwargs)
    except BaseException as error:
        drop_caller_frame(error)
        raise
    finally:
        now = log.leave()
        if core.find_lines or phase not in _EVERY_STEP:
            note_site(core, what, now - begun)


def note_site(core: Core, what: SiteKey, elapsed_ns: int) -> None:
    """Count an occurrence at the user's line that led here."""
    try:
        core.sites.add(core.sites.locate(what), elapsed_ns)
    except Exception as problem:
        core.guard(problem)


def drop_caller_frame(error: BaseException) -> None:
    """Take the caller's frame out of a traceback, so that the program's own is all one sees. From
    Python 3.11 on, a bare `raise` after it does not put the frame back."""
    if error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next
