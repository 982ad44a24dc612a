"""Loader created, iterator made, batch waited for."""

import functools
import itertools
from threading import get_ident
from time import monotonic_ns
from typing import Any
from weakref import WeakKeyDictionary

from stepscope.probe.batch import batch_axis, batch_bytes, batch_size
from stepscope.probe.core import Core
from stepscope.probe.log import DATA_WAIT, EPOCH_START, LEAVE
from stepscope.probe.patches import Patches
from stepscope.probe.points.timing import leave_out
from stepscope.record.rows import Kind

_MANY = 1000  # events of batches nobody trains on


def install(core: Core, patches: Patches) -> None:
    """Patch DataLoader and its iterators."""
    from torch.utils.data import dataloader

    loader_class, iterator_class = dataloader.DataLoader, dataloader._BaseDataLoaderIter
    original_init = loader_class.__init__
    original_iter = loader_class.__iter__
    original_next = iterator_class.__next__
    log, sites = core.log, core.sites
    append = log.events.append
    made_at: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # loader → site
    numbers: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # loaders in use
    counter = itertools.count()
    sizes: dict[int, int | None] = {}  # id of an iterator → its loader's batch size
    axes: dict[int, int] = {}  # id of an iterator → the axis that counts samples
    largest = [0]  # bytes of the largest batch told of
    fresh: set[int] = set()  # iterators with workers that have not delivered yet

    @functools.wraps(original_init)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original_init(self, *args, **kwargs)
        if not log.off:
            try:
                made_at[self] = sites.here("loader")
            except Exception as problem:
                core.guard(problem)

    @functools.wraps(original_iter)
    def make_iter(self: Any) -> Any:
        begun = log.enter(EPOCH_START)
        if not begun:
            return original_iter(self)
        try:
            iterator = original_iter(self)
        except BaseException as error:
            leave_out(error)
            raise
        finally:
            now = log.leave()
        try:
            sites.add(sites.here("epoch_start"), now - begun)
            if self not in numbers:
                numbers[self] = next(counter)
                facts = _arguments(self, made_at.get(self))
                core.facts.write("loader", id=numbers[self], **facts)
            workers = [worker.pid for worker in getattr(iterator, "_workers", ())]
            if workers:
                core.facts.write("workers", loader=numbers[self], pids=workers)
                fresh.add(id(iterator))
            axes.pop(id(iterator), None)
            sizes[id(iterator)] = _batch_size(self)
            core.end_row(Kind.EPOCH, numbers[self])
        except Exception as problem:
            core.guard(problem)
        return iterator

    @functools.wraps(original_next)
    def wait(self: Any) -> Any:
        if log.off or get_ident() != log.thread:
            return original_next(self)
        key = id(self)
        begun = monotonic_ns()
        append(EPOCH_START if key in fresh else DATA_WAIT)
        append(begun)
        try:
            batch = original_next(self)
        except BaseException as error:
            leave_out(error)
            raise
        finally:
            now = monotonic_ns()
            append(LEAVE)
            append(now)
        try:
            if key in fresh:
                fresh.discard(key)
            if core.look:
                sites.add(sites.here("data_wait"), now - begun)
            axis = axes.get(key)
            if axis is None:
                axis = axes[key] = batch_axis(batch, sizes.get(key))
                if (size := batch_bytes(batch)) > largest[0]:
                    largest[0] = size
                    core.facts.write("batch", bytes=size)
            log.samples += batch_size(batch, axis)
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


def _batch_size(loader: Any) -> int | None:
    if loader.batch_size is not None:
        return int(loader.batch_size)
    size = getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
    return size if isinstance(size, int) else None


def _arguments(loader: Any, site: int | None) -> dict[str, Any]:
    """A loader's arguments as they are at its first use; `site` is where it was made, if seen."""
    from torch.utils.data import IterableDataset

    context = loader.multiprocessing_context
    sampler = type(getattr(loader, "sampler", None)).__name__
    try:
        samples = None if isinstance(loader.dataset, IterableDataset) else len(loader.dataset)
    except Exception:
        samples = None
    return {
        "site": site,
        "batch_size": _batch_size(loader),
        "num_workers": loader.num_workers,
        "pin_memory": loader.pin_memory,
        "prefetch_factor": loader.prefetch_factor,
        "persistent_workers": loader.persistent_workers,
        "drop_last": loader.drop_last,
        "shuffle": "Random" in sampler,
        "sampler": sampler,
        "dataset": type(loader.dataset).__qualname__,
        "samples": samples,
        "start_method": context.get_start_method() if context is not None else None,
    }
