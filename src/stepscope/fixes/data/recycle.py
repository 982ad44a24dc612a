"""Have workers hand batches over in shared memory that was used before, instead of fresh memory for
each.

A worker writes each batch into fresh shared memory, page by page; the program's process maps it,
faults its pages in, and gives them back to the system: for large batches that takes longer than
copying them. Here a worker keeps the memory it handed over, and the program's process signals, in a
word after the batch, when nothing refers to it any more.
"""

import ctypes
import os
import sys
from collections import OrderedDict
from collections.abc import MutableMapping
from dataclasses import replace
from multiprocessing import get_start_method
from threading import RLock
from types import CodeType
from typing import Any, Final
from weakref import WeakKeyDictionary, WeakMethod, finalize

from stepscope.analyze.replay.known import Changes, KnownProgram
from stepscope.fixes.applicability import ObservedProgram, ProgramPart, unsuitable
from stepscope.fixes.base import Fix, FixContext, FixKind, LiveProgram, SourceEdit
from stepscope.fixes.inspect.loaders import HAS_NO_WORKERS, LoaderRecords
from stepscope.fixes.lazy import changes, torch
from stepscope.record.fix import LOADER, Applied, NotApplied, Reason, SourceLine
from stepscope.record.trial import Rejection

_FOOTER_BYTES: Final = 64  # bytes behind a batch
_LEAST: Final = 1 << 18  # bytes of a batch, below which it is not worth it
_LARGE: Final = 1 << 20  # bytes of a batch
_MOST: Final = 64  # slots of a worker
_NONE: Final[dict[int, Any]] = {}
FREE, TAKEN, SENT, GONE = range(4)
"""A slot's states: in a worker until sent, then in the program's process until free; gone if the
worker needs another size, or if a third process may use it."""
SMALL_BATCHES = Reason("small_batches", "batches are small ({size})")
SMALL_TENSORS = Reason("small_batches", "{subject}: its batches have no tensor of 256 KiB")
OWN_COLLATE = Reason(
    "own_collate", "{subject}: its collate function makes batches without torch's own"
)
NO_USE_COUNT = Reason(
    "no_use_count", "this version of torch does not count the users of a tensor's memory"
)
SHARING_STRATEGY = Reason(
    "sharing_strategy", "{subject}: processes share memory by {value}, which is not supported"
)
START_METHOD = Reason(
    "start_method", "{subject}: needs workers started by fork (these use {value})"
)


class _Footer(ctypes.Structure):
    _fields_ = (("state", ctypes.c_uint64), ("pid", ctypes.c_uint64), ("mark", ctypes.c_uint64))


def slot_footer(storage: Any, mark: int) -> _Footer | None:
    """The footer after a batch in a slot; None for other memory."""
    if storage.nbytes() < _LEAST + _FOOTER_BYTES:
        return None
    foot = _Footer.from_address(storage.data_ptr() + storage.nbytes() - _FOOTER_BYTES)
    return foot if foot.mark == mark else None


def _references(slots: Any, place: int) -> int:
    return sys.getrefcount(slots[place])


_ALONE: Final = _references([object()], 0)


def _unused(slots: Any, place: int) -> bool:
    """Whether nobody else uses a storage: no tensor, and no other reference."""
    named = _references(slots, place) > _ALONE
    return not named and int(torch._C._storage_Use_Count(slots[place]._cdata)) == 1


class WorkerSlots:
    """The slots of one worker. Only its program knows `mark`."""

    def __init__(self, mark: int) -> None:
        self._mark = mark
        self._pid = 0
        self._slots: list[Any] = []

    def take(self, size: int) -> Any:
        """Shared memory for this many bytes plus the footer; None: allocate as usual."""
        if size < _LEAST:
            return None
        if self._pid != os.getpid():
            self._pid, self._slots = os.getpid(), []
        self._slots = [one for one in self._slots if self._state(one) != GONE]
        free = [place for place in range(len(self._slots)) if self._is_free(place)]
        fitting = [place for place in free if self._slots[place].nbytes() == size + _FOOTER_BYTES]
        if fitting:
            storage = self._slots.pop(fitting[0])
        else:
            self._make_room(free)
            storage = torch.UntypedStorage._new_shared(size + _FOOTER_BYTES)
        self._slots.append(storage)
        foot = _Footer.from_address(storage.data_ptr() + size)
        foot.state, foot.pid, foot.mark = TAKEN, self._pid, self._mark
        return storage

    def sent(self, storage: Any) -> None:
        """A storage is on its way to another process."""
        if foot := slot_footer(storage, self._mark):
            foot.state = SENT

    def _state(self, storage: Any) -> int:
        foot = slot_footer(storage, self._mark)
        return GONE if foot is None else int(foot.state)

    def _is_free(self, place: int) -> bool:
        """Order matters: memory nobody refers to was already marked by its sender."""
        return _unused(self._slots, place) and self._state(self._slots[place]) in (FREE, TAKEN)

    def _make_room(self, free: list[int]) -> None:
        """Drop the oldest slot of another size, so that there are no more slots than batches in
        flight."""
        if free:
            storage = self._slots.pop(free[0])  # mapped as long as it has a name
            if foot := slot_footer(storage, self._mark):
                foot.state = GONE
        elif len(self._slots) == _MOST:
            del self._slots[0]


