"""Sampling from outside while the program runs: machine counters in a thread of the parent, Python
stacks by py-spy in another process.

The sampler costs 2.5% of one core for ten processes; on a virtual machine with an H200 another 7%,
mostly the 4 ms it takes to read the energy counter. py-spy does not pause the program, so about one
stack in fifteen is lost in busy Python code (counted in `errors`).
"""

import math
import os
import re
import shutil
import signal
import subprocess
import sysconfig
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Final

from stepscope.hardware.gpus import open_gpu
from stepscope.hardware.process_tree import OtherLoad, ProcessTree
from stepscope.record.errors import MissingExtra
from stepscope.record.problems import Problem, ProblemKind
from stepscope.record.row_log import SAMPLE_COLUMNS
from stepscope.store.table import Table

INTERVAL_S: Final = 0.1
_REFRESH_S: Final = 1.0  # finding new processes means reading the whole process table
_JOIN_S: Final = 5.0
_UNKNOWN: Final = dict.fromkeys(SAMPLE_COLUMNS, math.nan)


class MachineSampler(threading.Thread):
    """Writes about ten samples a second of `pid`, its descendants and one GPU until `stop`, or
    until no process is left or the disk is full; `problem` then says what went wrong (None:
    nothing). `commands` maps descendants' pids to short command lines."""

    def __init__(
        self, pid: int, path: Path, gpu_index: int | None = None, interval_s: float = INTERVAL_S
    ) -> None:
        super().__init__(name="stepscope-sampler", daemon=True)
        self.problem: Problem | None = None
        self.commands: dict[int, str] = {}
        self.latest: Mapping[str, float] | None = None
        self.rows = 0
        self._pid = pid
        self._path = path
        self._gpu_index = gpu_index
        self._interval_s = interval_s
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Stop sampling and close the table; returns when done."""
        self._stopped.set()
        if self.is_alive():
            self.join(_JOIN_S)

    def run(self) -> None:
        """The thread's work; any failure becomes `problem`."""
        try:
            table = Table(self._path, SAMPLE_COLUMNS)
        except OSError as error:
            self.problem = Problem(kind=ProblemKind.NOT_SAMPLED, detail=str(error))
            return
        try:
            self._sample_all(table)
        except Exception as error:
            self.problem = Problem(kind=ProblemKind.SAMPLING_STOPPED, detail=str(error))
        try:
            table.close(self.rows)
        except OSError as error:
            problem = Problem(kind=ProblemKind.SAMPLING_STOPPED, detail=str(error))
            self.problem = self.problem or problem

    def _sample_all(self, table: Table) -> None:
        tree, others = ProcessTree(self._pid, self.commands), OtherLoad(self._pid)
        before = math.nan
        gpu = None if self._gpu_index is None else open_gpu(self._gpu_index)
        refreshed = -math.inf
        while not self._stopped.is_set():
            began = time.monotonic()
            if tree.has_changed() or began - refreshed >= _REFRESH_S:
                tree.refresh()
                refreshed = began
            sample = _UNKNOWN | {"t_ns": float(time.monotonic_ns())} | tree.sample()
            sample |= gpu.sample(tree.pids) if gpu else {}
            sample["other_cpu_percent"] = others.sample(sample["cpu_percent"], began - before)
            before = began
            if not sample["processes"]:
                return
            if self.rows == table.rows:
                table.grow()
            for place, column in enumerate(SAMPLE_COLUMNS, self.rows * table.width):
                table.cells[place] = sample[column]
            self.rows += 1
            self.latest = sample
            self._stopped.wait(max(0.0, began + self._interval_s - time.monotonic()))


STACK_RATE_HZ = 100
STACKS_FILE = "python.txt"
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
        self.problem: Problem | None = None
        self.samples = 0
        self.errors = 0  # stacks lost
        self._program = find_py_spy()
        self._process: subprocess.Popen[bytes] | None = None
        self._said: IO[bytes] | None = None
        self._output = Path()

    def start(self, pid: int, folder: Path) -> None:
        """Attach to a process; returns once sampling runs, at most a few seconds later."""
        import psutil

        self._output = folder / STACKS_FILE
        for _ in range(_ATTEMPTS):
            self._said = tempfile.TemporaryFile()  # noqa: SIM115
            self._process = subprocess.Popen(
                [
                    *(self._program, "record", "--pid", str(pid), "--output", str(self._output)),
                    *("--format", "raw", "--rate", str(STACK_RATE_HZ), "--threads", "--idle"),
                    *("--full-filenames", "--nonblocking"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=self._said,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for the program, which may continue after it
            )
            if self._attached():
                return
            self.problem = self._explain()
            self._close()
            if self.problem.kind is ProblemKind.STACKS_DENIED or not psutil.pid_exists(pid):
                return

    def stop(self) -> None:
        """End the recording and let py-spy write it; waits a few seconds at most."""
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
            self.problem = Problem(kind=ProblemKind.STACKS_TIMED_OUT)
        else:
            tally = _TALLY.search(self._text())
            if tally:
                self.samples, self.errors = int(tally[1]), int(tally[2])
            if code != 0:
                self.problem = self._explain()
            elif not self._output.exists() or self._output.stat().st_size == 0:
                self.problem = Problem(kind=ProblemKind.TOO_SHORT_FOR_STACKS)
        self._close()

    def _attached(self) -> bool:
        """Whether sampling runs; a py-spy that is slow to report it counts as running."""
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

    def _explain(self) -> Problem:
        text = self._text()
        if _DENIED.search(text):
            return Problem(kind=ProblemKind.STACKS_DENIED)
        errors = [line.strip() for line in text.splitlines() if line.startswith("Error")]
        reason = errors[0].removeprefix("Error: ") if errors else "no error message"
        return Problem(kind=ProblemKind.STACKS_FAILED, detail=reason)

    def _close(self) -> None:
        self._process = None
        if self._said is not None:
            self._said.close()
            self._said = None
