"""Shared memory that workers hand batches over in, used again instead of made anew.

A worker writes each batch into fresh shared memory, page by page; the program's process maps it,
faults its pages in, and gives them back to the system: for large batches that takes longer than
copying them. Here a worker keeps what it has handed over, and the program's process tells it, by a
word behind the batch, when nothing there refers to it any more.
"""

import ctypes
import os
import sys
from collections import OrderedDict
from threading import RLock
from typing import Any, Final

_FOOT: Final = 64  # bytes behind a batch
_LEAST: Final = 1 << 18  # bytes of a batch, below which it is not worth it
_MOST: Final = 64  # slots of a worker
FREE: Final = 0
TAKEN: Final = 1
SENT: Final = 2
"""A slot's states: in a worker until it is sent, in the program's process until it is free."""


class _Foot(ctypes.Structure):
    _fields_ = (("state", ctypes.c_uint64), ("pid", ctypes.c_uint64), ("mark", ctypes.c_uint64))


def foot_of(storage: Any, mark: int) -> _Foot | None:
    """What stands behind a batch in a slot; None where it is other memory."""
    if storage.nbytes() < _LEAST + _FOOT:
        return None
    foot = _Foot.from_address(storage.data_ptr() + storage.nbytes() - _FOOT)
    return foot if foot.mark == mark else None


def _references(slots: Any, place: int) -> int:
    return sys.getrefcount(slots[place])


_ALONE: Final = _references([object()], 0)


def _unused(slots: Any, place: int) -> bool:
    """Whether nobody else has a storage: no tensor, and no other name for it."""
    from torch._C import _storage_Use_Count as use_count

    return _references(slots, place) == _ALONE and int(use_count(slots[place]._cdata)) == 1


class Slots:
    """What one worker keeps. `mark` is known to its program alone."""

    def __init__(self, mark: int) -> None:
        self._mark = mark
        self._pid = 0
        self._slots: list[Any] = []

    def take(self, size: int) -> Any:
        """Shared memory for so many bytes, a few more behind them; None: make it as usual."""
        from torch import UntypedStorage

        if size < _LEAST:
            return None
        if self._pid != os.getpid():
            self._pid, self._slots = os.getpid(), []
        for place in range(len(self._slots)):
            if self._fits(place, size) and _unused(self._slots, place):
                self._slots.append(self._slots.pop(place))
                break
        else:
            new = UntypedStorage._new_shared(size + _FOOT)
            self._slots = [*self._slots[1 - _MOST :], new]
        storage = self._slots[-1]
        foot = _Foot.from_address(storage.data_ptr() + size)
        foot.state, foot.pid, foot.mark = TAKEN, self._pid, self._mark
        return storage

    def sent(self, storage: Any) -> None:
        """A storage is on its way to another process."""
        foot = foot_of(storage, self._mark)
        if foot is not None:
            foot.state = SENT

    def _fits(self, place: int, size: int) -> bool:
        storage = self._slots[place]
        foot = foot_of(storage, self._mark)
        return storage.nbytes() == size + _FOOT and foot is not None and foot.state != SENT


class Received:
    """What the program's process has got from workers; batches may arrive on several threads."""

    def __init__(self, mark: int) -> None:
        self._mark = mark
        self._lock = RLock()  # a collection inside may end an iterator, which comes to `forget`
        self._slots: dict[int, OrderedDict[int, Any]] = {}  # of each worker, by address
        self._busy: set[tuple[int, int]] = set()

    def came(self, storage: Any) -> None:
        """A storage has arrived. Kept mapped, it is found there when it comes again."""
        foot = foot_of(storage, self._mark)
        if foot is None:
            return
        with self._lock:
            self._release()
            pid, address = foot.pid, storage.data_ptr()
            slots = self._slots.setdefault(pid, OrderedDict())
            slots[address] = storage
            slots.move_to_end(address)
            self._busy.add((pid, address))
            while len(slots) > _MOST:
                self._busy.discard((pid, slots.popitem(last=False)[0]))

    def any_of(self, pids: list[int]) -> bool:
        """Whether one of these workers has handed over such memory."""
        return any(pid in self._slots for pid in pids)

    def forget(self, pids: list[int]) -> None:
        """Workers have ended."""
        with self._lock:
            for pid in pids:
                for address in self._slots.pop(pid, ()):
                    self._busy.discard((pid, address))

    def shared(self, storage: Any) -> None:
        """A storage is handed on to another process, which nothing here knows about: it is not
        used again."""
        with self._lock:
            address = storage.data_ptr()
            for pid, slots in self._slots.items():
                if slots.pop(address, None) is not None:
                    self._busy.discard((pid, address))

    def forked(self) -> None:
        """Another process may go on reading what is in use here now."""
        with self._lock:
            for pid, address in self._busy:
                self._slots[pid].pop(address, None)
            self._busy.clear()

    def _release(self) -> None:
        """Tell workers of what is not in use any more."""
        for pid, address in [*self._busy]:
            if _unused(self._slots[pid], address):
                _Foot.from_address(
                    self._slots[pid][address].nbytes() + address - _FOOT
                ).state = FREE
                self._busy.discard((pid, address))
