"""Loader created, iterator made, batch waited for, and how many samples a batch holds."""

import functools
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from threading import get_ident
from time import monotonic_ns
from typing import Any
from weakref import WeakKeyDictionary, ref

from torch import _C, Tensor

from stepscope.probe.core import Core, FeedingLoader
from stepscope.probe.patches import Patches, drop_caller_frame
from stepscope.probe.row_log import DATA_WAIT, EPOCH_START, LEAVE, SAMPLES
from stepscope.probe.unseen import unseen_by_program
from stepscope.record.facts import BatchFact, LoaderFact, SiteKind, WorkersFact
from stepscope.record.row_log import RowKind

_DATA_WAIT = SiteKind.DATA_WAIT
_MOST_LEAVES = 32
_MOST_LOOKS = 512


def batch_axis(batch: Any, hint: int | None) -> int:
    """The dimension that counts samples, seen on a loader's first batch; `hint` is its batch_size.
    1 for time-major batches: no leaf has the hint as its first dimension, all have it as second."""
    shapes = [leaf.shape for leaf in array_leaves(batch) if len(leaf.shape) > 0]
    if hint is None or not shapes or any(shape[0] == hint for shape in shapes):
        return 0
    return int(all(len(shape) > 1 and shape[1] == hint for shape in shapes))


def batch_size(batch: Any, axis: int = 0) -> int:
    """Samples in a batch: the most common size of that dimension; 0 when nothing tells."""
    kind = type(batch)
    if (kind is list or kind is tuple) and batch:  # the usual case: inputs first
        shape = getattr(batch[0], "shape", None)
        if shape is not None and len(shape) > axis:
            other = getattr(batch[-1], "shape", None)
            if other is None or len(other) <= axis or other[axis] == shape[axis]:
                return int(shape[axis])
    shape = getattr(batch, "shape", None)
    if shape is not None and not isinstance(batch, Mapping):
        return int(shape[axis]) if len(shape) > axis else 0
    sizes = [leaf.shape[axis] for leaf in array_leaves(batch) if len(leaf.shape) > axis]
    if sizes:
        return int(sizes[0] if len(set(sizes)) == 1 else Counter(sizes).most_common(1)[0][0])
    return len(batch) if isinstance(batch, list | tuple) else 0


def leaf_bytes(batch: Any) -> list[int]:
    """What its tensors and arrays hold, the first few of them."""
    return [int(getattr(leaf, "nbytes", 0) or 0) for leaf in array_leaves(batch)]


def array_leaves(batch: Any) -> Iterator[Any]:
    """Tensors and arrays in nested containers, the first few."""
    todo, found, looked = [batch], 0, 0
    while todo and found < _MOST_LEAVES and looked < _MOST_LOOKS:
        looked += 1
        item = todo.pop(0)
        if isinstance(item, Mapping):
            todo.extend(item.values())
        elif isinstance(item, list | tuple):
            todo.extend(item[:_MOST_LEAVES])
        elif getattr(item, "shape", None) is not None:
            found += 1
            yield item


_MANY = 1000  # events of batches nobody trains on


