"""Have workers hand batches over in memory that was used before."""

import os
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary, WeakMethod, finalize

from stepscope.fixes.base import Edit, Fix, Hands, Kind
from stepscope.fixes.loader_marks import Marks
from stepscope.fixes.recycle_slots import Received, Slots


class Recycle(Fix):
    """Only what torch's own collating makes in a worker, and only once nothing in the program's
    process refers to it any more: what the program keeps stays what it is."""

    name = "recycle"
    group = "data"
    title = "have workers hand batches over in memory that was used before"
    kind = Kind.EXACT
    effort = "a collate function with buffers of its own"
    missing = (
        "no DataLoader has workers that hand over batches of 256 KiB or more, put together by"
        " torch's own collate function"
    )

    def install(self, value: Any, hands: Hands) -> None:
        import torch
        from torch.multiprocessing import reductions
        from torch.utils.data.dataloader import _BaseDataLoaderIter

        if not hasattr(torch._C, "_storage_Use_Count"):
            hands.unfit("this version of torch does not tell who uses memory")
            return
        mark = int.from_bytes(os.urandom(8), "little")
        received, slots = Received(mark), Slots(mark)
        loaders = _Loaders(Marks(hands), received)
        hands.seams.loader_iterated(loaders.iterated)
        hands.seams.around(_BaseDataLoaderIter, "__next__", loaders.next)
        hands.seams.around(reductions, "rebuild_storage_fd", partial(_rebuilt, received))
        forked = WeakMethod(received.forked)
        os.register_at_fork(before=lambda: (known := forked()) and known())
        typed, untyped = torch.storage.TypedStorage, torch.UntypedStorage
        hands.seams.replace(typed, "_new_shared", _new_shared(typed._new_shared, slots))
        share = _shared(untyped._share_fd_cpu_, slots, received)
        hands.seams.replace(untyped, "_share_fd_cpu_", share)

    def edit(self, value: Any, line: str) -> Edit:
        return Edit(
            "give the DataLoader a collate_fn that stacks samples into shared tensors of its own"
            " (`torch.stack(samples, out=kept)`), some for each worker, and uses one again only"
            " after its batch was copied"
        )


class _Loaders:
    """Tells which loaders it was of use to, and when workers are gone."""

    def __init__(self, marks: Marks, received: Received) -> None:
        marks.watch(lambda arguments: True)
        self._marks = marks
        self._received = received
        self._unsaid: WeakKeyDictionary[Any, tuple[str, list[int]]] = WeakKeyDictionary()
        self._followed: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()

    def iterated(self, make: Any, loader: Any) -> Any:
        """Around the start of an epoch."""
        iterator = make(loader)
        workers = getattr(iterator, "_workers", ())
        if not workers or iterator in self._followed:
            return iterator
        where = self._marks.where(loader)
        reason = _unfit(workers[0])
        if reason is not None:
            self._marks.hands.unfit(f"the {where}: {reason}")
            return iterator
        pids = [worker.pid for worker in workers]
        self._unsaid[iterator] = (where, pids)
        self._followed[iterator] = finalize(iterator, self._received.forget, pids)
        self._followed[iterator].atexit = False
        return iterator

    def next(self, call: Any, iterator: Any) -> Any:
        """Around the wait for a batch."""
        batch = call(iterator)
        if iterator in self._unsaid:
            where, pids = self._unsaid[iterator]
            if self._received.any_of(pids):
                del self._unsaid[iterator]
                self._marks.hands.applied(where)
        return batch


def _unfit(worker: Any) -> str | None:
    """Why a worker's memory cannot be used again."""
    from multiprocessing import get_start_method

    from torch.multiprocessing import get_sharing_strategy

    if get_sharing_strategy() != "file_descriptor":
        return f"processes share memory by {get_sharing_strategy()}, which is left alone"
    start = getattr(type(worker), "_start_method", None) or get_start_method()
    return None if start == "fork" else f"workers are started by {start} and know nothing of it"


def _rebuilt(received: Received, call: Any, *args: Any, **kwargs: Any) -> Any:
    storage = call(*args, **kwargs)
    received.came(storage)
    return storage


def _shared(original: Any, slots: Slots, received: Received) -> Any:
    """Of a storage that is sent to another process, by a worker or by the program's."""
    from torch.utils.data import get_worker_info

    def share(storage: Any, *args: Any, **kwargs: Any) -> Any:
        if get_worker_info() is None:
            received.shared(storage)
        else:
            slots.sent(storage)
        return original(storage, *args, **kwargs)

    return share


def _new_shared(original: Any, slots: Slots) -> Any:
    """Of a TypedStorage: called in workers, which are forked from here."""
    import torch
    from torch.multiprocessing import get_sharing_strategy
    from torch.utils.data import get_worker_info

    def new_shared(storage: Any, size: int, *, device: Any = None) -> Any:
        here = device is None or torch.device(device).type == "cpu"
        if here and get_worker_info() is not None and get_sharing_strategy() == "file_descriptor":
            found = slots.take(size * storage._element_size())
            if found is not None:
                return torch.storage.TypedStorage(
                    wrap_storage=found, dtype=storage.dtype, _internal=True
                )
        return original(storage, size, device=device)

    return new_shared


FIX = Recycle()
