"""The row log: where the observed thread's time goes, phase by phase.

The points run inside the program's own loop, where every function called and every object touched
costs. So they only append a code and a time to `events`; when an event ends a row, these are folded
into exclusive times per phase and one row of doubles goes into mapped memory. While most clocks are
off, rows end by an event alone, and many are folded at once. Any failure switches the log off.
"""

import sys
from array import array
from collections.abc import Callable
from math import isfinite
from pathlib import Path
from threading import get_ident
from time import monotonic_ns
from typing import Any, NamedTuple

from stepscope.probe.sites import is_thrown_by_program
from stepscope.record.row_log import (
    CLOCKED_COLUMNS,
    FLAG_OCCASION,
    FLAG_UNCLOCKED,
    ROW_COLUMNS,
    Phase,
    RowKind,
)
from stepscope.store.table import Table

# Between a forward and what follows it. A loss, if backward follows; before another forward it may
# as well be an environment, or a buffer the program samples: then it counts as forward no longer
# than the call itself took.
_TAIL = len(Phase)
_WIDTH = len(ROW_COLUMNS)
_FIRST_PHASE = ROW_COLUMNS.index("other_ns")
_AFTER_PHASES = _FIRST_PHASE + len(Phase)
_LOSS = ROW_COLUMNS.index("loss")
_DEVICE = ROW_COLUMNS.index("device_h2d_ns")
_UNKNOWN = array("d", [float("nan")] * (_WIDTH - _LOSS))
_NAN = float("nan")
_ZEROS = [0] * (_TAIL + 1)
_UNCLOCKED = [ROW_COLUMNS.index(name) for name in CLOCKED_COLUMNS]
_MOST_EVENTS = 4096
_PATIENCE_NS = 10_000_000
_AT_ONCE = 64  # first rows, written as they end

OTHER, DATA_WAIT, H2D, FORWARD, BACKWARD, OPTIMIZER, WAIT, SAVE, EPOCH_START, COMPILE, OBSERVER = (
    int(phase) for phase in Phase
)
_COMPUTING = frozenset((FORWARD, BACKWARD, OPTIMIZER))
_BETWEEN = frozenset((RowKind.SAVE, RowKind.EPOCH, RowKind.WINDOW, RowKind.END))

LEAVE = -1  # event: the innermost phase ends
LEAVE_TAIL = -2
"""Event: it ends, a forward that recorded gradients; what follows is its own until backward."""
_ROW = -3  # event: a row ends
_LEAVE_TO = -10  # and below: phases end until that many are open

# Events while most clocks are off. The first two come with a value instead of a time.
SAMPLES = 1 << 10
"""Event: a loader has delivered so many samples."""
LOSS = SAMPLES + 1
"""Event: a backward of this loss; a tuple: one that is not known yet; None: none to be read."""
MARKED = SAMPLES + 2
"""Event: the program says that a step has ended; it ends a row."""
STEPPED = SAMPLES + 3
"""Event: optimizer 0 has stepped, and ended a row. The codes after it are of the others."""


class LogState(NamedTuple):
    """What of the log tells the phase under way, as it was at one moment."""

    events: list[Any]
    open_phases: list[int]
    current: int
    base: int

    now: int = 0
    returned: int = 0
    """When the latest forward that recorded gradients did."""
    call_ns: int = 0
    """How long it took."""

    def phase(self) -> int:
        """That phase. What follows a forward that recorded gradients counts as forward for as long
        as the forward took: what comes next is not known yet."""
        events, stack, current, base, now, returned, call_ns = self
        begun = 0
        pairs = iter(events[: len(events) & ~1])
        for code, when in zip(pairs, pairs, strict=True):
            if code >= SAMPLES or code == _ROW:
                continue
            if current == _TAIL and code != WAIT:
                current = base
            if code >= 0:
                begun = when if code == FORWARD else begun
                stack.append(current)
                current = code
                continue
            depth = len(stack) - 1 if code > _LEAVE_TO else _LEAVE_TO - code
            if 0 <= depth < len(stack) and (code != LEAVE_TAIL or current == FORWARD):
                current = stack[depth]
                del stack[depth:]
            if code == LEAVE_TAIL and current != _TAIL:
                base, current = current, _TAIL
                returned, call_ns = when, when - begun if begun else call_ns
        if current != _TAIL:
            return current
        return FORWARD if now - returned <= call_ns else base


