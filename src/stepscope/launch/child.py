"""One child process: starts it, waits for it, forwards signals and enforces limits."""

import math
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Protocol

TIMEOUT_EXIT_CODE = 124
TERMINATION_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_FORWARDED = (*TERMINATION_SIGNALS, signal.SIGUSR1, signal.SIGUSR2)
_GRACE_S = 10.0
_TICK_S = 0.1


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a child ended. `exit_code` is what a shell would see: 128 + n for signal n."""

    exit_code: int
    signal: int | None
    timed_out: bool
    started_ns: int
    ended_ns: int
    pid: int
    end_signal: int | None = None
    """The last termination signal this process got meanwhile, or None."""
    given_up: bool = False
    """Whether `on_tick` ended it."""


class Process(Protocol):
    """What a child must provide; subprocess.Popen does."""

    @property
    def pid(self) -> int: ...
    @property
    def returncode(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, number: int, /) -> None: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...


def run_child(
    command: Sequence[str],
    environ: Mapping[str, str],
    timeout_s: float | None,
    on_start: Callable[[int], None],
    on_tick: Callable[[], bool | None],
    output: IO[bytes] | None = None,
    cwd: Path | None = None,
    errors: IO[bytes] | None = None,
) -> Outcome:
    """Run a command to its end. `on_tick` is called about ten times a second; True ends the child.
    `output` takes its output, including stderr unless `errors` does: such a child ends on a signal
    to this process, and whenever this process ends. It starts in `cwd`; None: this process's
    own."""
    started_ns, ours = time.monotonic_ns(), output is not None
    process = subprocess.Popen(
        command,
        env=dict(environ),
        cwd=cwd,
        stdin=subprocess.DEVNULL if ours else None,
        stdout=output,
        stderr=(errors or subprocess.STDOUT) if ours else None,
        preexec_fn=die_with_parent() if ours else None,
    )
    return watch_child(process, started_ns, timeout_s, on_start, on_tick, ours=ours)


def watch_child(
    process: Process,
    started_ns: int,
    timeout_s: float | None,
    on_start: Callable[[int], None],
    on_tick: Callable[[], bool | None],
    *,
    ours: bool,
) -> Outcome:
    """Wait for a child that has been started. `ours`: a signal to this process ends it."""
    timed_out = given_up = False
    with _forwarding(process) as signals:
        _quietly(on_start, process.pid)
        deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while True:
            try:
                process.wait(_TICK_S)
                break
            except subprocess.TimeoutExpired:
                given_up = bool(_quietly(on_tick))
            stopped = bool(ours and signals)
            timed_out = not stopped and time.monotonic() > deadline
            if stopped or timed_out or given_up:
                _end(process)
                break
    code = process.wait()
    number = -code if code < 0 else None
    exit_code = TIMEOUT_EXIT_CODE if timed_out else (code if number is None else 128 + number)
    ended_ns, last = time.monotonic_ns(), signals[-1] if signals else None
    own = (started_ns, ended_ns, process.pid, last, given_up)
    return Outcome(exit_code, number, timed_out, *own)


def die_with_parent() -> Callable[[], None] | None:
    """A function with which a new child makes the kernel end it with its parent; None outside
    Linux."""
    import ctypes
    import sys

    if sys.platform != "linux":
        return None
    prctl, death_signal = ctypes.CDLL(None).prctl, 1
    return lambda: prctl(death_signal, signal.SIGKILL)


def _quietly(call: Callable[..., bool | None], *arguments: int) -> bool | None:
    """Make a call that must never harm the child."""
    try:
        return call(*arguments)
    except Exception:
        return None


def _end(process: Process) -> None:
    """Terminate a process that exceeded its time limit, then kill it and its children."""
    import psutil

    try:
        children = psutil.Process(process.pid).children(recursive=True)
    except psutil.Error:
        children = []
    process.terminate()
    try:
        process.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for child in children:
        try:
            child.kill()
        except psutil.Error:
            pass


@contextmanager
def _forwarding(process: Process) -> Iterator[list[int]]:
    """Forward signals to the child while it runs; this process survives them to complete the run.
    Yields the list of termination signals received. Signals ignored before, as under nohup, stay
    ignored."""
    ends: list[int] = []

    def forward(number: int, _: FrameType | None) -> None:
        if number in TERMINATION_SIGNALS:
            ends.append(number)
        if not (number in (signal.SIGINT, signal.SIGQUIT) and _from_terminal()):
            process.send_signal(number)

    heard = [number for number in _FORWARDED if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, forward) for number in heard}
    try:
        yield ends
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _from_terminal() -> bool:
    """Whether the terminal sent the signal to the whole foreground group, child included."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)  # even if stdin is a file
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
