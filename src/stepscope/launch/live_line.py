"""The live line: shows the last steps, read from the rows as the child writes them; and the
terminal's row that it is drawn in.
"""

import os
import signal
import struct
import termios
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import IO, Any, Final, NamedTuple

from stepscope.probe.step_rule import StepRule
from stepscope.record.facts import CompileFact, ProcessFact, TorchBegunFact
from stepscope.record.row_log import FLAG_PROFILED, RANKS_FOLDER, ROW_COLUMNS, RowKind
from stepscope.store.table import HEADER_BYTES

_ROW: Final = struct.Struct(f"<{len(ROW_COLUMNS)}d")
_COLUMN: Final = {name: i for i, name in enumerate(ROW_COLUMNS)}
_EVERY_S: Final = 0.5
_RECENT_NS: Final = 5e9
_MOST: Final = 1000
_INSTEAD: Final = (
    *(RowKind.MARK, RowKind.BACKWARD, RowKind.GRAD),
    *(RowKind.CALL, RowKind.EVAL, RowKind.ACT, RowKind.BATCH),
)
_BEFORE: Final = {  # before the first step, by the latest of these facts
    CompileFact.fact: "compiling or setting up",
    ProcessFact.fact: "torch imported, no step yet",
    TorchBegunFact.fact: "importing torch",
}


class _Stretch(NamedTuple):
    """From the end of one step to the end of the next."""

    steps: int
    end_ns: float
    elapsed_ns: float
    samples: float
    waited_ns: float


class LiveLine:
    """Shows every half second what the program is doing; `show` draws it."""

    def __init__(self, folder: Path, show: Callable[[str], None]) -> None:
        self._folder, self._show = folder, show
        self._rows = folder / "rows.npy"
        self._began = time.monotonic()
        self._file: IO[bytes] | None = None
        self._rule = StepRule()
        self._instead = dict.fromkeys(_INSTEAD, 0)
        self._drawn_at = 0.0
        self._step = 0
        self._ended_ns: float | None = None  # of the last step
        self._samples = self._waited = 0.0
        self._received = 0.0  # samples, by the last root model's call that was seen
        self._slowed = self._recording = False  # since then; now
        self._recent: deque[_Stretch] = deque(maxlen=_MOST)
        self.gpu_percent: float | None = None

    def tick(self) -> None:
        """Read new rows and redraw from time to time."""
        now = time.monotonic()
        if now - self._drawn_at >= _EVERY_S:
            self._drawn_at = now
            self._read()
            self._show(self.text())

    def close(self) -> None:
        """Stop reading."""
        if self._file is not None:
            self._file.close()

    def text(self) -> str:
        """The line's text, from the last few seconds' steps that were not slowed by recording."""
        if not self._step:
            parts = [self._before(), f"{time.monotonic() - self._began:.0f} s"]
        else:
            parts = [f"step {self._step:,}"]
            steps = sum(one.steps for one in self._recent)
            elapsed = sum(one.elapsed_ns for one in self._recent)
            if steps and elapsed > 0:
                parts.append(f"{elapsed / steps / 1e6:.1f} ms")
                if samples := sum(one.samples for one in self._recent):
                    parts.append(f"{samples / elapsed * 1e9:,.0f} samples/s")
            if self.gpu_percent is not None and self.gpu_percent == self.gpu_percent:
                parts.append(f"GPU {self.gpu_percent:.0f}%")
            if steps and elapsed > 0:
                waited = sum(one.waited_ns for one in self._recent)
                parts.append(f"data wait {waited / elapsed:.0%}")
            if self._recording:
                parts.append("recording kernels")
        return "stepscope  " + " · ".join(parts)

    def _before(self) -> str:
        """What a program without a step is doing, by its facts so far."""
        try:
            facts = (self._folder / "facts.jsonl").read_bytes()
        except OSError:
            return "starting"
        known = (text for fact, text in _BEFORE.items() if f'"fact": "{fact}"'.encode() in facts)
        return next(known, "starting")

    def _read(self) -> None:
        first = self._folder / RANKS_FOLDER / "0" / "rows.npy"
        if not self._step and self._rows != first and first.exists():
            self.close()
            self._rows, self._file = first, None
        if self._file is None:
            try:
                self._file = open(self._rows, "rb", buffering=0)  # noqa: SIM115
                self._file.seek(HEADER_BYTES)
            except OSError:
                return
        while True:
            data = self._file.read(_ROW.size)
            row = _ROW.unpack(data) if len(data) == _ROW.size else (0.0,)
            if not row[0]:  # not written yet
                self._file.seek(-len(data), os.SEEK_CUR)
                break
            self._add(row)

    def _add(self, row: tuple[float, ...]) -> None:
        end, kind = row[0], int(row[_COLUMN["kind"]])
        received = row[_COLUMN["inputs"]]
        if received == received:  # not known of a step that was not clocked
            self._received = received
        self._samples += row[_COLUMN["samples"]] or self._received
        self._waited += row[_COLUMN["data_wait_ns"]]
        self._recording = bool(int(row[_COLUMN["flags"]]) & FLAG_PROFILED)
        self._slowed = self._slowed or self._recording or kind == RowKind.WINDOW
        if kind == RowKind.STEP:
            self._rule.add(int(row[_COLUMN["who"]]))
        elif kind in self._instead:
            self._instead[RowKind(kind)] += 1
        else:
            return
        marks, *others = self._instead.values()  # marked steps, else optimizer steps, else others
        step = next(filter(None, (marks, self._rule.settled, *others)), 0)
        if step == self._step:
            return
        if self._ended_ns is not None and step > self._step and not self._slowed:
            elapsed = end - self._ended_ns
            made = _Stretch(step - self._step, end, elapsed, self._samples, self._waited)
            self._recent.append(made)
        while self._recent and end - self._recent[0].end_ns > _RECENT_NS:
            self._recent.popleft()
        self._step, self._ended_ns = step, end
        self._samples = self._waited = 0.0
        self._slowed = False