class RowLog:
    """Exclusive phase times of one thread, written as rows. `events` alternates codes (a phase
    begins, LEAVE, LEAVE_TAIL) and their times, both in one call: the program's signal handlers may
    raise between two. Whoever adds to it directly has checked `off` and `thread`, and calls `fold`
    where no row may end for long."""

    def __init__(self, path: Path, start_ns: int, on_fail: Callable[[BaseException], None]) -> None:
        self._table = Table(path, ROW_COLUMNS)
        self._cells = self._table.cells
        self._on_fail = on_fail
        self._start_ns = start_ns
        self._last = start_ns
        self._acc = [0] * (_TAIL + 1)
        # Rows not written yet: kind, who, flags, what was counted in them, loss.
        self._ended: list[tuple[int, int, int, tuple[int, ...], float]] = []
        self._written = 0
        self._written_ns = 0
        self.open_phases: list[int] = []
        self.current = OTHER
        self.base = OTHER  # what the tail of a forward returns to
        self.returned = 0  # when the latest forward that recorded gradients did,
        self.call_ns = 0  # and how long it took, without what other phases had of it
        self._lead = -1
        self._claimed = False
        self.events: list[Any] = []
        self.thread = get_ident()
        self.off = False
        self.unclocked = False
        """Whether most clocks are off: nothing but the events from `SAMPLES` on, waits for data and
        what is rare is noted."""
        self._partly = False  # whether they were in the row under way
        self.incomplete = False
        """Whether some clocks could not be put back where they were: all rows are unclocked."""
        self.folded = 0
        """How many events have become rows: two for each begin and end of a phase."""
        self.occasion = False
        """Whether rows that are clocked do not stand for those that are not."""
        self.stepped: list[tuple[int, int]] = []
        """Code and time of each row that ended while most clocks were off."""
        self.late: list[tuple[int, Any]] = []
        """Rows and their losses that are still to come, likewise."""
        self.observing = False
        """Whether the observer itself is at work: its own waits are not the program's."""
        self.rows = 0
        self.flags = 0
        self.other_ns = self.seen_ns = 0
        """Of rows that were clocked: in no phase, and in all; checkpoints and the like left out."""
        self.samples = 0
        self.batches = 0
        self.inputs = 0
        self.forwards = 0
        self.backwards = 0
        self.losses: list[float] = []
        self.not_finite = 0
        """Rows whose loss is known and not finite."""

    def enter(self, phase: int) -> int:
        """Begin a phase. Returns the time, or 0 when this thread is not observed."""
        if self.off or (get_ident() != self.thread and not self.claim(phase)):
            return 0
        now = monotonic_ns()
        self.events += (phase, now)
        if len(self.events) > _MOST_EVENTS:
            self.fold()
        return now

    def leave(self, depth: int | None = None, tail: bool = False) -> int:
        """End the innermost phase, or all but the outermost `depth` ones. Returns the time."""
        now = monotonic_ns()
        self.events += (LEAVE if depth is None else _LEAVE_TO - depth, now)
        if tail:
            self.events += (LEAVE_TAIL, now)
        return now

    def observed(self) -> bool:
        """Whether phases of the calling thread are recorded, or would be if it computed now."""
        return not self.off and (get_ident() == self.thread or not self._claimed)

    def claim(self, phase: int) -> bool:
        """The first thread that computes is the one observed, whichever it is, until it ends: then
        the next one that computes."""
        if phase not in _COMPUTING or (self._computed() and self.thread in sys._current_frames()):
            return False
        self.fold()
        self._claimed = True
        self.thread = get_ident()
        self.open_phases.clear()
        self.current = OTHER
        return True

    def _computed(self) -> bool:
        """Whether the observed thread has computed; asked by others, so nothing is folded here."""
        return self._claimed or not _COMPUTING.isdisjoint(self.events[::2])

    @property
    def depth(self) -> int:
        self.fold()
        return len(self.open_phases)

    def fold(self) -> None:
        """Turn the events so far into times per phase, and write the rows that ended."""
        if self.off:
            return
        try:
            self._fold()
        except Exception as problem:
            self.fail(problem)

    def _fold(self) -> None:
        """What the program's signal handlers raise here ends it early; the next one goes on."""
        acc, stack, current, last = self._acc, self.open_phases, self.current, self._last
        pairs = iter(self.events[: len(self.events) & ~1])  # the last code may have no time yet
        done = 0
        try:
            for code, now in zip(pairs, pairs, strict=True):
                done += 2
                if SAMPLES <= code <= LOSS:
                    self._note(code, now)
                    continue
                acc[current] += now - last
                last = now
                if acc[_TAIL] and code != WAIT and (current == _TAIL or code == _ROW):
                    tail, acc[_TAIL] = acc[_TAIL], 0
                    most = {BACKWARD: tail, FORWARD: self.call_ns}.get(code, 0)
                    acc[FORWARD] += min(tail, most)
                    acc[self.base] += tail - min(tail, most)
                if current == _TAIL and code != WAIT:
                    current = self.base
                if code >= MARKED:
                    self._end_unclocked(code, now)
                elif code >= 0:
                    if self._lead < 0 and code != OBSERVER:
                        self._lead = now - self._start_ns
                    if code in _COMPUTING:
                        self._claimed = True
                    if code == FORWARD:
                        self.call_ns = -acc[FORWARD]
                    stack.append(current)
                    current = code
                elif code == _ROW:
                    self._write(now)
                else:
                    depth = len(stack) - 1 if code > _LEAVE_TO else _LEAVE_TO - code
                    if 0 <= depth < len(stack) and (code != LEAVE_TAIL or current == FORWARD):
                        current = stack[depth]
                        del stack[depth:]
                    if code == LEAVE_TAIL and current != _TAIL:
                        self.call_ns = max(0, self.call_ns + acc[FORWARD])
                        self.returned = now
                        self.base = current
                        current = _TAIL
        finally:
            self.current, self._last = current, last
            self.folded += done
            del self.events[:done]
        self._ended.clear()

    def _note(self, code: int, value: Any) -> None:
        if code == SAMPLES:
            self.samples += value
            self.batches += 1
            return
        self.backwards += 1
        if type(value) is float:
            self.losses.append(value)
        elif type(value) is tuple:
            self.late.append((self._written, value))

    def _end_unclocked(self, code: int, now: int) -> None:
        """A row has ended while most clocks were off."""
        kind, who = (RowKind.MARK, 0) if code == MARKED else (RowKind.STEP, code - STEPPED)
        self.rows = self._written + 1
        self._ended.append(self._ended_row(kind, who))
        self._write(now)
        self._ended.clear()
        self.stepped.append((code, now))

    def _ended_row(self, kind: int, who: int) -> tuple[int, int, int, tuple[int, ...], float]:
        """What is kept of the row that ends; the next one begins."""
        flags = self.flags
        if (self._partly or self.incomplete) and kind != RowKind.END:
            flags |= FLAG_UNCLOCKED
        elif self.occasion:
            flags |= FLAG_OCCASION
        self._partly = self.unclocked
        counts = self.samples, self.batches, self.inputs, self.forwards, self.backwards
        loss = sum(self.losses) / len(self.losses) if self.losses else _NAN
        self.samples = self.batches = self.inputs = self.forwards = self.backwards = 0
        if self.losses:
            self.not_finite += not isfinite(loss)
            self.losses.clear()
        return kind, who, flags, counts, loss

    def clock(self, on: bool) -> None:
        """Most clocks go on or off, between two rows or in one, which then counts as unclocked."""
        self.fold()
        between = self._lead < 0 and not any(self._acc)
        self.unclocked = not on
        self._partly = not (on and between)

    @property
    def is_whole(self) -> bool:
        """Whether all clocks were on in all of the row under way."""
        return not self._partly

    def end_row(self, kind: int, who: int = 0) -> int:
        """End a row. Returns its index, or -1 when nothing is written any more. Rows shorter than
        `_PATIENCE_NS` are written several at a time: that is what a program that is killed can lose
        of its last moments."""
        if self.off:
            return -1
        now = monotonic_ns()
        index = self.rows
        self.rows = index + 1
        self._ended.append(self._ended_row(kind, who))
        self.events += (_ROW, now)
        if index < _AT_ONCE or now - self._written_ns > _PATIENCE_NS:
            self._written_ns = now
            self.fold()
        return -1 if self.off else index

    def _write(self, now: int) -> None:
        """Write a row that has ended. Raises OSError on a full disk."""
        index = self._written
        if index >= self._table.rows:
            self._cells = self._table.grow()
        kind, who, flags, counts, loss = self._ended[index - self.rows]
        lead = self._lead if self._lead >= 0 else now - self._start_ns
        at = index * _WIDTH
        cells = self._cells
        row = (kind, who, flags, *self._acc[:_TAIL], lead, *counts)
        cells[at + 1 : at + _LOSS] = array("d", row)
        cells[at + _LOSS : at + _WIDTH] = _UNKNOWN
        cells[at + _LOSS] = loss
        if flags & FLAG_UNCLOCKED:
            for column in _UNCLOCKED:
                cells[at + column] = _NAN
        elif kind not in _BETWEEN:
            self.other_ns += self._acc[OTHER]
            self.seen_ns += sum(self._acc)
        cells[at] = now  # last: a row with an end is whole
        self._acc[:] = _ZEROS
        self._written = index + 1
        self._start_ns = now
        self._lead = -1

    def set_loss(self, row: int, loss: float) -> None:
        """The loss of a row, known late."""
        if row >= self._written:
            self.fold()
        self._cells[row * _WIDTH + _LOSS] = loss
        self.not_finite += not isfinite(loss)

    def set_device(self, row: int, phases_ns: list[float]) -> None:
        """Device times of a row in the order of the device columns, known late."""
        if row >= self._written:
            self.fold()
        at = row * _WIDTH + _DEVICE
        self._cells[at : at + len(phases_ns)] = array("d", phases_ns)

    def fail(self, problem: BaseException) -> None:
        """Switch off; the program goes on unobserved. What the program itself threw is none of our
        faults: it is raised again."""
        if is_thrown_by_program(problem):
            raise problem
        if not self.off:
            self.off = True
            self.unclocked = False
            self._on_fail(problem)

    def close(self) -> None:
        """The last row, and the file cut to size."""
        if not self.off:
            self.end_row(RowKind.END)
            self.fold()
            self.off = True
            self.unclocked = False
        self._cells = memoryview(b"").cast("d")
        self._table.close(self._written)
