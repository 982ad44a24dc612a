"""One observed run, from an empty folder to a complete one: of a child program, or of this process
for `stepscope.observe()`."""

import gzip
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic_ns
from typing import IO, TYPE_CHECKING

from stepscope.launch.bootstrap import check_fixes
from stepscope.launch.child import Outcome, run_child, watch_child
from stepscope.launch.fork_server import ForkServer
from stepscope.launch.live_line import LiveLine, StatusRow
from stepscope.launch.program import Program, child_environment, find_device_switch
from stepscope.record.errors import StepscopeError, UsageError
from stepscope.record.privacy import kept_environment, masked_arguments
from stepscope.record.probe_options import ProbeOptions
from stepscope.record.problems import Problem, ProblemKind
from stepscope.record.row_log import MEETINGS_FILE
from stepscope.record.run import RUN_SCHEMA, ProgramNoise, RunInfo, RunOptions, RunRecord
from stepscope.record.version import __version__
from stepscope.store import folder as folders
from stepscope.store.table import trim_table

if TYPE_CHECKING:
    from stepscope.launch.sampling import MachineSampler


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A request to `stepscope run`, besides the probe's options."""

    program: Program
    timeout_s: float | None = None
    python: bool = False
    live: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)
    """Variables for the program on top of this process's own."""
    cwd: Path | None = None
    """The program's working directory; None: this process's own."""
    output: Path | None = None
    """The file for its output: it then has no stdin, and ends whenever this process ends. None: it
    shares our terminal."""
    errors: Path | None = None
    """The file for its stderr; None: the same."""
    warm: bool = False
    """Whether a fork server, if there is one, may start it."""
    gives_up: Callable[[], bool] | None = None
    """Asked about ten times a second; True ends the program."""


def observe_program(
    request: RunRequest, options: ProbeOptions, server: ForkServer | None = None
) -> Outcome:
    """Run the program once into the folder in `options`, started by `server` if possible."""
    folder = Path(options.folder)
    lock = folders.lock_folder(folder)
    record = _initial_record(request.program.name, request.program.arguments, folder)
    record.options = RunOptions(
        warmup=options.warmup,
        window=options.window,
        fixes=list(options.fixes),
        auto=options.auto is not None,
    )
    try:
        folders.write_run(folder, record)
    except OSError as problem:
        shutil.rmtree(folder, ignore_errors=True)
        raise UsageError(
            f"cannot write to {folder}: {problem.strerror}; choose another with --out"
        ) from None
    monitors = _Monitors(request, folder)
    options = replace(options, launched_ns=time.monotonic_ns())
    try:
        with _opened(request.output) as output, _opened(request.errors) as errors:
            outcome = _run_program(request, options, monitors, (output, errors), server)
    finally:
        monitors.end()
    for name in ("exit_code", "signal", "timed_out", "pid", "started_ns", "ended_ns"):
        setattr(record.run, name, getattr(outcome, name))
    monitors.note(record.run)
    try:
        complete_folder(folder, record)
        for rank in folders.rank_folders(folder):
            _complete_rank(rank, record)
    except Exception as problem:
        print(f"stepscope: run folder {folder} is incomplete: {problem}", file=sys.stderr)
    os.close(lock)
    return outcome


def _run_program(
    request: RunRequest,
    options: ProbeOptions,
    monitors: "_Monitors",
    streams: tuple[IO[bytes] | None, IO[bytes] | None],
    server: ForkServer | None,
) -> Outcome:
    output, errors = streams
    probe, watched = options.to_json(), (request.timeout_s, monitors.begin, monitors.tick)
    if server is not None and output is not None:
        cwd = request.cwd or Path.cwd()
        process = server.start(request.program, probe, output, cwd, errors)
        if process is not None:
            return watch_child(process, options.launched_ns, *watched, ours=True)
    environ = child_environment(probe, request.variables)
    return run_child(request.program.command, environ, *watched, output, request.cwd, errors)


def _opened(path: Path | None) -> AbstractContextManager[IO[bytes] | None]:
    return nullcontext() if path is None else open(path, "wb")


class _Monitors:
    """What watches the child: the machine's sampler, the host profiler, the live line."""

    def __init__(self, request: RunRequest, folder: Path) -> None:
        from stepscope.hardware.gpus import visible_gpu_index
        from stepscope.launch.sampling import PySpy

        self._folder = folder
        self._gpu = visible_gpu_index({**os.environ, **request.variables})
        self._sampler: MachineSampler | None = None
        self._spy = PySpy() if request.python else None
        live = request.live and request.output is None
        self._row = StatusRow(sys.stderr) if live else None
        self._line = LiveLine(folder, self._row.show) if self._row else None
        self._kills = kernel_oom_kills()
        self._gives_up = request.gives_up

    def begin(self, pid: int) -> None:
        from stepscope.launch.sampling import MachineSampler

        self._sampler = MachineSampler(pid, self._folder / "samples.npy", self._gpu)
        self._sampler.start()
        if self._spy is not None:
            self._spy.start(pid, self._folder)

    def tick(self) -> bool:
        if self._line is not None:
            latest = self._sampler.latest if self._sampler is not None else None
            self._line.gpu_percent = latest["gpu_percent"] if latest else None
            self._line.tick()
        return self._gives_up is not None and self._gives_up()

    def end(self) -> None:
        if self._line is not None and self._row is not None:
            self._line.close()
            self._row.close()
        for monitor in (self._spy, self._sampler):
            if monitor is not None:
                monitor.stop()

    def note(self, run: RunInfo) -> None:
        monitors = (self._spy, self._sampler)
        if self._sampler is not None:
            run.processes = {str(pid): text for pid, text in self._sampler.commands.items()}
        run.problems = [one.problem for one in monitors if one and one.problem]
        run.killed_by_kernel = kernel_oom_kills() > self._kills


