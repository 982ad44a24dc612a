"""Runs trials, each in its own process and scratch copy, and reads each record from its folder."""

import shlex
import shutil
import time
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from tempfile import NamedTemporaryFile
from typing import Self

from msgspec.structs import replace as replace_fields

from stepscope.fixes.registry import fix_variables, parse_fixes
from stepscope.launch.child import Outcome
from stepscope.launch.observed_run import RunRequest
from stepscope.launch.program import Program
from stepscope.measure.isolation import (
    CACHES_FOLDER,
    check_denied,
    check_writes,
    choose_wall,
    isolated,
    make_temporary,
)
from stepscope.measure.scratch_copy import (
    Scratch,
    make_scratch,
    path_in_scratch,
    remove_scratch,
    renew_scratch,
)
from stepscope.measure.source_diff import apply_diff
from stepscope.measure.speed import FEWEST_STEADY, read_loader_timing, steady_speed
from stepscope.measure.trial.final_state import keep_final_state
from stepscope.measure.trial.folder import (
    ERRORS_FILE,
    OUTPUT_FILE,
    join_output,
    last_output_line,
    read_steps,
    read_trial,
    tidy_folder,
)
from stepscope.measure.trial.host import TrialHost
from stepscope.measure.trial.record import Trial, TrialRequest
from stepscope.measure.trial.status import limit_s, wall_seconds
from stepscope.record.errors import BrokenRun, UsageError
from stepscope.record.facts import EnvironFact, ProcessFact
from stepscope.record.fix import FixKind
from stepscope.record.privacy import masked_arguments
from stepscope.record.probe_options import ContestOptions, ProbeOptions, Wall, WriteGuard
from stepscope.record.trial import TrialReason, TrialStatus
from stepscope.stats.intervals import within_process_margin
from stepscope.store.json_lines import read_facts

TRIALS, SCRATCH = "trials", "scratch"
_WINDOW, _STACKS = 6, 2  # steps
_LOOK_S, _LOOK_SHARE = 1.0, 50.0  # between looks at a trial under way: at least; times a look's own
_COARSE_NS = 20_000_000  # how far file times may lag behind the clock
_HARMLESS = (
    *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "PYTORCH_NVML_BASED_CUDA_CHECK"),
    *("HF_", "TRANSFORMERS_", "TOKENIZERS_", "WANDB_", "PL_", "LIGHTNING_"),
)
"""Prefixes of variables that importing torch does not read."""


def run_command(program: Program, fixes: Iterable[str]) -> str:
    """The command that runs a program with fixes, with secrets masked."""
    words = [word for fix in fixes for word in ("--fix", fix)]
    module = ["-m"] if program.module else []
    rest = [program.target, *masked_arguments(program.arguments)]
    return shlex.join(["stepscope", "run", *words, *module, *rest])


