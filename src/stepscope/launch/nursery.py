"""Programs started by a process that has imported torch already, in a fork of it.

Importing torch takes seconds, and a tune starts a program dozens of times. What the program does
is the same, see `warm`; its environment must be the one that torch was imported in.
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Final

from stepscope.launch.child import dying_with_parent
from stepscope.launch.program import Program
from stepscope.launch.warm import READY

AVAILABLE: Final = sys.platform == "linux"
_LONGEST_IMPORT_S: Final = 180.0
_ENTRY: Final = "from stepscope.launch.warm import main; main({})"


class Nursery:
    """One such process. Start one program at a time."""

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
                preexec_fn=dying_with_parent(),
            )
        self.ready = _word(self._link, _LONGEST_IMPORT_S) == READY.decode()
        """Whether programs can be started."""

    def start(self, program: Program, probe: str, output: IO[bytes], cwd: Path) -> "Warm | None":
        """A program that begins at once; `probe` is what the probe in it is told. None where
        nothing can be started any more."""
        order = {
            "target": program.target,
            "arguments": program.arguments,
            "module": program.module,
            "command": program.command,
            "cwd": str(cwd),
            "probe": probe,
        }
        try:
            socket.send_fds(self._link, [json.dumps(order).encode()], [output.fileno()])
            number = _word(self._link, _LONGEST_IMPORT_S)
        except OSError:
            number = None
        if not number:
            self.ready = False
            return None
        return Warm(int(number), self._link)

    def close(self) -> None:
        """End it, and with it what it has started."""
        self._link.close()
        self._process.kill()
        self._process.wait()


class Warm:
    """A program started so, with what `run_child` asks of a process."""

    def __init__(self, pid: int, link: socket.socket) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._link = link

    def wait(self, timeout: float | None = None) -> int:
        """Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            code = _word(self._link, timeout)
            if code is None:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            self.returncode = int(code or -signal.SIGKILL)  # nothing: who started it is gone
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Nothing happens where it has ended."""
        if self.returncode is None:
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                pass

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _word(link: socket.socket, timeout_s: float | None) -> str | None:
    """What comes next; "" where the other end is gone, None where nothing came in time."""
    if not select.select([link], [], [], timeout_s)[0]:
        return None
    return link.recv(64).decode()
