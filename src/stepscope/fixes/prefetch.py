"""Copy the next batch to the GPU while the present one is worked on."""

from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from stepscope.fixes.base import Edit, Fix, Hands, Kind
from stepscope.fixes.data_look import look
from stepscope.fixes.loader_ahead import Ahead
from stepscope.fixes.loader_end import end_in_time
from stepscope.fixes.loader_marks import Marks
from stepscope.fixes.loader_moves import Copied, Plan
from stepscope.fixes.loader_samplers import draws_as_it_goes, has_generator
from stepscope.fixes.loader_side import CudaSide
from stepscope.fixes.pin import pinned, why_not_pinned


class Prefetch(Fix):
    """The first batch shows which tensors the program moves where; later ones are moved early.

    The program still gets its batch on the CPU; its own `.to` or `.cuda` then returns the copy
    that is already there. A tensor changed in between, seen by torch or read as an array, is moved
    anew. Batches are fetched one ahead of the program, which needs room for one more on the GPU.
    """

    name = "prefetch"
    group = "data"
    title = "copy the next batch to the GPU while the present one is worked on"
    kind = Kind.EXACT
    effort = "a small class around the loader"
    needs = "cuda"
    missing = "no tensor of a DataLoader is moved to the GPU by `.to` or `.cuda`"

    def install(self, value: Any, hands: Hands) -> None:
        import torch

        if not torch.cuda.device_count():
            hands.unfit("there is no CUDA device here")
            return
        self.place(hands, CudaSide())

    def place(self, hands: Hands, side: Any) -> None:
        """Take hold; `side` makes the copies."""
        import torch
        from torch.utils.data.dataloader import _BaseDataLoaderIter

        marks = Marks(hands)
        ahead = _Iterators(marks, Copied(side))
        marks.watch(lambda arguments: pinned(arguments, hands))
        hands.seams.loader_iterated(ahead.iterated)
        hands.seams.around(_BaseDataLoaderIter, "__next__", ahead.next)
        for name in ("to", "cuda"):
            hands.seams.around(torch.Tensor, name, partial(ahead.copied.move, name))
        hands.seams.around(torch.Tensor, "numpy", ahead.copied.read)

    def explain(self, error: BaseException, line: str) -> str | None:
        return why_not_pinned(error)

    def edit(self, value: Any, line: str) -> Edit:
        return Edit(
            "fetch each batch one step early and move it with non_blocking=True under"
            " `torch.cuda.stream(side)`; before use, have the current stream `wait_stream(side)`"
            " and `record_stream` the tensor on it"
        )


class _Iterators:
    """The loaders' iterators, each with its batch ahead."""

    def __init__(self, marks: Marks, copied: Copied) -> None:
        self._marks = marks
        self._hands = marks.hands
        self.copied = copied
        self._plans: WeakKeyDictionary[Any, Plan] = WeakKeyDictionary()
        self._loaders: WeakKeyDictionary[Any, tuple[str, Plan]] = WeakKeyDictionary()
        self._ahead: WeakKeyDictionary[Any, Ahead] = WeakKeyDictionary()
        self._kinds: dict[str, tuple[str, Kind | None]] = {}

    def iterated(self, make: Any, loader: Any) -> Any:
        """Around the start of an epoch."""
        iterator = make(loader)
        if loader.persistent_workers:
            end_in_time(iterator)
        self._ahead.pop(iterator, None)  # kept workers come with the iterator of the last epoch
        self._loaders.pop(iterator, None)
        where = self._marks.where(loader)
        plan = self._plans.setdefault(loader, Plan())
        if loader not in self._marks.chosen or plan.over or not self._fits(loader, where):
            return iterator
        if self._marks.began(loader, iterator) and has_generator(loader._index_sampler):
            broken = "epochs are broken off, and its generator has been read ahead"
            self._kinds[where] = (f"{where} (other shuffles: {broken})", Kind.NUMERIC)
        self._loaders[iterator] = (where, plan)
        return iterator

    def next(self, call: Any, iterator: Any) -> Any:
        """Around the wait for a batch."""
        known = self._loaders.get(iterator)
        if known is None:
            return call(iterator)
        where, plan = known
        ahead = self._ahead.get(iterator)
        try:
            if ahead is None and not (plan.moves and plan.apart):
                return self._as_usual(call(iterator), where, plan)
            if ahead is None:
                ahead = self._ahead[iterator] = Ahead()
            batch = ahead.next(lambda: call(iterator), lambda later: self._copy(later, where, plan))
        except StopIteration:
            self._marks.ended(iterator)
            raise
        if self.copied.answered:
            self._hands.applied(*self._kinds[where])
        return batch

    def _as_usual(self, batch: Any, where: str, plan: Plan) -> Any:
        """A batch that was not fetched ahead: it shows what the program does with it."""
        if not plan.over and not plan.apart and not plan.compare(batch):
            plan.over = True
            self._hands.unfit(f"batches of the {where} share memory: none can be fetched ahead")
        self._copy(batch, where, plan)
        return batch

    def _copy(self, batch: Any, where: str, plan: Plan) -> None:
        if plan.over:
            return
        try:
            self.copied.know(batch, plan)
        except RuntimeError as problem:  # most likely the device is full
            plan.over = True
            short = str(problem).partition("\n")[0]
            self._hands.unfit(f"the next batch of the {where} could not be copied: {short}")

    def _fits(self, loader: Any, where: str) -> bool:
        """Whether fetching one ahead does no harm; notes what it may change."""
        from torch.utils.data import IterableDataset

        if where in self._kinds:
            return True
        other = None
        if loader.num_workers == 0:
            if isinstance(loader.dataset, IterableDataset):
                self._hands.unfit(
                    f"the {where} reads an IterableDataset in the program's process, where one"
                    " sample more would be gone when an epoch is broken off; give it workers"
                )
                return False
            other = look(loader.dataset, loader.collate_fn).varies()
        other = other or draws_as_it_goes(loader._index_sampler)
        text = f"{where} ({other})" if other else where
        self._kinds[where] = (text, Kind.NUMERIC if other else None)
        return True


FIX = Prefetch()
