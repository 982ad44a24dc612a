"""What the patch points report to: it ends rows, counts steps, and decides what follows a step."""

import atexit
import os
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic_ns
from typing import Any

from stepscope.probe.device import DeviceClock
from stepscope.probe.log import RowLog
from stepscope.probe.sites import Sites
from stepscope.probe.steprule import StepRule
from stepscope.probe.window import Window
from stepscope.record.options import ProbeOptions
from stepscope.record.rows import Kind
from stepscope.store.facts import Facts

IN_BACKWARD = 999  # the number shared by optimizers that step inside backward
_PATIENCE = 3  # steps a program that swallows StopProgram may still make


class StopProgram(SystemExit):
    """Ends the program after `--steps`: exit code 0, `finally` and `atexit` run."""

    def __init__(self) -> None:
        super().__init__(0)


class Core:
    """The state of observing one process."""

    def __init__(self, options: ProbeOptions) -> None:
        folder = Path(options.folder)
        self.options = options
        self.facts = Facts(folder / "facts.jsonl")
        self.log = RowLog(folder / "rows.npy", options.launched_ns, self._failed)
        self.sites = Sites(folder, self.facts)
        self.device = DeviceClock(self.log)
        self.window = Window(options, self.log, self.facts)
        self.rule = StepRule()
        self.steps = 0
        self.on_step: list[Callable[[int], None]] = []
        self.on_root: list[Callable[[Any], None]] = []
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
        self.batches = 0
        self._marked = False
        self._stepped = 0
        self._stopping = 0

    def _failed(self, problem: BaseException) -> None:
        """Observing has stopped; said as a fact if that can still be written."""
        text = f"observing stopped: {problem!r}"
        try:
            self.facts.write("problem", text=text)
        except Exception:
            print(f"stepscope: {text}", file=sys.stderr)
        try:
            self.window.drop()
        except Exception:
            pass

    def guard(self, problem: Exception) -> None:
        """A fault of our own: switch off, never reach the program."""
        self.log.fail(problem)

    def optimizer_made(self, optimizer: Any, site: int) -> None:
        """An optimizer was created at a site."""
        self.optimizers += 1
        groups = optimizer.param_groups
        self.param_ids.update(id(p) for group in groups for p in group["params"])
        if self.roots is not None:
            self.roots.search()
        self.facts.write("optimizer_made", name=type(optimizer).__qualname__, site=site)

    def waited(self, what: str) -> str:
        """The kind of site for a wait: those of the loop are told from those of preparation."""
        looping = self.rule.count or self.calls or self.backwards
        return f"sync:{what}" if looping else f"setup:{what}"

    def end_row(self, kind: Kind, who: int = 0) -> None:
        """A row ends here. A device in trouble is the program's to report, not ours."""
        try:
            self.device.end_row(self.log.end_row(kind, who))
        except Exception as problem:
            self.guard(problem)

    def optimizer_stepped(self, who: int) -> None:
        """An optimizer has stepped, outside any other optimizer's step."""
        self.end_row(Kind.STEP, who)
        self.rule.add(who)
        if not self._marked and self.rule.settled > self._stepped:
            self._stepped = self.rule.settled
            self._step_ended(self._stepped)

    def marked(self) -> None:
        """The program says that a step has ended."""
        if not self._marked:
            self._marked = True
            self.steps = 0
        self.end_row(Kind.MARK)
        self._step_ended(self.steps + 1)

    def called(self, who: int, grad: bool) -> None:
        """A root model has returned."""
        self.calls += 1
        stepping = self.rule.count > 0 or self._marked
        if grad and stepping:
            return
        self.end_row(Kind.CALL if grad else Kind.EVAL, who)
        if not stepping and not self.optimizers and not self.backwards:
            self._fallback(self.calls)

    def backward_ended(self) -> None:
        """The outermost backward has returned."""
        if self.optimizer_point.stepped_in_backward():
            self.optimizer_stepped(IN_BACKWARD)
            return
        self.backwards += 1
        if self.rule.count or self._marked:
            return
        self.end_row(Kind.BACKWARD)
        if not self.optimizers:
            self._fallback(self.backwards)

    def delivered(self) -> None:
        """A loader has delivered a batch."""
        if self.rule.count or self._marked or self.calls or self.backwards or self.optimizers:
            return
        self.batches += 1
        self.end_row(Kind.BATCH)
        self._fallback(self.batches)

    def _fallback(self, count: int) -> None:
        """Steps of a program in which no optimizer steps."""
        if count > self.steps:
            self._step_ended(count)

    def _step_ended(self, count: int) -> None:
        self.steps = count
        try:
            if not self.window.done:
                self.window.step_ended(count, monotonic_ns())
            for callback in self.on_step:
                callback(count)
        except Exception as problem:
            self.guard(problem)
        if self.options.steps is not None and count >= self.options.steps:
            self._stop()

    def _stop(self) -> None:
        self._stopping += 1
        if self._stopping > _PATIENCE:
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)
        raise StopProgram
