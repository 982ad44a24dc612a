"""A fork server: a process that has imported torch and forks once per program, because importing
torch takes seconds and a tune starts a program dozens of times. A fork starts like a fresh process
that has imported torch: without anything of ours, CUDA not initialised."""

import atexit
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import asdict
from importlib.machinery import SourceFileLoader
from io import open_code
from multiprocessing import process
from pathlib import Path
from typing import IO, Any, Final

from stepscope.launch.child import die_with_parent
from stepscope.launch.program import Program

_READY = b"ready"
_MAX_ORDER_BYTES = 1 << 18  # bytes of an order


def main(link_number: int) -> None:
    """Serve until the link closes. A fork never returns from here."""
    outside = bool(sys.path) and sys.path[0] == ""  # not under PYTHONSAFEPATH
    if outside:
        del sys.path[0]
    _prepare()
    heard = signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's Ctrl-C is for the program
    with socket.socket(fileno=link_number) as link:
        link.sendall(_READY)
        order = _serve(link)
    if order is not None:
        signal.signal(signal.SIGINT, heard)
        _end(_code(order, outside))


def _prepare() -> None:
    """Import torch, and what it imports when the first optimizer is made. That sets a cache
    variable, which is removed for the program."""
    environ = dict(os.environ)
    import torch._dynamo  # noqa: F401

    import stepscope.fixes.apply
    import stepscope.probe.boot
    import stepscope.probe.observer  # noqa: F401

    for name in os.environ.keys() - environ.keys():
        del os.environ[name]


def _serve(link: socket.socket) -> dict[str, Any] | None:
    """Fork for each order, report its pid and, at its end, its exit. Returns the order in a fork;
    None once there are no more."""
    parent, stay = os.getpid(), die_with_parent()
    while True:
        text, descriptors, _, _ = socket.recv_fds(link, _MAX_ORDER_BYTES, 3)
        if not text:
            return None
        number = os.fork()
        if number == 0:
            if stay is not None:
                stay()
            if os.getppid() != parent:
                os._exit(1)
            for descriptor, stream in zip(descriptors, (1, 2, 0), strict=False):
                os.dup2(descriptor, stream)
        for descriptor in descriptors:
            os.close(descriptor)
        if number == 0:
            order: dict[str, Any] = json.loads(text)
            return order
        link.sendall(str(number).encode())
        _, status = os.waitpid(number, 0)
        link.sendall(str(os.waitstatus_to_exitcode(status)).encode())


def _code(order: dict[str, Any], outside: bool) -> int:
    """Run the program; returns the exit code Python would give it, -n if signal n ends it."""
    try:
        _become(order, outside)
    except SystemExit as asked:
        if asked.code is None or isinstance(asked.code, int):
            return (asked.code or 0) & 0xFF
        print(asked.code, file=sys.stderr)
        return 1
    except BaseException as problem:
        trace = problem.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        sys.last_type, sys.last_value, sys.last_traceback = type(problem), problem, trace
        sys.excepthook(type(problem), problem.with_traceback(trace), trace)
        return -signal.SIGINT if isinstance(problem, KeyboardInterrupt) else 1
    return 0


def _end(code: int) -> None:
    """Exit as Python does, but without clearing modules one by one: that takes a second for
    nothing."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        if code < 0:
            signal.signal(-code, signal.SIG_DFL)
            os.kill(os.getpid(), -code)
        os._exit(code)


def _become(order: dict[str, Any], outside: bool) -> None:
    """Run the program as Python's command line would."""
    from stepscope.launch.bootstrap import start_probe

    target, command = order["target"], order["command"]
    os.chdir(order["cwd"])
    if order["environ"] is not None:
        os.environ.clear()
        os.environ.update(order["environ"])
        tempfile.tempdir = None  # set in the server's environment
    process.ORIGINAL_DIR = os.getcwd()  # type: ignore[attr-defined]  # as if imported here
    sys.orig_argv = list(command)
    sys.argv = [target, *order["arguments"]]
    if outside:
        here = os.getcwd() if order["module"] else os.path.dirname(os.path.realpath(target))
        sys.path.insert(0, here)
    if order["probe"]:
        start_probe(order["probe"])
    if order["module"]:
        runpy._run_module_as_main(target)  # type: ignore[attr-defined]
        return
    path = os.path.abspath(target)
    names = vars(sys.modules["__main__"])
    for name in [name for name in names if not name.startswith("__")]:
        del names[name]
    loader = SourceFileLoader("__main__", path)
    names |= {"__file__": path, "__cached__": None, "__loader__": loader}
    with open_code(path) as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    exec(code, names)


FORK_SERVER_AVAILABLE: Final = sys.platform == "linux"
_LONGEST_IMPORT_S: Final = 180.0
_ENTRY: Final = "from stepscope.launch.fork_server import main; main({})"


class ForkServer:
    """One fork server. Start one program at a time."""

    def __init__(self, environ: Mapping[str, str], cwd: Path) -> None:
        self.environ = dict(environ)
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _ENTRY.format(theirs.fileno())],
                env=self.environ,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                preexec_fn=die_with_parent(),
            )
        self.ready = _receive(self._link, _LONGEST_IMPORT_S) == _READY.decode()
        """Whether it can start programs."""

    def start(
        self,
        program: Program,
        probe: str,
        output: IO[bytes],
        cwd: Path,
        errors: IO[bytes] | None = None,
        stdin: IO[bytes] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> "ForkedProgram | None":
        """Start a program; `probe` holds the probe's options ("": no probe). stderr goes to
        `output` too unless `errors` is given; the environment is the server's unless `environ` is
        given. None if the server can start nothing more."""
        order = asdict(program) | {
            "command": program.command,
            "cwd": str(cwd),
            "probe": probe,
            "environ": None if environ is None else dict(environ),
        }
        streams = [file.fileno() for file in (output, errors or output, stdin) if file]
        try:
            socket.send_fds(self._link, [json.dumps(order).encode()], streams)
            number = _receive(self._link, _LONGEST_IMPORT_S)
        except OSError:
            number = None
        if not number:
            self.ready = False
            return None
        return ForkedProgram(int(number), self._link)

    def close(self) -> None:
        """End it and everything it started."""
        self._link.close()
        self._process.kill()
        self._process.wait()


class ForkedProgram:
    """A program started by the fork server, with the `Process` interface of `run_child`."""

    def __init__(self, pid: int, link: socket.socket) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._link = link

    def wait(self, timeout: float | None = None) -> int:
        """Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            code = _receive(self._link, timeout)
            if code is None:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            self.returncode = int(code or -signal.SIGKILL)  # None: its server is gone
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Does nothing if it has ended."""
        if self.returncode is None:
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                pass

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _receive(link: socket.socket, timeout_s: float | None) -> str | None:
    """What comes next; "" where the other end is gone, None where nothing came in time."""
    poll = select.poll()  # `select.select` takes no descriptor above 1,023
    poll.register(link, select.POLLIN)
    if not poll.poll(None if timeout_s is None else timeout_s * 1000):
        return None
    return link.recv(64).decode()
