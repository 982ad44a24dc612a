"""Who allocates memory: CUDA's own allocator history, memray for the host.

CUDA's history is reduced here, memray's recording by the parent (`store.memory_lines`). Nothing
here initialises CUDA: recording begins when the program does.
"""

import os
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from stepscope.record.errors import MissingExtra, UsageError
from stepscope.record.facts import ProblemFact
from stepscope.record.problems import ProblemKind
from stepscope.store.json_file import HeldFile, write_json
from stepscope.store.memory_lines import (
    CPU_MARKS,
    CPU_RAW,
    CUDA_LINES,
    MemoryLines,
    replay_cuda_history,
)

MAX_ENTRIES = 200_000
"""Allocations and frees CUDA's history keeps: the last ones; about 0.5 KB of host memory each."""

MAX_RAW_BYTES = 256 << 20
"""memray's recording ends at this size; reading it back takes about 10 s per 100 MB."""

_SIZE_CHECK_MARKS = 64


class MemoryHistory:
    """Records who allocates memory; `mark` bounds what counts as growth (call it at step ends)."""

    def __init__(self) -> None:
        self.problem: ProblemFact | None = None
        self._folder = Path()
        self._cuda = False
        self._tracker: Any = None
        self._marks_file: HeldFile | None = None
        self._marks = 0
        self._first_ns: int | None = None
        self._last_ns: int | None = None

    def start(self, device: str, folder: Path) -> None:
        """Begin the history of "cuda" or "cpu". Raises MissingExtra when memray is needed. The
        host's cannot share a run with torch.profiler's stacks: both want Python's one profile
        function, and memray loses sight of the lines once the profiler has taken it."""
        if device not in ("cuda", "cpu"):
            raise UsageError(f"--memory takes cuda or cpu, not {device}")
        self._folder = folder
        if device == "cuda":
            import torch

            self._cuda = True
            torch.cuda._lazy_call(self._record_cuda)
        else:
            self._start_cpu()

    def mark(self) -> None:
        """Mark a moment at which memory should be back at its level of the last mark. About 2
        µs."""
        self._last_ns = time.time_ns()
        if self._first_ns is None:
            self._first_ns = self._last_ns
        if self._tracker is not None:
            self._note_marks(stopped=False)
            self._marks += 1
            full = self._marks % _SIZE_CHECK_MARKS == 0 and (
                os.path.getsize(self._folder / CPU_RAW) > MAX_RAW_BYTES
            )
            if full:
                self._note_marks(stopped=True)
                self._stop_cpu()

    def reduce(self) -> None:
        """Write `memory-cuda.json` as of now, where CUDA's history is kept and CUDA is in use."""
        if not self._cuda:
            return
        import torch

        if not torch.cuda.is_initialized():
            return
        lines = _reduce_cuda(torch, self._first_ns, self._last_ns)
        write_json(self._folder / CUDA_LINES, asdict(lines), indent=None)

    def stop(self) -> None:
        """Reduce the recording so far and end it; call before the interpreter shuts down."""
        self._stop_cpu()
        if self._cuda:
            self.reduce()
            self._cuda = False
            import torch

            if torch.cuda.is_initialized():
                torch.cuda.memory._record_memory_history(None)

    def _record_cuda(self) -> None:
        """Runs inside the program's own first CUDA call: nothing may escape from here."""
        try:
            import torch

            torch.cuda.memory._record_memory_history(
                "all", context="alloc", stacks="python", max_entries=MAX_ENTRIES
            )
        except Exception as error:
            self._cuda = False
            self.problem = ProblemFact(kind=ProblemKind.NO_MEMORY_HISTORY, detail=str(error))

    def _start_cpu(self) -> None:
        try:
            import memray
        except ImportError:
            raise MissingExtra("memray", "memory", "--memory") from None
        raw = memray.FileDestination(self._folder / CPU_RAW, compress_on_exit=False)
        tracker = memray.Tracker(destination=raw, native_traces=False, follow_fork=False)
        self._marks_file = HeldFile(self._folder / CPU_MARKS, os.O_WRONLY | os.O_CREAT)
        # memray loses one outer frame for every frame that returns between entering it and the
        # program, unless it is entered from a thread other than the one that goes on.
        helper = threading.Thread(target=tracker.__enter__)
        helper.start()
        helper.join()
        self._tracker = tracker

    def _note_marks(self, stopped: bool) -> None:
        first, last = (self._first_ns or 0) // 10**6, (self._last_ns or 0) // 10**6
        if self._marks_file is not None:
            os.pwrite(self._marks_file.number(), b"%d %d %d\n" % (first, last, stopped), 0)

    def _stop_cpu(self) -> None:
        tracker, self._tracker = self._tracker, None
        if tracker is not None:
            tracker.__exit__(None, None, None)
        if self._marks_file is not None:
            self._marks_file.close()


def _reduce_cuda(torch: Any, first_ns: int | None, last_ns: int | None) -> MemoryLines:
    """The history of the device with the highest peak."""
    snapshot = torch.cuda.memory._snapshot()
    reduced = []
    for index, entries in enumerate(snapshot["device_traces"]):
        blocks = [
            block
            for segment in snapshot["segments"]
            if segment.get("device", 0) == index
            for block in segment["blocks"]
        ]
        if not entries and not blocks:
            continue
        lines = replay_cuda_history(
            entries,
            blocks,
            first_us=None if first_ns is None else first_ns / 1000,
            last_us=None if last_ns is None else last_ns / 1000,
            device=f"cuda:{index}",
        )
        stats = torch.cuda.memory_stats(index)
        peak, retries = stats.get("allocated_bytes.all.peak"), stats.get("num_alloc_retries")
        full = len(entries) >= MAX_ENTRIES
        reduced.append(replace(lines, allocator_peak_bytes=peak, retries=retries, truncated=full))
    return max(reduced, key=lambda lines: lines.peak_bytes, default=replay_cuda_history([]))
