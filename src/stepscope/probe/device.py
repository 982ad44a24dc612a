"""What the device did, without ever waiting for it.

CUDA events are recorded where phases begin, kept in a pool, and polled; a loss is copied into
pinned memory by the stream itself and read when an event behind the copy has passed. On a
program that runs on the CPU only, losses are read at once and there is nothing to time.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stepscope.probe.log import BACKWARD, FORWARD, H2D, OPTIMIZER, RowLog

_ORDER = {H2D: 0, FORWARD: 1, BACKWARD: 2, OPTIMIZER: 3}
_OTHER = 4
_MOST_PENDING = 512  # rows; a device further behind than that is not timed


@dataclass(slots=True)
class _Pinned:
    """Pinned scalars of one dtype, and which of them are free."""

    views: list[Any]
    free: list[int]


_Copy = tuple[_Pinned, int]
_Read = tuple[_Copy, Callable[[float], Any]]


@dataclass(slots=True)
class _Pending:
    row: int
    first: Any
    marks: list[tuple[Any, int]]
    losses: list[_Copy]
    reads: list[_Read]
    ends_here: bool = False  # no row after it begins with its last mark


class DeviceClock:
    """Marks on the current CUDA stream and values that arrive late."""

    def __init__(self, log: RowLog) -> None:
        self._log = log
        self._pool: list[Any] = []
        self._marks: list[tuple[Any, int]] = []
        self._first: Any = None
        self._phase = _OTHER
        self._pending: deque[_Pending] = deque()
        self._losses: list[_Copy] = []
        self._reads: list[_Read] = []
        self._pinned: dict[Any, _Pinned] = {}
        self.capturing = False
        self.active = False

    def activate(self) -> None:
        """The program has begun to use CUDA."""
        from torch.cuda import Event, current_device

        self._new_event = Event
        self._current_device = current_device
        self.active = True

    def mark(self, phase: int) -> None:
        """A phase begins: what the stream does up to here belongs to the one before."""
        if not self.active or self.capturing:
            return
        slot = _ORDER[phase]
        if slot == self._phase:
            return
        try:
            self._record()
        except RuntimeError:  # the device is in trouble; the program will hear of it by itself
            self.active = False
        self._phase = slot

    def loss(self, value: Any) -> None:
        """A scalar was backpropagated: kept for the row under way, except in a graph capture."""
        if value.is_cpu:
            self._log.losses.append(value.item())
        elif (copy := self._copy(value)) is not None:
            self._losses.append(copy)

    def late(self, value: Any, receive: Callable[[float], Any]) -> None:
        """Hand a scalar to `receive` once the device has passed it."""
        if value.is_cpu:
            receive(value.item())
        elif (copy := self._copy(value)) is not None:
            self._reads.append((copy, receive))

    def _copy(self, value: Any) -> _Copy | None:
        """Have the stream copy a scalar into pinned memory; None where that cannot be."""
        if not self.active or self.capturing or not self._is_here(value):
            return None
        value = value.detach()
        pinned = self._pinned.get(value.dtype)
        if pinned is None:
            pinned = self._pinned[value.dtype] = self._allocate(value.dtype)
        if not pinned.free:
            return None
        slot = pinned.free.pop()
        pinned.views[slot].copy_(value, non_blocking=True)
        return pinned, slot

    def end_row(self, row: int) -> None:
        """A row ended: its marks and losses are settled as the device passes them."""
        if not self.active or self.capturing:
            return
        if len(self._pending) < _MOST_PENDING:
            self._record()
            self._pending.append(_Pending(row, self._first, self._marks, self._losses, self._reads))
            self._first = self._marks[-1][0]
        else:
            self._free([*self._losses, *(copy for copy, _ in self._reads)])
            self._pool.extend(event for event, _ in self._marks)
            self._pending[-1].ends_here = True
            self._first = None
        self._marks, self._losses, self._reads = [], [], []
        self._phase = _OTHER
        self.poll()

    def poll(self) -> None:
        """Settle the rows the device has passed."""
        pending = self._pending
        while pending and pending[0].marks[-1][0].query():
            self._settle(pending.popleft())

    def finish(self) -> None:
        """The program is over: what is still under way may be waited for now."""
        if self._pending and not self.capturing:
            self._pending[-1].marks[-1][0].synchronize()
            self.poll()

    def _record(self) -> None:
        event = self._pool.pop() if self._pool else self._new_event(enable_timing=True)
        event.record()
        self._marks.append((event, self._phase))

    def _settle(self, done: _Pending) -> None:
        if done.losses and done.row >= 0:
            values = [float(pinned.views[slot]) for pinned, slot in done.losses]
            self._log.set_loss(done.row, sum(values) / len(values))
        for (pinned, slot), receive in done.reads:
            receive(float(pinned.views[slot]))
        self._free([*done.losses, *(copy for copy, _ in done.reads)])
        if done.first is not None and done.row >= 0:
            phases = [0.0] * 5
            before = done.first
            for event, phase in done.marks:
                phases[phase] += before.elapsed_time(event) * 1e6
                before = event
            self._log.set_device(done.row, phases)
        if done.first is not None:
            self._pool.append(done.first)
        marks = done.marks if done.ends_here else done.marks[:-1]
        self._pool.extend(event for event, _ in marks)

    def _free(self, copies: list[_Copy]) -> None:
        for pinned, slot in copies:
            pinned.free.append(slot)

    def _is_here(self, value: Any) -> bool:
        """Whether a tensor is on the device whose stream is timed."""
        return bool(value.is_cuda) and value.device.index == self._current_device()

    def _allocate(self, dtype: Any) -> _Pinned:
        import torch

        buffer = torch.empty(4096, dtype=dtype, pin_memory=True)
        return _Pinned(list(buffer.unbind()), list(range(4096)))