def patch_loaders(core: Core, patches: Patches) -> None:
    from torch.utils.data import dataloader

    loader_class, iterator_class = dataloader.DataLoader, dataloader._BaseDataLoaderIter
    original_init = loader_class.__init__
    original_iter = loader_class.__iter__
    original_next = iterator_class.__next__
    log, sites = core.log, core.sites
    note = log.events.extend
    made_at: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # loader → site
    numbers: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # loaders in use
    counter = itertools.count()
    sizes: dict[int, int | None] = {}  # id of an iterator → its loader's batch size
    axes: dict[int, int] = {}  # id of an iterator → the axis that counts samples
    largest = [0]  # bytes of the largest batch told of
    watched = _C._len_torch_function_stack
    feeding: dict[int, FeedingLoader] = {}  # by the id of an iterator
    fresh: set[int] = set()  # iterators with workers that have not delivered yet

    @functools.wraps(original_init)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            original_init(self, *args, **kwargs)
        except BaseException as error:
            drop_caller_frame(error)
            raise
        if not log.off:
            try:
                made_at[self] = sites.locate(SiteKind.LOADER)
            except Exception as problem:
                core.guard(problem)

    @functools.wraps(original_iter)
    def make_iter(self: Any) -> Any:
        known = numbers.get(self)
        if not core.evaluations.feeds_steps_only(known):
            core.evaluation_begins()
        begun = log.enter(EPOCH_START)
        if not begun:
            return original_iter(self)
        try:
            if log.unclocked and self.num_workers and core.clocks is not None:
                with core.clocks.workers_start():
                    iterator = original_iter(self)
            else:
                iterator = original_iter(self)
        except BaseException as error:
            drop_caller_frame(error)
            raise
        finally:
            now = log.leave()
        try:
            sites.add(sites.locate(SiteKind.EPOCH_START), now - begun)
            if self not in numbers:
                numbers[self] = next(counter)
                with unseen_by_program():
                    core.facts.write(_arguments(self, numbers[self], made_at.get(self)))
            core.evaluations.loads(numbers[self])
            workers = [worker.pid for worker in getattr(iterator, "_workers", ())]
            if workers:
                core.facts.write(WorkersFact(loader=numbers[self], pids=workers))
                fresh.add(id(iterator))
            axes.pop(id(iterator), None)
            sizes[id(iterator)] = _configured_batch_size(self)
            feeding[id(iterator)] = FeedingLoader(ref(self), 0)
            core.end_row(RowKind.EPOCH, numbers[self])
        except Exception as problem:
            core.guard(problem)
        return iterator

    def samples_of(batch: Any, axis: int) -> int:
        """In the usual case without asking much of torch."""
        if type(batch) in (list, tuple) and batch and not watched():
            first, last = batch[0], batch[-1]
            if type(first) is Tensor and type(last) is Tensor:
                try:
                    count = first.size(axis)
                    if last.size(axis) == count:
                        return int(count)
                except IndexError:  # of fewer dimensions
                    pass
        with _C.DisableTorchFunction():  # unseen by the program's modes
            return batch_size(batch, axis)

    @functools.wraps(original_next)
    def wait(self: Any) -> Any:
        if log.off or get_ident() != log.thread:
            return original_next(self)
        key = id(self)
        axis = axes.get(key)
        begun = monotonic_ns()
        note((EPOCH_START if axis is None and key in fresh else DATA_WAIT, begun))
        try:
            batch = original_next(self)
        except BaseException as error:
            drop_caller_frame(error)
            raise
        finally:
            now = monotonic_ns()
            note((LEAVE, now))
        try:
            if axis is None:
                fresh.discard(key)
                with _C.DisableTorchFunction():  # shapes are asked unseen by the program's modes
                    axis = axes[key] = batch_axis(batch, sizes.get(key))
                    leaves = leaf_bytes(batch)
                    if (size := sum(leaves)) > largest[0]:
                        largest[0] = size
                        core.facts.write(BatchFact(bytes=size))
                    if key in feeding and leaves:
                        feeding[key] = feeding[key]._replace(largest_bytes=max(leaves))
            if log.unclocked:
                note((SAMPLES, samples_of(batch, axis)))
                return batch
            if core.find_lines:
                sites.add(sites.locate(_DATA_WAIT), now - begun)
                core.feeding = feeding.get(key)
            log.samples += samples_of(batch, axis)
            log.batches += 1
            if not core.stepping:
                core.delivered()
            elif len(log.events) > _MANY:
                log.fold()
        except Exception as problem:
            core.guard(problem)
        return batch

    patches.set(loader_class, "__init__", init)
    patches.set(loader_class, "__iter__", make_iter)
    patches.set(iterator_class, "__next__", wait)


def _configured_batch_size(loader: Any) -> int | None:
    if loader.batch_size is not None:
        return int(loader.batch_size)
    size = getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
    return size if isinstance(size, int) else None


def _arguments(loader: Any, number: int, site: int | None) -> LoaderFact:
    """A loader's arguments as they are at its first use; `site` is where it was made, if seen."""
    from torch.utils.data import IterableDataset

    context = loader.multiprocessing_context
    sampler = type(getattr(loader, "sampler", None)).__name__
    same = ("num_workers", "pin_memory", "prefetch_factor", "persistent_workers", "drop_last")
    try:
        samples = None if isinstance(loader.dataset, IterableDataset) else len(loader.dataset)
    except Exception:
        samples = None
    return LoaderFact(
        id=number,
        site=site,
        batch_size=_configured_batch_size(loader),
        **{name: getattr(loader, name) for name in same},
        shuffle="Random" in sampler,
        sampler=sampler,
        dataset=type(loader.dataset).__qualname__,
        samples=samples,
        start_method=context.get_start_method() if context is not None else None,
    )
