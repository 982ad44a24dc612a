"""Everything that observes one process, put together: points, clocks, readers, NVTX ranges. torch
has been imported.
"""

import functools
import sys
from functools import partial
from pathlib import Path
from threading import get_ident
from typing import TYPE_CHECKING, Any

import torch

from stepscope.probe.core import Core
from stepscope.probe.dataclock.clock import DataClock
from stepscope.probe.patches import ImportWatch, Patches
from stepscope.probe.points import compiler
from stepscope.probe.points.host_waits import (
    patch_saving,
    patch_sync_warnings,
    patch_waits,
)
from stepscope.probe.points.loader import patch_loaders
from stepscope.probe.points.profilers import patch_profilers
from stepscope.probe.points.root_model import (
    compiler_in_use,
    patch_evaluation,
    patch_root_models,
    show_dynamo_the_original,
)
from stepscope.probe.points.seams import Seams
from stepscope.probe.points.training import patch_backward, patch_optimizers
from stepscope.probe.program_state import ConfigReader, MemoryReader, watch_out_of_memory
from stepscope.probe.row_log import LEAVE, LEAVE_TAIL
from stepscope.probe.step_clocks import StepClocks
from stepscope.probe.step_rule import NEVER
from stepscope.probe.window import PYTHON_PROFILER
from stepscope.record.facts import (
    EndFact,
    FailedAllocationFact,
    ImportFact,
    ProblemFact,
    ProcessFact,
    ProgramError,
)
from stepscope.record.probe_options import ProbeOptions
from stepscope.record.problems import ProblemKind, is_out_of_memory
from stepscope.record.row_log import Phase

if TYPE_CHECKING:
    from stepscope.probe.memory_history import MemoryHistory


class _NvtxEvents(list[int]):
    """The log's events, each phase a range."""

    def __init__(self, nvtx: Any) -> None:
        super().__init__()
        self._nvtx = nvtx

    def extend(self, pair: Any) -> None:
        self._mark(pair[0])
        super().extend(pair)

    def __iadd__(self, pair: Any) -> "_NvtxEvents":  # type: ignore[override,misc]
        self.extend(pair)
        return self

    def _mark(self, code: int) -> None:
        if code >= 0:
            self._nvtx.range_push(Phase(code).name.lower())
        elif code in (LEAVE, LEAVE_TAIL):
            self._nvtx.range_pop()


def _add_nvtx_ranges(core: Core) -> None:
    """Have NVTX ranges follow the phases, before any point is in place. Raises RuntimeError."""
    from torch.cuda import nvtx

    nvtx.range_push("step 1")
    core.log.events = _NvtxEvents(nvtx)

    def step_ended(step: int) -> int:
        nvtx.range_pop()
        nvtx.range_push(f"step {step + 1}")
        return step + 1

    core.on_step.append(step_ended)


_WATCHED_STEPS = 5


current: "Observer | None" = None  # the observer of this process, if any


@functools.cache
def _watch_profile_functions() -> None:
    """Tell the observer of this process before a profile function is set or removed."""

    def hook(event: str, _: object) -> None:
        if event == "sys.setprofile" and current is not None:
            current.profile_function_changes()

    sys.addaudithook(hook)


