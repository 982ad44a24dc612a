"""The row log: where the observed thread's time goes, phase by phase.

Everything here runs inside the program's own loop, so it does little: additions on a list, and one
row of doubles into mapped memory when an event ends a row. Any failure switches the log off.
"""

from collections.abc import Callable
from pathlib import Path
from threading import get_ident
from time import monotonic_ns

from stepscope.record.rows import ROW_COLUMNS, Kind, Phase
from stepscope.store.table import Table

_TAIL = len(Phase)  # between a forward and what follows it: loss, if backward follows
_FIRST_PHASE = ROW_COLUMNS.index("other_ns")
_AFTER_PHASES = _FIRST_PHASE + len(Phase)
_LOSS = ROW_COLUMNS.index("loss")
_DEVICE = ROW_COLUMNS.index("device_h2d_ns")
_NAN = float("nan")
_PHASES = tuple(int(phase) for phase in Phase)

OTHER, DATA_WAIT, H2D, FORWARD, BACKWARD, OPTIMIZER, WAIT, SAVE, EPOCH_START, COMPILE, OBSERVER = (
    _PHASES
)


_COMPUTING = frozenset((FORWARD, BACKWARD, OPTIMIZER))


class RowLog:
    """Exclusive phase times of one thread, written as rows."""

    def __init__(self, path: Path, start_ns: int, on_fail: Callable[[BaseException], None]) -> None:
        self._table = Table(path, ROW_COLUMNS)
        self._cells = self._table.cells
        self._on_fail = on_fail
        self._start_ns = start_ns
        self._last = start_ns
        self._acc = [0] * (len(_PHASES) + 1)
        self._stack: list[int] = []
        self._current = OTHER
        self._base = OTHER  # what the tail of a forward returns to
        self._lead = -1
        self._claimed = False
        self.thread = get_ident()
        self.off = False
        self.rows = 0
        self.flags = 0
        self.samples = 0
        self.batches = 0
        self.inputs = 0
        self.forwards = 0
        self.backwards = 0

    def enter(self, phase: int) -> int:
        """Begin a phase. Returns the time, or 0 when this thread is not observed."""
        if self.off or (get_ident() != self.thread and not self._claim(phase)):
            return 0
        if phase in _COMPUTING:
            self._claimed = True
        now = monotonic_ns()
        self._acc[self._current] += now - self._last
        self._last = now
        try:
            if self._current == _TAIL and phase != WAIT:
                self._fold(FORWARD if phase in (FORWARD, BACKWARD) else self._base)
        except Exception as problem:
            self.fail(problem)
            return 0
        if self._lead < 0 and phase != OBSERVER:
            self._lead = now - self._start_ns
        self._stack.append(self._current)
        self._current = phase
        return now

    def leave(self, depth: int, tail: bool = False) -> int:
        """End the phase begun at stack depth `depth`. Returns the time.

        `tail`: a forward that recorded gradients; what follows is its own if backward comes next.
        """
        now = monotonic_ns()
        self._acc[self._current] += now - self._last
        self._last = now
        try:
            if self._current == _TAIL:
                self._fold(self._base)
        except Exception as problem:
            self.fail(problem)
        stack = self._stack
        if depth < len(stack):
            self._current = stack[depth]
            del stack[depth:]
        if tail and self._current != _TAIL:
            self._base = self._current
            self._current = _TAIL
        return now

    def observed(self) -> bool:
        """Whether phases of the calling thread are recorded, or would be if it computed now."""
        return not self.off and (get_ident() == self.thread or not self._claimed)

    @property
    def observing(self) -> bool:
        """Whether the observer itself is at work."""
        return self._current == OBSERVER

    @property
    def depth(self) -> int:
        """How many phases are open."""
        return len(self._stack)

    def end_row(self, kind: Kind, who: int = 0) -> int:
        """Write the row that `kind` ends. Returns its index, or -1 when nothing was written."""
        if self.off:
            return -1
        now = monotonic_ns()
        acc = self._acc
        acc[self._current] += now - self._last
        self._last = now
        if acc[_TAIL] or self._current == _TAIL:
            self._fold(self._base)
        index = self.rows
        try:
            if index >= self._table.rows:
                self._cells = self._table.grow()
        except OSError as problem:
            self.fail(problem)
            return -1
        cells = self._cells
        base = index * len(ROW_COLUMNS)
        cells[base + 1] = kind
        cells[base + 2] = who
        cells[base + 3] = self.flags
        for i in _PHASES:
            cells[base + _FIRST_PHASE + i] = acc[i]
            acc[i] = 0
        at = base + _AFTER_PHASES
        cells[at] = self._lead if self._lead >= 0 else now - self._start_ns
        cells[at + 1] = self.samples
        cells[at + 2] = self.batches
        cells[at + 3] = self.inputs
        cells[at + 4] = self.forwards
        cells[at + 5] = self.backwards
        for i in range(base + _LOSS, base + len(ROW_COLUMNS)):
            cells[i] = _NAN
        cells[base] = now  # last: a row with an end is whole
        self.rows = index + 1
        self._start_ns = now
        self._lead = -1
        self.samples = self.batches = self.inputs = self.forwards = self.backwards = 0
        return index

    def set_loss(self, row: int, loss: float) -> None:
        """The loss of a row, known late."""
        self._cells[row * len(ROW_COLUMNS) + _LOSS] = loss

    def set_device(self, row: int, phases_ns: list[float]) -> None:
        """Device times of a row in the order of the device columns, known late."""
        at = row * len(ROW_COLUMNS) + _DEVICE
        for i, value in enumerate(phases_ns):
            self._cells[at + i] = value

    def fail(self, problem: BaseException) -> None:
        """Switch off; the program goes on unobserved."""
        if not self.off:
            self.off = True
            self._on_fail(problem)

    def close(self) -> None:
        """The last row, and the file cut to size."""
        if not self.off:
            self.end_row(Kind.END)
            self.off = True
        self._cells = memoryview(b"").cast("d")
        self._table.close(self.rows)

    def _fold(self, phase: int) -> None:
        self._acc[phase] += self._acc[_TAIL]
        self._acc[_TAIL] = 0
        if self._current == _TAIL:
            self._current = self._base

    def _claim(self, phase: int) -> bool:
        """The first thread that computes is the one observed, whichever it is."""
        if self._claimed or phase not in _COMPUTING:
            return False
        self.thread = get_ident()
        self._stack.clear()
        self._current = OTHER
        return True