class ReceivedSlots:
    """Slots received from workers; batches may arrive on several threads."""

    def __init__(self, mark: int) -> None:
        self._mark = mark
        self._lock = RLock()  # garbage collection inside may end an iterator, which calls `forget`
        self._slots: dict[int, OrderedDict[int, Any]] = {}  # of each worker, by address
        self._busy: set[tuple[int, int]] = set()

    def came(self, storage: Any) -> None:
        """A storage has arrived. It stays mapped, to be found when it comes again."""
        foot = slot_footer(storage, self._mark)
        if foot is None or foot.state != SENT:  # it was used elsewhere
            return
        with self._lock:
            self._release()
            pid, address = foot.pid, storage.data_ptr()
            slots = self._slots.setdefault(pid, OrderedDict())
            for other in [other for other in slots if _footer_at(slots, other).state == GONE]:
                del slots[other]
            slots[address] = storage
            slots.move_to_end(address)
            self._busy.add((pid, address))
            while len(slots) > _MOST:
                self._busy.discard((pid, slots.popitem(last=False)[0]))

    def any_of(self, pids: list[int]) -> bool:
        """Whether one of these workers has handed over such a slot."""
        return any(pid in self._slots for pid in pids)

    def forget(self, pids: list[int]) -> None:
        """Workers have ended."""
        with self._lock:
            for pid in pids:
                for address in self._slots.pop(pid, ()):
                    self._busy.discard((pid, address))

    def shared(self, storage: Any) -> None:
        """A storage is passed to another process, out of our sight: it is not reused."""
        with self._lock:
            address = storage.data_ptr()
            for pid in [pid for pid, slots in self._slots.items() if address in slots]:
                self._let_go(pid, address)

    def forked(self) -> None:
        """A forked process may keep reading what is in use here now."""
        with self._lock:
            for pid, address in [*self._busy]:
                self._let_go(pid, address)

    def _let_go(self, pid: int, address: int) -> None:
        slots = self._slots.get(pid, _NONE)
        if address in slots:
            _footer_at(slots, address).state = GONE
            del slots[address]
        self._busy.discard((pid, address))

    def _release(self) -> None:
        """Tell workers what is no longer in use."""
        for pid, address in [*self._busy]:
            slots = self._slots.get(pid, _NONE)
            if address in slots:
                if not _unused(slots, address):
                    continue
                _footer_at(slots, address).state = FREE
            self._busy.discard((pid, address))


def _footer_at(slots: Any, address: int) -> _Footer:
    return _Footer.from_address(address + slots[address].nbytes() - _FOOTER_BYTES)