class Observer:
    """Installs the probe, and takes it out again."""

    def __init__(self, options: ProbeOptions) -> None:
        self.core = Core(options)
        self._patches = Patches()
        self._clocked = Patches()  # what only phase clocks and fixes need
        self._seam_patches = Patches()
        self.seams = Seams(self.core, self._seam_patches)
        self._clock = DataClock(Path(options.folder))
        self.config = ConfigReader(self.core)
        self._memory = MemoryReader(self.core, self.config)
        self._history: MemoryHistory | None = None
        if options.memory:
            from stepscope.probe import memory_history

            self._history = memory_history.MemoryHistory()
        self._watch: ImportWatch | None = None
        self._profiled: dict[int, bool] = {}
        """Threads that profile their Python calls; whether torch's profiler does it for them."""
        self._earlier = getattr(sys, "last_value", None)  # of a notebook's other cells

    def install(self, watch: ImportWatch) -> None:
        global current
        core, self._watch = self.core, watch
        if core.options.nvtx:
            try:
                _add_nvtx_ranges(core)
            except RuntimeError:
                core.facts.write(ProblemFact(kind=ProblemKind.NO_NVTX))
        # Proofs first: their hook at an optimizer's end runs before a step is over.
        if core.options.perturb is not None:
            from stepscope.probe.proof.controls import WeightPerturbation

            WeightPerturbation(core, core.options.perturb).install()
        if core.options.proof:
            from stepscope.probe.proof.recorder import ProofRecorder

            ProofRecorder(core).install(self._seam_patches)
        for patch in (patch_loaders, compiler.patch_compile, patch_saving, patch_profilers):
            patch(core, self._patches)
        for patch in (patch_root_models, patch_waits):
            patch(core, self._clocked)
        for patch_both in (patch_backward, patch_optimizers):
            patch_both(core, self._patches, self._clocked)
        patch_sync_warnings(core, self._patches, self._clocked)
        self._clock.install()
        options = core.options
        every = options.fixes or options.proof or options.nvtx  # then every step is clocked
        if (share := options.overhead) is not None and not every:
            points = self._clocked, self._clock.patches
            core.clocks = StepClocks(core, points, self._clock, share)
            patch_evaluation(core, self._patches)
        watch.when_imported("torch._dynamo.eval_frame", compiler.skip_our_code)
        watch.when_imported("torch._dynamo.variables.nn_module", show_dynamo_the_original)
        watch.when_imported("torch.export._trace", lambda _: compiler_in_use())
        watch.when_imported("torch._dynamo.callback", partial(compiler.watch_dynamo, core))
        watch.when_imported("safetensors.torch", partial(patch_saving, core, self._patches))
        if (history := self._history) is not None and core.options.memory is not None:
            history.start(core.options.memory, Path(core.options.folder))

            def mark(step: int) -> int:
                history.mark()
                return step + 1

            core.on_step.append(mark)
        if not core.options.clocks:
            core.on_step.append(self._enough)
        watch_out_of_memory(self._out_of_memory)
        version, python = str(torch.__version__), sys.version.split()[0]
        cuda, booted_ns = torch.version.cuda, watch.started_ns
        core.facts.write(ProcessFact(booted_ns=booted_ns, torch=version, cuda=cuda, python=python))
        watch.note = self._imported
        for slow in watch.noted:
            self._imported(*slow)
        current = self
        _watch_profile_functions()
        if sys.getprofile() is not None:
            self._suspend(get_ident())

    def _imported(self, name: str, begun_ns: int, elapsed_ns: int) -> None:
        if not self.core.log.off and not name.startswith("stepscope"):
            self.core.facts.write(ImportFact(name=name, begun_ns=begun_ns, elapsed_ns=elapsed_ns))

    def profile_function_changes(self) -> None:
        """The program is about to set or remove a function of `sys.setprofile`, as cProfile does.
        It is not to see our calls: nothing of ours is in place meanwhile. Trials stay as they are:
        they end at a step, and are compared step by step."""
        core, options = self.core, self.core.options
        if core.log.observing or options.steps is not None or options.proof:
            return
        if core.fixes or options.auto is not None:
            return
        try:
            caller, thread = sys._getframe(2), get_ident()
            name, module = caller.f_code.co_name, str(caller.f_globals.get("__name__"))
            torchs = module.startswith("torch.")
            if torchs:
                begins = name == "_start_trace"
            elif module == "cProfile" and name == "create_stats":  # there is none any more
                return
            else:
                begins = sys.getprofile() is None or self._profiled.get(thread, False)
            if begins:
                self._suspend(thread, torchs)
            else:
                self._resume(thread)
        except Exception as problem:
            self.core.guard(problem)

    def _suspend(self, thread: int, torchs: bool = False) -> None:
        core = self.core
        if not self._profiled:
            core.facts.write(ProblemFact(kind=ProblemKind.PROFILED_ITSELF))
            core.sampler.stop()
            if core.window.open:
                core.window.give_way(PYTHON_PROFILER)
            if core.clocks is not None:
                core.clocks.occasion()
            core.roots.suspended = True
            core.optimizer_point.detach()
            for patches in (self._clock.patches, self._clocked, self._patches):
                patches.suspend()
            if self._watch is not None:
                self._watch.remove()
        self._profiled[thread] = torchs

    def _resume(self, thread: int) -> None:
        self._profiled.pop(thread, None)
        if self._profiled or not self.core.roots.suspended:
            return
        self.core.roots.suspended = False
        self.core.optimizer_point.attach()
        for patches in (self._patches, self._clocked, self._clock.patches):
            patches.resume()
        if not self.core.roots.searching:
            self.core.roots.unwatch()
        if self._watch is not None:
            self._watch.install()

    def _enough(self, step: int) -> int:
        """Stop the clocks once the search for root models and what fixes watch at first is over."""
        if self.core.roots.searching or step < _WATCHED_STEPS:
            return step + 1
        self.core.device.finish()
        self.core.log.off = True
        return NEVER

    def _out_of_memory(self, fact: FailedAllocationFact) -> None:
        """A CUDA allocation has failed; the program may still recover."""
        self._memory.write()
        self.core.facts.write(fact)
        if self._history is not None:
            self._history.reduce()

    def about_to_fork(self) -> None:
        """A thread of ours would be lost in the child, and Python warn of it."""
        self.core.sampler.stop()

    def forked(self) -> None:
        """In a forked child every point is inert."""
        global current
        if self.core.log.unclocked and self.core.clocks is not None:
            self.core.clocks.give_up()
        self.core.log.off = True
        self.core.log.unclocked = False
        self.core.fixing = False
        self.core.inert = True
        current = None
        self.core.sampler.forked()
        self.core.window.forked()

    def leave_to_fork(self) -> None:
        """In a forked child that is to be observed itself: take the parent's patches out. Its files
        are not touched."""
        core = self.core
        for action in (
            core.optimizer_point.detach,
            self._clock.uninstall,
            self._clocked.restore,
            self._patches.restore,
            self._seam_patches.restore,
        ):
            try:
                action()
            except Exception as problem:
                core.guard(problem)

    def end(self, error: BaseException | None = None) -> None:
        """The program is over: late values, last facts, files cut to size, patches out."""
        global current
        core = self.core
        if current is not self:
            return
        current = None
        if self._watch is not None:
            self._watch.remove()
        core.log.observing = True
        for action in (
            core.sampler.finish,
            lambda: None if core.log.off else self._conclude(error),
            *core.on_end,
            core.window.drop,
            self._clock.uninstall,
            self._clocked.restore,
            self._patches.restore,
            self._seam_patches.restore,
            core.log.close,
            core.sites.close,
            core.facts.close,
        ):
            try:
                action()
            except Exception as problem:
                core.guard(problem)

    def _conclude(self, error: BaseException | None) -> None:
        """What is known only now: late values, the last readings, how it ended."""
        core = self.core
        core.window.abandon()
        if core.clocks is not None:
            core.clocks.conclude()
        core.device.finish()
        if elsewhere := core.steps_elsewhere:
            core.facts.write(ProblemFact(kind=ProblemKind.OTHER_THREADS, count=elsewhere))
        self._memory.write()
        self.config.write()
        if self._history is not None:
            self._history.stop()
            if self._history.problem:
                core.facts.write(self._history.problem)
        if counters := compiler.compile_counters():
            core.facts.write(counters)
        last = getattr(sys, "last_value", None)
        error = error or (last if last is not self._earlier else None)
        if error is None:
            core.facts.write(EndFact(steps=core.steps))
            return
        core.facts.write(EndFact(steps=core.steps, error=program_error(error)))


def program_error(error: BaseException) -> ProgramError:
    """What is kept of an exception: its type, and its text with secrets masked."""
    from stepscope.record.privacy import masked_text

    name, (first, newline, rest) = type(error).__name__, str(error).partition("\n")
    if error.__cause__ is not None:
        cause = str(error.__cause__).strip().partition("\n")[0]
        first += f" (from {type(error.__cause__).__name__}: {cause})"
    text = masked_text(f"{first}{newline}{rest}"[:4000])[:2000]  # in this order: none is cut in two
    return ProgramError(type=name, text=text, out_of_memory=is_out_of_memory(name, text))
