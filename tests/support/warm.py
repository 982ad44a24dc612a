"""Programs started by a process that has imported torch, one such process for all tests of a
worker: importing torch takes seconds, a fork takes milliseconds.

For programs of tests that need no fresh interpreter. What is the same as under plain Python, and
what a fresh interpreter does before the program starts, is tested in fresh ones.
"""

import atexit
import contextlib
import functools
import io
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any
from unittest import mock

import children

from stepscope.launch import child, observed_run
from stepscope.launch.child import Outcome, watch_child
from stepscope.launch.fork_server import FORK_SERVER_AVAILABLE, ForkedProgram, ForkServer
from stepscope.launch.program import Program

_READ_AT_START = frozenset(
    [
        *("PYTHONPATH", "PYTHONHASHSEED", "PYTHONSAFEPATH", "LD_PRELOAD", "LD_LIBRARY_PATH"),
        *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "CUDA_VISIBLE_DEVICES"),
        *("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"),
    ]
)
"""Variables that a fork cannot be given any more."""


@dataclass(frozen=True)
class Said:
    """How a process ended. Text is latin-1: every byte keeps its place."""

    exit_code: int
    stdout: str
    stderr: str

    def in_utf8(self) -> "Said":
        texts = (text.encode("latin-1").decode() for text in (self.stdout, self.stderr))
        return Said(self.exit_code, *texts)


def can_fork(command: Sequence[str]) -> bool:
    """Whether a command is one that the fork server runs: a script or a module."""
    given = list(command[1:3])
    if not FORK_SERVER_AVAILABLE or command[:1] != [sys.executable] or not given:
        return False
    return len(given) == 2 if given[0] == "-m" else given[0].endswith(".py")


def execute(
    command: Sequence[str],
    cwd: Path,
    environ: Mapping[str, str],
    stdin: bytes = b"",
    timeout_s: float = 120.0,
) -> Said:
    """`[sys.executable, "train.py", …]` or `[sys.executable, "-m", …]` to its end.

    As `child_environment` makes it, the environment may hold a probe's options.
    """
    with _streams(stdin) as (out, errors, given):
        process = _start(command, cwd, environ, out, errors, given)
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        return _said(code, out, errors)


def stepscope(
    arguments: Sequence[str],
    cwd: Path,
    environ: Mapping[str, str],
    stdin: bytes = b"",
    clock_from_ready: bool = False,
) -> Said:
    """A command of stepscope in this very process, the programs it observes forked.

    `clock_from_ready`: a `--timeout` counts from when the program has printed a line `ready`.
    """
    from stepscope.cli.main import main

    with _streams(stdin) as (out, errors, given), contextlib.ExitStack() as stack:
        run_child = functools.partial(_run_child, streams=(out, errors, given))
        stack.enter_context(mock.patch.object(observed_run, "run_child", run_child))
        stack.enter_context(mock.patch.dict(os.environ, environ, clear=True))
        stack.enter_context(contextlib.chdir(cwd))
        for name, file in (("stdout", out), ("stderr", errors)):
            text = io.TextIOWrapper(_Kept(file), encoding="utf-8", write_through=True)
            stack.enter_context(mock.patch.object(sys, name, text))
        if clock_from_ready:
            ready = functools.partial(_has_line, out, b"ready")
            stack.enter_context(mock.patch.object(child, "time", clock_from(ready)))
        code = 0
        try:
            main(list(arguments))
        except SystemExit as end:
            code = int(end.code or 0)
        except Exception:
            traceback.print_exc()
            code = 1
        return _said(code, out, errors)


def clock_from(begins: Callable[[], bool]) -> Any:
    """Stands in for the module `time`: `monotonic` stands still until `begins()`."""
    begun: list[float] = []

    def monotonic() -> float:
        if not begun and begins():
            begun.append(time.monotonic())
        return time.monotonic() - begun[0] if begun else 0.0

    return SimpleNamespace(monotonic=monotonic, monotonic_ns=time.monotonic_ns, sleep=time.sleep)


