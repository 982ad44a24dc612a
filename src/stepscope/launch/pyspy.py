"""py-spy beside the program: samples its Python stacks from another process.

Reads without pausing the program. A stack that changes while it is read is lost (about one in
fifteen in busy Python code, counted in `errors`); pausing a program of many threads a hundred
times a second would change what is being measured. Idle threads are sampled too, so that time
spent waiting for disk or device is not missed. Loader workers have their own clock.
"""

import os
import re
import shutil
import signal
import subprocess
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import IO

from stepscope.record.errors import MissingExtra

RATE_HZ = 100
OUTPUT = "python.txt"

_ATTACH_S = 3.0
_ATTEMPTS = 4
_FINISH_S = 10.0
_DENIED = re.compile(r"permission denied|operation not permitted|requires root", re.IGNORECASE)
_TALLY = re.compile(r"Samples: (\d+) Errors: (\d+)")


def find_py_spy() -> str:
    """The py-spy program. Raises MissingExtra when it is not installed."""
    beside = Path(sysconfig.get_path("scripts")) / "py-spy"
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which("py-spy")
    if found is None:
        raise MissingExtra("py-spy", "python", "--python")
    return found


class PySpy:
    """One recording; start it when the program's Python is up."""

    def __init__(self) -> None:
        self.problem: str | None = None  # one line; None while all is well
        self.samples = 0
        self.errors = 0  # stacks lost
        self._program = find_py_spy()
        self._process: subprocess.Popen[bytes] | None = None
        self._said: IO[bytes] | None = None
        self._output = Path()

    def start(self, pid: int, folder: Path) -> None:
        """Attach to a process; returns once sampling runs, at most a few seconds later."""
        self._output = folder / OUTPUT
        for _ in range(_ATTEMPTS):
            self._spawn(pid)
            if self._attached():
                return
            self.problem = self._explain()
            self._close()
            if _DENIED.search(self.problem or "") or not _exists(pid):
                return

    def stop(self) -> None:
        """End the recording and have it written. Never waits longer than some seconds."""
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        try:
            code = process.wait(_FINISH_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            self.problem = "py-spy did not finish in time and was ended: no host code recorded"
        else:
            tally = _TALLY.search(self._text())
            if tally:
                self.samples, self.errors = int(tally[1]), int(tally[2])
            if code != 0:
                self.problem = self._explain()
            elif not self._output.exists() or self._output.stat().st_size == 0:
                self.problem = "py-spy saw no Python code: the program was too short"
        self._close()

    def _spawn(self, pid: int) -> None:
        self._said = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [
                *(self._program, "record", "--pid", str(pid), "--output", str(self._output)),
                *("--format", "raw", "--rate", str(RATE_HZ), "--threads", "--idle"),
                *("--full-filenames", "--nonblocking"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=self._said,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for the program, which may go on after it
        )

    def _attached(self) -> bool:
        """Whether sampling runs; a py-spy that is merely slow to say so counts as running."""
        assert self._process is not None
        end = time.monotonic() + _ATTACH_S
        while time.monotonic() < end:
            if "Sampling process" in self._text():
                return True
            if self._process.poll() is not None:
                return self._process.returncode == 0
            time.sleep(0.01)
        return True

    def _text(self) -> str:
        assert self._said is not None
        size = os.fstat(self._said.fileno()).st_size
        return os.pread(self._said.fileno(), 16384, max(0, size - 16384)).decode(errors="replace")

    def _explain(self) -> str:
        text = self._text()
        if _DENIED.search(text):
            return (
                "py-spy may not look into the program (ptrace: permission denied): run as root, "
                "give the container --cap-add SYS_PTRACE, or set kernel.yama.ptrace_scope=0"
            )
        errors = [line.strip() for line in text.splitlines() if line.startswith("Error")]
        reason = errors[0].removeprefix("Error: ") if errors else "it ended without a word"
        return f"py-spy could not record host code: {reason}"

    def _close(self) -> None:
        self._process = None
        if self._said is not None:
            self._said.close()
            self._said = None


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