class Recycle(Fix):
    """Only batches that torch's own collating makes in a worker, and only once nothing in the
    program's process refers to them: what the program keeps never changes."""

    name = "recycle"
    group = "data"
    title = "have workers reuse shared memory for their batches"
    edited_by_call = True
    kind = FixKind.EXACT
    effort = "a collate function with buffers of its own"
    missing = (
        "no DataLoader has workers that hand over batches of 256 KiB or more, put together by"
        " torch's own collate function"
    )
    works_on = ProgramPart.LOADER
    requires = "workers"
    fills_buffers = True

    def applies(self, program: ObservedProgram) -> Rejection | None:
        size = program.batch_bytes
        return None if size is None or size >= _LEAST else unsuitable(SMALL_BATCHES, size)

    def needed_beside(self, program: ObservedProgram) -> bool:
        """With large batches, allocating fresh memory takes much of what workers gain."""
        return (program.batch_bytes or 0) >= _LARGE

    def predict(self, value: str | None, known: KnownProgram) -> Changes:
        return [changes.recycle_batch_memory()] if known.show and known.show.loaders else None

    def check(self, live: LiveProgram) -> NotApplied | None:
        if not hasattr(torch._C, "_storage_Use_Count"):
            return NotApplied(NO_USE_COUNT)
        if live.loader is None:
            return None
        loader, own = live.loader.loader, live.loader.loader.multiprocessing_context
        if 0 < live.loader.largest_bytes < _LEAST:
            return NotApplied(SMALL_TENSORS, LOADER)
        if not loader.num_workers:
            return NotApplied(HAS_NO_WORKERS, LOADER)
        if not may_collate_by_torch(loader.collate_fn):
            return NotApplied(OWN_COLLATE, LOADER)
        return _refused(get_start_method() if own is None else own.get_start_method())

    def install(self, value: Any, context: FixContext) -> None:
        if not hasattr(torch._C, "_storage_Use_Count"):
            context.not_applied(NotApplied(NO_USE_COUNT))
            return
        mark = int.from_bytes(os.urandom(8), "little")
        received, slots = ReceivedSlots(mark), WorkerSlots(mark)
        loaders = _Loaders(LoaderRecords(context), received)
        forked = WeakMethod(received.forked)
        os.register_at_fork(before=lambda: (known := forked()) and known())
        in_worker = torch.utils.data.get_worker_info
        strategy = torch.multiprocessing.get_sharing_strategy
        typed, untyped = torch.storage.TypedStorage, torch.UntypedStorage
        make_shared, share_storage = typed._new_shared, untyped._share_fd_cpu_

        def new_shared(storage: Any, size: int, *, device: Any = None) -> Any:
            """In workers, which are forked from here."""
            here = device is None or torch.device(device).type == "cpu"
            if here and in_worker() is not None and strategy() == "file_descriptor":
                found = slots.take(size * storage._element_size())
                if found is not None:
                    return typed(wrap_storage=found, dtype=storage.dtype, _internal=True)
            return make_shared(storage, size, device=device)

        def share(storage: Any, *args: Any, **kwargs: Any) -> Any:
            """A storage is sent to another process, by a worker or by the program's."""
            (received.shared if in_worker() is None else slots.sent)(storage)
            return share_storage(storage, *args, **kwargs)

        def rebuild(call: Any, *args: Any, **kwargs: Any) -> Any:
            storage = call(*args, **kwargs)
            received.came(storage)
            return storage

        seams = context.seams
        seams.loader_iterated(loaders.iterated)
        seams.around(torch.utils.data.dataloader._BaseDataLoaderIter, "__next__", loaders.next)
        seams.around(torch.multiprocessing.reductions, "rebuild_storage_fd", rebuild)
        seams.replace(typed, "_new_shared", new_shared)
        seams.replace(untyped, "_share_fd_cpu_", share)

    def edit(self, value: Any, line: str) -> SourceEdit:
        return SourceEdit(
            "give the DataLoader a collate_fn that stacks samples into shared tensors of its own"
            " (`torch.stack(samples, out=kept)`), some for each worker, and uses one again only"
            " after its batch was copied"
        )


class _Loaders:
    """Reports which loaders benefited, and when workers end."""

    def __init__(self, marks: LoaderRecords, received: ReceivedSlots) -> None:
        marks.watch(lambda arguments: True)
        self._marks = marks
        self._received = received
        self._unsaid: MutableMapping[Any, tuple[SourceLine | None, list[int]]] = WeakKeyDictionary()
        self._followed: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()

    def iterated(self, make: Any, loader: Any) -> Any:
        iterator = make(loader)
        workers = getattr(iterator, "_workers", ())
        if not workers or iterator in self._followed:
            return iterator
        place = self._marks.place(loader)
        refused = _refused(getattr(type(workers[0]), "_start_method", None) or get_start_method())
        if refused is not None:
            self._marks.context.not_applied(replace(refused, place=place))
            return iterator
        pids = [worker.pid for worker in workers]
        self._unsaid[iterator] = (place, pids)
        self._followed[iterator] = finalize(iterator, self._received.forget, pids)
        self._followed[iterator].atexit = False
        return iterator

    def next(self, call: Any, iterator: Any) -> Any:
        batch = call(iterator)
        if iterator in self._unsaid:
            place, pids = self._unsaid[iterator]
            if self._received.any_of(pids):
                del self._unsaid[iterator]
                self._marks.context.applied(Applied(LOADER, place=place))
        return batch


def _refused(start: str) -> NotApplied | None:
    """Why workers that were started so cannot use memory again; None where they can."""
    strategy = torch.multiprocessing.get_sharing_strategy()
    if strategy != "file_descriptor":
        return NotApplied(SHARING_STRATEGY, LOADER, value=strategy)
    return None if start == "fork" else NotApplied(START_METHOD, LOADER, value=start)


def may_collate_by_torch(collate: Any) -> bool:
    """Whether a collate function is torch's own, or names one of those, or cannot be read."""
    data = torch.utils.data
    if collate in (data.default_collate, data.default_convert):
        return collate is data.default_collate
    code = getattr(getattr(collate, "__func__", collate), "__code__", None)
    waiting, names = [code] if code is not None else [], set[str]()
    while waiting:
        one = waiting.pop()
        names.update(one.co_names)
        waiting += [inner for inner in one.co_consts if isinstance(inner, CodeType)]
    return code is None or any("collate" in name for name in names)


FIX = Recycle()
