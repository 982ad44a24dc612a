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
_NONE: Final[dict[int, Any]] = {}
FREE: Final = 0
TAKEN: Final = 1
SENT: Final = 2
GONE: Final = 3
"""A slot's states: in a worker until it is sent, in the program's process until it is free; and
gone where the worker wants memory of another size, or a process beside these two may use it."""


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
        self._slots = [one for one in self._slots if self._state(one) != GONE]
        free = [place for place in range(len(self._slots)) if self._is_free(place)]
        fitting = [place for place in free if self._slots[place].nbytes() == size + _FOOT]
        if fitting:
            self._slots.append(self._slots.pop(fitting[0]))
        else:
            self._make_room(free)
            self._slots.append(UntypedStorage._new_shared(size + _FOOT))
        storage = self._slots[-1]
        foot = _Foot.from_address(storage.data_ptr() + size)
        foot.state, foot.pid, foot.mark = TAKEN, self._pid, self._mark
        return storage

    def sent(self, storage: Any) -> None:
        """A storage is on its way to another process."""
        foot = foot_of(storage, self._mark)
        if foot is not None:
            foot.state = SENT

    def _state(self, storage: Any) -> int:
        foot = foot_of(storage, self._mark)
        return GONE if foot is None else int(foot.state)

    def _is_free(self, place: int) -> bool:
        """In this order: what nobody has any more has been marked by whoever sent it."""
        return _unused(self._slots, place) and self._state(self._slots[place]) in (FREE, TAKEN)

    def _make_room(self, free: list[int]) -> None:
        """One of another size goes, the oldest: so there are no more than are on their way."""
        if free:
            storage = self._slots.pop(free[0])  # mapped as long as it has a name
            foot = foot_of(storage, self._mark)
            if foot is not None:
                foot.state = GONE
        elif len(self._slots) == _MOST:
            del self._slots[0]


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
        if foot is None or foot.state != SENT:  # it has been elsewhere
            return
        with self._lock:
            self._release()
            pid, address = foot.pid, storage.data_ptr()
            slots = self._slots.setdefault(pid, OrderedDict())
            for other in [other for other in slots if _foot_at(slots, other).state == GONE]:
                del slots[other]
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
            for pid in [pid for pid, slots in self._slots.items() if address in slots]:
                self._let_go(pid, address)

    def forked(self) -> None:
        """Another process may go on reading what is in use here now."""
        with self._lock:
            for pid, address in [*self._busy]:
                self._let_go(pid, address)

    def _let_go(self, pid: int, address: int) -> None:
        slots = self._slots.get(pid, _NONE)
        if address in slots:
            _foot_at(slots, address).state = GONE
            del slots[address]
        self._busy.discard((pid, address))

    def _release(self) -> None:
        """Tell workers of what is not in use any more."""
        for pid, address in [*self._busy]:
            slots = self._slots.get(pid, _NONE)
            known = address in slots
            if known and not _unused(slots, address):
                continue
            if known:
                _foot_at(slots, address).state = FREE
            self._busy.discard((pid, address))


def _foot_at(slots: Any, address: int) -> _Foot:
    return _Foot.from_address(address + slots[address].nbytes() - _FOOT)
