"""What the device did, without ever waiting for it, and within a budget.

CUDA events are recorded where phases begin, kept in a pool, and polled. What that costs is
measured as it goes, and only as many rows are timed as keep it to a small share of the program's
time. Losses stay on the device for some rows, then the stream itself copies them into pinned
memory, and they are read when an event behind the copy has passed. Losses on the CPU are read at
once.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic_ns
from typing import Any

import torch
from torch._C import TensorBase
from torch.cuda import Event, current_device  # before the program may put its own there

from stepscope.probe.row_log import BACKWARD, FORWARD, H2D, OPTIMIZER, WAIT, RowLog
from stepscope.probe.unseen import unrecorded
from stepscope.record.problems import is_device_error

_ORDER = {H2D: 0, FORWARD: 1, BACKWARD: 2, OPTIMIZER: 3}
_OTHER = 4
_BUDGET = 0.003  # of the program's time, for timing rows
_ALL_OF_FIRST = 16  # rows timed whatever it costs
_RAREST = 64  # at least one row in so many is timed
_MOST_PENDING = 64  # timed rows, and copies; a device further behind is left alone
_UNSENT_ROWS = 128
_UNSENT_NS = 200_000_000
_POLL_NS = 5_000_000
_ROOM = 256  # losses in one copy
read_item = (
    TensorBase.item
)  # what the program may have put in its place on Tensor is not ours to call


@dataclass(slots=True)
class _Timed:
    """A row whose marks the device has yet to pass: each event ends the phase beside it."""

    row: int
    first: Any
    marks: list[tuple[Any, int]]
    ends_here: bool = False  # the next row is not timed, and does not begin with its last mark


@dataclass(slots=True)
class _Copied:
    """Losses on their way into pinned memory: for each row, how many of them are its own."""

    event: Any
    buffer: Any
    rows: list[tuple[int, int]]
    receive: Callable[[float], Any] | None = None


class DeviceClock:
    """Marks on the current CUDA stream and values that arrive late."""

    def __init__(self, log: RowLog) -> None:
        self._log = log
        self._pool: list[Any] = []
        self._buffers: dict[Any, list[Any]] = {}
        self._timed: deque[_Timed] = deque()
        self._copied: deque[_Copied] = deque()
        self._unsent: list[tuple[int, list[tuple[Any, int]]]] = []  # rows and losses on the device
        self._losses: list[tuple[Any, int]] = []  # of the row under way, with their versions
        self._marks: list[tuple[Any, int]] = []
        self._first: Any = None
        self._phase = _OTHER
        self.timing = False  # whether the row under way is timed
        self._untimed_left = 0
        self._seen = 0
        self._spent_ns = 0
        self._row_ns = self._since_ns = self._polled_ns = 0
        self._paused = False
        self.every = False
        """Whether every row is timed: those there are have a budget of their own."""
        self.capturing = False
        self.active = False  # whether the program uses CUDA
        self.failed = False  # whether it can no longer, as after an assertion on the device
        self.watched: Callable[[], bool] = lambda: False
        """Whether a profiler of the program's would see what is asked of the device."""

    def activate(self) -> None:
        """The program has begun to use CUDA."""
        self.active = not self.failed

    def failed_by(self, problem: Exception) -> bool:
        """Whether a problem is one of the device, which the program meets too: then nothing is
        asked of it any more."""
        if not is_device_error(type(problem).__name__, str(problem)):
            return False
        self.failed = True
        self.active = self.timing = False
        return True

    def mark(self, phase: int) -> None:
        """A phase begins: what the stream does up to here belongs to the one before."""
        if not self.timing or self.capturing:
            return
        slot = _ORDER[phase]
        if slot == self._phase or self.watched():
            return
        began = monotonic_ns()
        try:
            self._marks.append((self._record(), self._phase))
        except RuntimeError as problem:
            if not self.failed_by(problem):
                raise
        self._phase = slot
        self._spent_ns += monotonic_ns() - began

    def loss(self, value: Any) -> None:
        """A scalar was backpropagated: kept for the row under way, except in a graph capture."""
        if value.is_cpu:
            self._log.losses.append(read_item(value))
        elif self.active and not self.capturing and self._is_here(value):
            value = value.detach()
            self._losses.append((value, value._version))

    def late(self, value: Any, receive: Callable[[float], Any]) -> None:
        """Hand a scalar to `receive` once the device has passed it."""
        if value.is_cpu:
            receive(read_item(value))
        elif self.active and not self.capturing and self._is_here(value):
            self._copy([value.detach()], [(-1, 1)], receive)

    def take(self, losses: list[tuple[int, Any]]) -> None:
        """Rows that have ended, and losses of theirs with the versions they had."""
        if not self.active or self.capturing:
            return
        now = monotonic_ns()
        for row, one in losses:
            if not (one[0].is_floating_point() and self._is_here(one[0])):
                continue
            if not self._unsent:
                self._since_ns = now
            if self._unsent and self._unsent[-1][0] == row:
                self._unsent[-1][1].append(one)
            else:
                self._unsent.append((row, [one]))
        self._move_on(now)

    def pause(self) -> None:
        """No row is timed until `resume`. The row under way has just begun."""
        self._paused = True
        self.every = False
        if self.timing:
            self.timing = False
            last = self._timed[-1] if self._timed else None
            if last is not None and last.marks[-1][0] is self._first:
                last.ends_here = True
            else:
                self._pool.append(self._first)

    def resume(self, at_once: bool) -> None:
        """Rows are timed again, this one too where it has just begun."""
        self._paused = False
        self.every = True
        self._untimed_left = 0
        if at_once and self.active and not self.capturing and len(self._timed) < _MOST_PENDING:
            self._begin_timing(None)

    def end_row(self, row: int) -> None:
        """A row ended: its marks and losses are settled as the device passes them."""
        if not self.active or self.capturing:
            self._losses.clear()
            return
        now = monotonic_ns()
        if self._losses:
            if not self._unsent:
                self._since_ns = now
            self._unsent.append((row, self._losses))
            self._losses = []
        if self.watched():
            self._stand_aside()
            return
        self._time_rows(row, now)
        self._move_on(now)
        self._row_ns = now

    def _move_on(self, now: int) -> None:
        """Send the losses of some rows; settle what the device has passed."""
        unsent = self._unsent
        if unsent and (len(unsent) >= _UNSENT_ROWS or now - self._since_ns > _UNSENT_NS):
            self._send()
        if now - self._polled_ns > _POLL_NS:
            self._polled_ns = now
            self.poll()

    def poll(self) -> None:
        """Settle what the device has passed."""
        while self._timed and self._timed[0].marks[-1][0].query():
            self._settle(self._timed.popleft())
        while self._copied and self._copied[0].event.query():
            self._read(self._copied.popleft())

    def catch_up(self) -> bool:
        """The program is over, or told to end: what is still under way may be waited for now. That
        wait is part of the last row: by so much the host was ahead of the device. False where there
        is nothing to wait for."""
        if not self.active or self.capturing or not self._seen:
            return False
        self._log.enter(WAIT)
        self._record().synchronize()
        self._log.leave()
        return True

    def finish(self) -> None:
        """The program is over: wait for the device, and settle all that it has passed."""
        try:
            if not self.catch_up():
                return
            if self._unsent:
                self._send()
            if self._timed:
                self._timed[-1].marks[-1][0].synchronize()
            if self._copied:
                self._copied[-1].event.synchronize()
            self.poll()
        except RuntimeError as problem:
            if not self.failed_by(problem):
                raise

    def _stand_aside(self) -> None:
        """Nothing is asked of the device while the program profiles it; the latest losses wait."""
        self._seen += 1
        if self.timing:
            self.timing = False
            self._pool.extend(event for event, _ in self._marks)
            self._marks = []
            before = self._timed[-1] if self._timed else None
            if before is not None and before.marks[-1][0] is self._first:
                before.ends_here = True
            else:
                self._pool.append(self._first)
        del self._unsent[:-_UNSENT_ROWS]

    def _time_rows(self, row: int, now: int) -> None:
        """End the timed row, if this was one, and decide whether the next one is."""
        last = None
        if self.timing:
            last = self._record()
            self._marks.append((last, self._phase))
            self._timed.append(_Timed(row, self._first, self._marks))
            self._marks = []
            self._spent_ns += monotonic_ns() - now
            row_ns = now - self._row_ns
            self._untimed_left = 0
            budgeted = self._seen >= _ALL_OF_FIRST and not self.every
            if budgeted and row_ns > 0:  # to make up for what timing it cost
                self._untimed_left = min(_RAREST - 1, int(self._spent_ns / (_BUDGET * row_ns)))
            self._spent_ns = 0
        self._seen += 1
        if self._paused or self._untimed_left > 0 or len(self._timed) >= _MOST_PENDING:
            self._untimed_left -= 1
            if self.timing:
                self._timed[-1].ends_here = True
            self.timing = False
            return
        self._begin_timing(last)

    def _begin_timing(self, last: Any) -> None:
        """The row that begins is timed, from the event of the one before on if there is one."""
        self._first = last if last is not None else self._record()
        self.timing = True
        self._phase = _OTHER

    def _record(self) -> Any:
        event = self._pool.pop() if self._pool else Event(enable_timing=True)
        event.record()
        return event

    def _settle(self, done: _Timed) -> None:
        began = monotonic_ns()
        phases = [0.0] * 5
        before = done.first
        for event, phase in done.marks:
            phases[phase] += before.elapsed_time(event) * 1e6
            before = event
        if done.row >= 0:
            self._log.set_device(done.row, phases)
        self._pool.append(done.first)
        marks = done.marks if done.ends_here else done.marks[:-1]
        self._pool.extend(event for event, _ in marks)
        self._spent_ns += monotonic_ns() - began

    def _send(self) -> None:
        """Have the stream copy the unsent losses, of each row those nobody has written to since."""
        rows: list[tuple[int, int]] = []
        values: list[Any] = []
        for row, losses in self._unsent:
            kept = [value for value, version in losses if value._version == version]
            if values and len(values) + len(kept) > _ROOM:
                self._copy(values, rows, None)
                rows, values = [], []
            if 0 < len(kept) <= _ROOM:
                rows.append((row, len(kept)))
                values += kept
        self._unsent.clear()
        if values:
            self._copy(values, rows, None)

    def _copy(
        self, values: list[Any], rows: list[tuple[int, int]], receive: Callable[[float], Any] | None
    ) -> None:
        if len(self._copied) >= _MOST_PENDING:
            return
        with unrecorded(), torch.inference_mode(False):
            dtypes = {value.dtype for value in values}
            dtype = dtypes.pop() if len(dtypes) == 1 else torch.float64
            values = [value if value.dtype == dtype else value.to(dtype) for value in values]
            free = self._buffers.setdefault(dtype, [])
            buffer = free.pop() if free else self._pinned(dtype)
            scalars = [value.reshape(()) if value.dim() else value for value in values]
            buffer[: len(values)].copy_(torch.stack(scalars), non_blocking=True)
        self._copied.append(_Copied(self._record(), buffer, rows, receive))

    @staticmethod
    def _pinned(dtype: Any) -> Any:
        return torch.empty(_ROOM, dtype=dtype, device="cpu", pin_memory=True)

    def _read(self, done: _Copied) -> None:
        with unrecorded():
            values = done.buffer[: sum(count for _, count in done.rows)].tolist()
            self._buffers[done.buffer.dtype].append(done.buffer)
        at = 0
        for row, count in done.rows:
            mean = sum(values[at : at + count]) / count
            at += count
            if done.receive is not None:
                done.receive(mean)
            elif row >= 0:
                self._log.set_loss(row, mean)
        self._pool.append(done.event)

    def _is_here(self, value: Any) -> bool:
        """Whether a tensor is on the device whose stream is timed."""
        return bool(value.is_cuda) and value.get_device() == current_device()