def _initial_record(program: str, arguments: Sequence[str], folder: Path) -> RunRecord:
    from msgspec import to_builtins

    from stepscope.hardware.machine import describe_machine, package_version
    from stepscope.hardware.noise_floors import known_noise_floor, machine_key, program_key
    from stepscope.store.source import git_commit

    machine, noise = describe_machine(), []
    for device in ("cpu", "cuda") if machine.gpus else ("cpu",):
        if found := known_noise_floor(machine_key(machine, device), program_key(program)):
            noise.append(ProgramNoise(device=device, share=found.share, processes=found.processes))
    switch = find_device_switch(program, arguments, Path.cwd()) if machine.gpus else None
    return RunRecord(
        schema=RUN_SCHEMA,
        run=RunInfo(
            id=folder.resolve().name,
            program=program,
            argv=masked_arguments(arguments),
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            stepscope=__version__,
            torch=package_version("torch"),
            python=sys.version.split()[0],
            git=git_commit(Path.cwd()),
            exit_code=None,
        ),
        environment=kept_environment(os.environ),
        machine=to_builtins(machine),
        noise=noise or None,
        device_switch=switch,
    )


def _complete_rank(rank: folders.RankFolder, whole: RunRecord) -> None:
    """Make a rank's folder one that can be read alone."""
    trim_table(rank.folder / MEETINGS_FILE, last="begun_ns")
    record = RunRecord.from_json(whole.to_json())
    record.run.id = f"{whole.run.id}-rank{rank.rank}"
    record.run.processes = record.run.problems = None
    complete_folder(rank.folder, record)


def complete_folder(folder: Path, record: RunRecord) -> None:
    from stepscope.store.memory_lines import reduce_memray
    from stepscope.store.source import save_sources

    _pack(folder)
    try:
        save_sources(folder, record.run.started or "")
    except (OSError, StepscopeError) as problem:
        record.run.add_problem(Problem(kind=ProblemKind.NO_SOURCES, detail=str(problem)))
    try:
        reduce_memray(folder)
    except (OSError, StepscopeError) as problem:
        record.run.add_problem(Problem(kind=ProblemKind.NO_MEMORY_LINES, detail=str(problem)))
    folders.write_run(folder, record)


def _pack(folder: Path) -> None:
    """Compress the windows' traces, and trim tables that a killed child left open."""
    for trace in folder.glob("*.pt.trace.json"):
        part = trace.with_suffix(".json.gz.part")
        try:
            with open(trace, "rb") as source, gzip.open(part, "wb", compresslevel=5) as target:
                shutil.copyfileobj(source, target, 1 << 20)
        except OSError:
            part.unlink(missing_ok=True)
            continue
        part.replace(trace.with_suffix(".json.gz"))
        trace.unlink()
    for leftover in folder.glob("*.trace.part*"):
        leftover.unlink()
    trim_table(folder / "rows.npy", last="end_ns")


def kernel_oom_kills() -> int:
    """How often the kernel has killed a process of this container for memory, as far as known."""
    try:
        lines = Path("/sys/fs/cgroup/memory.events").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))


def refuse_nested() -> None:
    """Raise UsageError if this process is already observed."""
    from stepscope.probe import observer

    if observer.current is not None:
        raise UsageError("already observing this process; end that run first")


class InProcessRun:
    """A run that observes the current process, named `program`. After `options.steps` every step
    raises StopProgram: nothing here ends the process."""

    def __init__(self, options: ProbeOptions, program: str) -> None:
        from stepscope.hardware.gpus import visible_gpu_index
        from stepscope.launch.sampling import MachineSampler
        from stepscope.probe import observer

        self._folder = Path(options.folder)
        self._options = options
        self._observer = observer.Observer(replace(options, steps=None))
        check_fixes(self._observer)
        self._sampler = MachineSampler(
            os.getpid(), self._folder / "samples.npy", visible_gpu_index(os.environ)
        )
        self._record = _initial_record(program, (), self._folder)
        self._record.run.here = True

    def begin(self) -> None:
        """Put the probe in place."""
        from stepscope.probe.boot import watch_forks
        from stepscope.probe.core import StopProgram
        from stepscope.probe.patches import ImportWatch

        self._lock = folders.lock_folder(self._folder)
        folders.write_run(self._folder, self._record)
        watch = ImportWatch(self._options.launched_ns)
        self._observer.install(watch)
        limit = self._options.steps
        if limit is not None:

            def enough(step: int) -> int:
                if step >= limit:
                    raise StopProgram
                return limit

            self._observer.core.on_step.append(enough)
        watch.install()
        watch_forks(self._observer.forked, self._observer.about_to_fork)
        self._sampler.start()

    def end(self, error: BaseException | None) -> None:
        """Remove the probe and complete the run. `error`: what the block raised, if anything."""
        self._observer.end(error)
        self._sampler.stop()
        run = self._record.run
        run.exit_code = 0 if error is None else 1
        run.pid = os.getpid()
        run.started_ns, run.ended_ns = self._options.launched_ns, monotonic_ns()
        complete_folder(self._folder, self._record)
        os.close(self._lock)
