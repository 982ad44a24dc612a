"""Samples the program and the machine while it runs: a thread of the parent, never of the child.

Measured cost for ten forked processes: 2.5% of one core, 1.5% of it the readings themselves, the
rest what they share and whether there are new ones. A GPU adds what its driver takes: 7% of a
core on a virtual machine with an H200, most of it the 4 ms of reading the energy counter.
"""

import math
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from stepscope.hardware.nvml import Gpu, open_gpu
from stepscope.hardware.processes import ProcessTree
from stepscope.record.rows import SAMPLE_COLUMNS
from stepscope.store.table import Table

INTERVAL_S: Final = 0.1
_REFRESH_S: Final = 1.0  # finding new processes means reading the whole process table
_JOIN_S: Final = 5.0
_UNKNOWN: Final = dict.fromkeys(SAMPLE_COLUMNS, math.nan)


class Sampler(threading.Thread):
    """Writes about ten samples a second of `pid`, its descendants and one GPU until `stop`.

    It ends by itself, quietly, when no process is left or the disk is full; `problem` then says
    what went wrong (None: nothing). `commands` are the descendants seen, pid to short command line.
    """

    def __init__(
        self, pid: int, path: Path, gpu_index: int | None = None, interval_s: float = INTERVAL_S
    ) -> None:
        super().__init__(name="stepscope-sampler", daemon=True)
        self.problem: str | None = None
        self.commands: dict[int, str] = {}
        self.latest: Mapping[str, float] | None = None
        self.rows = 0
        self._pid = pid
        self._path = path
        self._gpu_index = gpu_index
        self._interval_s = interval_s
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Take no more samples and close the table; returns when that is done."""
        self._stopped.set()
        if self.is_alive():
            self.join(_JOIN_S)

    def run(self) -> None:
        """The thread's work; whatever goes wrong becomes `problem`."""
        try:
            table = Table(self._path, SAMPLE_COLUMNS)
        except OSError as error:
            self.problem = f"the machine was not sampled: {error}"
            return
        try:
            self._sample_all(table)
        except Exception as error:
            self.problem = f"sampling the machine ended early: {error}"
        finally:
            self._close(table)

    def _sample_all(self, table: Table) -> None:
        tree = ProcessTree(self._pid, self.commands)
        gpu = None if self._gpu_index is None else open_gpu(self._gpu_index)
        refreshed = -math.inf
        while not self._stopped.is_set():
            began = time.monotonic()
            if tree.has_changed() or began - refreshed >= _REFRESH_S:
                tree.refresh()
                refreshed = began
            sample = self._sample(tree, gpu)
            if not sample["processes"]:
                return
            self._write(table, sample)
            self._stopped.wait(max(0.0, began + self._interval_s - time.monotonic()))

    def _sample(self, tree: ProcessTree, gpu: Gpu | None) -> dict[str, float]:
        sample = _UNKNOWN | {"t_ns": float(time.monotonic_ns())} | tree.sample()
        return sample | gpu.sample(tree.pids) if gpu else sample

    def _write(self, table: Table, sample: dict[str, float]) -> None:
        if self.rows == table.rows:
            table.grow()
        start = self.rows * table.width
        for place, column in enumerate(SAMPLE_COLUMNS, start):
            table.cells[place] = sample[column]
        self.rows += 1
        self.latest = sample

    def _close(self, table: Table) -> None:
        try:
            table.close(self.rows)
        except OSError as error:
            self.problem = self.problem or f"the samples were not closed: {error}"