_SAVE, _RESTORE = "\x1b7", "\x1b8"
_WHOLE: Final = f"{_SAVE}\x1b[r{_RESTORE}"  # setting a region moves the cursor
_MAKE_ROOM: Final = "\x1bD\x1b[A"  # if the cursor is in the last row, scroll by one
_FEWEST_ROWS: Final = 5
_COOKED: Final = termios.ICANON | termios.ECHO


class StatusRow:
    """The last row of a terminal that the program writes to as well, while it is ours. Must be
    closed.

    The rows above become the terminal's scrolling region, so the program's output, including bars
    and cursor movements, stays undisturbed there. Our row is drawn in one write that restores the
    cursor. While something else has the terminal (a prompt, a full-screen program, another job) it
    is left alone.
    """

    def __init__(self, stream: IO[str]) -> None:
        self._fd = stream.fileno()
        self._size: os.terminal_size | None = None
        """The terminal's size while our row is drawn."""
        self._stopping: Any = None
        if signal.getsignal(signal.SIGTSTP) == signal.SIG_DFL:
            self._stopping = signal.signal(signal.SIGTSTP, self._stop)

    def show(self, text: str) -> None:
        """Draw the row if possible."""
        size = self._usable()
        if size is None:
            self.hide()
            return
        if size != self._size:
            self.hide()
            self._write(_WHOLE + _MAKE_ROOM)
            self._size = size
        region = f"\x1b[1;{size.lines - 1}r\x1b[{size.lines};1H"
        self._write(f"{_SAVE}{region}\x1b[2K{text[: size.columns - 1]}{_RESTORE}")

    def hide(self) -> None:
        """Give the row back to the program."""
        if self._size is not None:
            row = f"\x1b[{self._size.lines};1H\x1b[2K"
            self._write(f"{_SAVE}\x1b[r{row}{_RESTORE}")
            self._size = None

    def close(self) -> None:
        self.hide()
        if self._stopping is not None:
            signal.signal(signal.SIGTSTP, self._stopping)
            self._stopping = None

    def _usable(self) -> os.terminal_size | None:
        """The terminal's size; None while it is not ours, too small, or gone."""
        if os.environ.get("TERM", "dumb") == "dumb":
            return None
        try:
            size = os.get_terminal_size(self._fd)
            cooked = termios.tcgetattr(self._fd)[3] & _COOKED == _COOKED
        except (OSError, termios.error):
            return None
        try:
            foreground = os.tcgetpgrp(self._fd) == os.getpgrp()
        except OSError:  # not a controlling terminal
            foreground = True
        return size if cooked and foreground and size.lines >= _FEWEST_ROWS else None

    def _write(self, text: str) -> None:
        """Write in one piece, so that no program output comes between."""
        try:
            os.write(self._fd, text.encode())
        except OSError:
            self._size = None

    def _stop(self, number: int, _: FrameType | None) -> None:
        """Ctrl-Z: give the shell its whole terminal back."""
        self.hide()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        signal.signal(number, self._stop)  # continues here after fg