class TrialRunner:
    """A `RunTrial`. `done` is how many trials the tune's journal already holds. Set `baseline` once
    there is one: it bounds the time of other trials."""

    def __init__(
        self,
        program: Program,
        folder: Path,
        cwd: Path,
        host: TrialHost,
        allow_writes: bool = False,
        unguarded: bool = False,
        done: int = 0,
    ) -> None:
        """Raises UsageError if nothing can protect the user's files."""
        self.baseline: Trial | None = None
        self.forking = True
        """Whether trials may start from a process that has already imported torch."""
        self._program = program
        self._folder = folder.absolute()
        self._cwd = cwd.resolve()
        self._host = host
        self._allow_writes = allow_writes
        self._wall = choose_wall(allow_writes, unguarded)
        self._number = done
        self._kept: Scratch | None = None
        self._tmp: Path | None = None
        self._warm: bool | None = None
        """Whether the program can start that way; None: unknown."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def __call__(self, request: TrialRequest) -> Trial:
        """Raises UsageError if the whole tune must end, KeyboardInterrupt on a termination signal.
        Only trials that count take a number."""
        begun, folder = time.monotonic(), self.folder_of(self._number + 1)
        starting = self._warm is None  # a fork server, once: no other trial takes as long
        try:
            # A program that compiles may configure the compiler before importing it.
            compiles = self.baseline is not None and self.baseline.compile_s is not None
            alone = not self.forking or request.window or compiles
            warm = not alone and self._may_be_warm()
            trial = self._trial(request, folder, warm)
            if warm and self._warm is None and not trial.ok:
                trial = self._trial(request, folder, warm=False)
                self._warm = False if trial.ok else None
            elif warm:
                self._warm = True
            if not trial.ok:
                _check_room(folder)
        except OSError as problem:
            where = f" {problem.filename}" if problem.filename else ""
            raise UsageError(f"no further trials: {problem.strerror}{where}") from None
        self._number += trial.reason is not TrialReason.OUT_OF_BUDGET
        whole_s = max(trial.seconds, time.monotonic() - begun)
        if starting:
            return replace_fields(trial, shared_s=whole_s - trial.seconds)
        return replace_fields(trial, seconds=whole_s)

    def _may_be_warm(self) -> bool:
        """Whether a trial in a fresh process showed that the program does not change the
        environment before it imports torch; such a change may be meant for torch."""
        if self._warm is not None:
            return self._warm
        facts = read_facts(self.folder_of(1) / "facts.jsonl")
        changed = {name for fact in facts.all(EnvironFact) for name in fact.changed_before_torch}
        script = self._program.module or self._program.target.endswith(".py")
        harmless = all(name.startswith(_HARMLESS) for name in changed)
        return self._number > 0 and bool(facts.all(ProcessFact)) and script and harmless

    def _trial(self, request: TrialRequest, folder: Path, warm: bool) -> Trial:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        scratch = self._scratch()
        number = self._number + 1
        failed = partial(Trial, request, number, TrialStatus.FAILED)
        if request.patched is not None:
            try:
                apply_diff(scratch.folder, request.patched)
            except UsageError as problem:
                return failed(TrialReason.PATCH_REFUSED, str(problem))
        self._tmp = self._tmp or make_temporary()
        refuse = not self._allow_writes
        begun_ns = time.time_ns() - _COARSE_NS
        isolation = isolated(self._folder, folder, self._tmp, scratch, refuse, self._wall)
        with isolation as (variables, guard):
            outcome = self._run(request, folder, scratch, variables, guard, warm)
        if request.proof:
            keep_final_state(folder, folder / OUTPUT_FILE, scratch.folder, begun_ns)
        join_output(folder)
        if outcome.end_signal is not None:
            raise KeyboardInterrupt
        if refuse:
            # Behind a wall no trial can have changed them: somebody else did.
            changed = scratch.changed() if self._wall is Wall.NONE else []
            check_writes(read_facts(folder / "facts.jsonl"), changed, self._cwd)
            if outcome.exit_code != 0:
                check_denied(last_output_line(folder), scratch.folder)
        tidy_folder(folder, scratch.folder, scratch.original)
        try:
            return read_trial(request, number, folder, outcome)
        except BrokenRun as problem:
            return failed(TrialReason.UNREADABLE, str(problem), seconds=wall_seconds(outcome))

    def folder_of(self, number: int) -> Path:
        return self._folder / TRIALS / f"{number:04d}"

    def clear(self) -> None:
        """Remove what only further trials would need: compiled code, the scratch copy, the fork
        server."""
        self._host.close()
        if self._tmp is not None:
            shutil.rmtree(self._tmp, ignore_errors=True)
            self._tmp = None
        remove_scratch(self._folder / CACHES_FOLDER)
        if self._kept is not None:
            remove_scratch(self._kept.root)
            self._kept = None

    def _scratch(self) -> Scratch:
        """The original copy, at the same place for all trials: caches are keyed by path, and
        sources edited meanwhile would make trials differ."""
        if self._kept is None:
            place = self._folder / SCRATCH
            remove_scratch(place)  # left by a killed tune
            self._kept = make_scratch(self._cwd, place, leave_out=(self._folder,))
        else:
            self._kept = renew_scratch(self._kept)
        return self._kept

    def _run(
        self,
        request: TrialRequest,
        folder: Path,
        scratch: Scratch,
        variables: dict[str, str],
        guard: WriteGuard,
        warm: bool,
    ) -> Outcome:
        program = self._program
        target = program.target if program.module else path_in_scratch(program.target, scratch)
        arguments = tuple(path_in_scratch(one, scratch) for one in program.arguments)
        by_fixes = fix_variables(parse_fixes(request.fixes))
        hopeless = None if request.slow_ms is None else _FarSlower(folder, request)
        run = RunRequest(
            replace(program, target=target, arguments=arguments),
            timeout_s=limit_s(request, self.baseline),
            gives_up=hopeless,
            variables={**variables, **self._host.variables, **by_fixes},
            cwd=scratch.folder,
            output=folder / OUTPUT_FILE,
            errors=folder / ERRORS_FILE,
            warm=warm,
        )
        options = ProbeOptions(
            folder=str(folder),
            launched_ns=0,
            steps=request.steps,
            window=_WINDOW if request.window else 0,
            stacks=_STACKS if request.window else 0,
            fixes=request.fixes,
            check_fixes=request.window,
            seed=request.seed,
            perturb=request.perturb,
            proof=request.proof,
            held=request.draws_per_batch,
            guard=guard,
            contests=_contest_options(request),
        )
        return self._host.observe(run, options)


def _contest_options(request: TrialRequest) -> ContestOptions | None:
    held = request.contests
    if held is None:
        return None
    return ContestOptions(FixKind(held.allow), held.candidates, held.seconds, held.each_s)


class _FarSlower:
    """Whether a trial under way is hopelessly slow: even the lower end of its own steps' interval
    lies beyond the time asked for."""

    def __init__(self, folder: Path, request: TrialRequest) -> None:
        self._folder, self._request = folder, request
        self._next = time.monotonic() + _LOOK_S

    def __call__(self) -> bool:
        now = time.monotonic()
        if now < self._next or self._request.slow_ms is None:
            return False
        steps, rows, facts = read_steps(self._folder, 0.0)
        made = steady_speed(steps, read_loader_timing(rows, facts, len(steps))).step_ms
        self._next = time.monotonic() + max(_LOOK_S, _LOOK_SHARE * (time.monotonic() - now))
        if len(made) < max(2 * FEWEST_STEADY, len(steps) // 2):
            return False
        return fmean(made) * (1 - within_process_margin([made])) > self._request.slow_ms


def _check_room(folder: Path) -> None:
    """Raises OSError if not even a megabyte can be written: then a failed trial says nothing about
    the program."""
    try:
        with NamedTemporaryFile(dir=folder) as file:
            file.write(bytes(1 << 20))
            file.flush()
    except OSError as problem:
        raise OSError(problem.errno, problem.strerror, str(folder)) from None