def _has_line(file: IO[bytes], line: bytes) -> bool:
    return line in os.pread(file.fileno(), 1 << 20, 0).splitlines()


class SharedServer:
    """Stands in for a ForkServer of its own: the worker's, in the environment asked for."""

    def __init__(self, environ: Mapping[str, str], cwd: Path) -> None:
        self.environ = dict(environ)
        self.ready = True

    def start(
        self,
        program: Program,
        probe: str,
        output: IO[bytes],
        cwd: Path,
        errors: IO[bytes] | None = None,
    ) -> ForkedProgram | None:
        server = _server(self.environ)
        return server.start(program, probe, output, cwd, errors, environ=self.environ)

    def close(self) -> None:
        """The next one needs it too."""


def _run_child(
    command: Sequence[str],
    environ: Mapping[str, str],
    timeout_s: float | None,
    on_start: Callable[[int], None],
    on_tick: Callable[[], None],
    output: IO[bytes] | None = None,
    cwd: Path | None = None,
    errors: IO[bytes] | None = None,
    *,
    streams: tuple[IO[bytes], IO[bytes], IO[bytes]],
) -> Outcome:
    """What `stepscope.launch.child.run_child` does, by a fork."""
    out, told, given = streams
    begun = time.monotonic_ns()
    if output is not None:
        out, told = output, errors or output
    process = _start(command, cwd or Path.cwd(), environ, out, told, given)
    return watch_child(process, begun, timeout_s, on_start, on_tick, ours=output is not None)


def _start(
    command: Sequence[str],
    cwd: Path,
    environ: Mapping[str, str],
    out: IO[bytes],
    errors: IO[bytes],
    stdin: IO[bytes],
) -> ForkedProgram:
    assert can_fork(command), command
    module = command[1] == "-m"
    target, *arguments = command[2 if module else 1 :]
    variables = dict(environ)
    probe = variables.pop("STEPSCOPE_PROBE", "")
    if probe:  # as `child_environment` has put it there, and sitecustomize takes it out
        path = variables.pop("STEPSCOPE_PYTHONPATH", None)
        variables.pop("PYTHONPATH")
        variables |= {} if path is None else {"PYTHONPATH": path}
    program = Program(target, tuple(arguments), module)
    process = _server(variables).start(program, probe, out, cwd, errors, stdin, variables)
    assert process is not None
    return process


def _server(environ: Mapping[str, str]) -> ForkServer:
    children.started("a program forked from one that has imported torch")
    return _started(tuple(sorted((k, v) for k, v in environ.items() if k in _READ_AT_START)))


@functools.cache
def _started(at_start: tuple[tuple[str, str], ...]) -> ForkServer:
    """One for all programs with these variables."""
    others = {k: v for k, v in os.environ.items() if k not in _READ_AT_START}
    server = ForkServer(others | dict(at_start), Path("/"))
    assert server.ready
    atexit.register(server.close)
    return server


@contextlib.contextmanager
def _streams(stdin: bytes) -> Iterator[tuple[IO[bytes], IO[bytes], IO[bytes]]]:
    """Files for stdout and stderr, which several processes may append to, and one with `stdin`."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        files = [stack.enter_context(open(f"{folder}/{n}", "a+b", buffering=0)) for n in range(3)]
        files[2].write(stdin)
        files[2].seek(0)
        yield files[0], files[1], files[2]


class _Kept(io.RawIOBase):
    """Writes to a file that stays open when this is closed."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        return self._file.write(bytes(data))

    def fileno(self) -> int:
        return self._file.fileno()


def _said(code: int, out: IO[bytes], errors: IO[bytes]) -> Said:
    texts = []
    for file in (out, errors):
        file.seek(0)
        texts.append(file.read().decode("latin-1"))
    return Said(code, *texts)
