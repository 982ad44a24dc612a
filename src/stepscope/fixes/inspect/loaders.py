"""What fixes record about DataLoaders: where each was made, whether epochs end early, whether its
sampler may be read ahead; and the shutdown of persistent workers."""

import atexit
import os
from collections.abc import Callable
from typing import Any, Final
from weakref import WeakKeyDictionary, WeakSet, ref

from stepscope.fixes.base import FixContext
from stepscope.fixes.inspect.dataset_code import word_set
from stepscope.fixes.inspect.dataset_traits import dataset_traits
from stepscope.fixes.lazy import torch
from stepscope.record.fix import DataChange, Reason, SourceLine, Trait, TraitKind, Variation

HAS_NO_WORKERS: Final = Reason("has_no_workers", "{subject} has no workers; add --fix workers")


class LoaderRecords:
    """Facts about the loaders a fix deals with. Nothing is stored on the loaders themselves."""

    def __init__(self, context: FixContext) -> None:
        self.context = context
        self.chosen: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
        """Loaders the fix changes, with its decision for each."""
        self._places: WeakKeyDictionary[Any, SourceLine | None] = WeakKeyDictionary()
        self._epochs: WeakKeyDictionary[Any, list[bool]] = WeakKeyDictionary()
        self._iterators: WeakKeyDictionary[Any, list[bool]] = WeakKeyDictionary()

    def watch(self, decide: Callable[[dict[str, Any]], Any]) -> None:
        """`decide(arguments)` may change a loader's arguments; None: leave it alone."""
        decided: list[Any] = []

        def made(call: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
            decided.clear()
            call(loader, *args, **kwargs)
            self._places[loader] = self.context.place()
            if decided and decided[-1] is not None:
                self.chosen[loader] = decided[-1]

        self.context.seams.around(torch.utils.data.DataLoader, "__init__", made)
        self.context.seams.loader_made(lambda arguments: decided.append(decide(arguments)))

    def remade(self, arguments: dict[str, Any]) -> Any:
        """The decision for a chosen loader of the same dataset, or None. Frameworks rebuild the
        program's loader with the same arguments."""
        dataset = arguments.get("dataset")
        return next((kept for one, kept in self.chosen.items() if one.dataset is dataset), None)

    def place(self, loader: Any) -> SourceLine | None:
        """The line that made a loader; None: not seen."""
        return self._places.get(loader)

    def began(self, loader: Any, iterator: Any) -> bool:
        """An epoch begins; returns whether the loop left the last one early."""
        before = self._epochs.get(loader)
        self._epochs[loader] = self._iterators[iterator] = [False]
        return before == [False]

    def ended(self, iterator: Any) -> None:
        """An iterator is exhausted."""
        if iterator in self._iterators:
            self._iterators[iterator][0] = True


_AT_ONCE: Final = word_set(
    "SequentialSampler RandomSampler SubsetRandomSampler WeightedRandomSampler DistributedSampler"
    " SeedableRandomSampler _InfiniteConstantSampler"
)
"""Samplers that draw from the program's generator, if at all, only before their first index."""
_LAZY: Final = "SubsetRandomSampler"  # which reads its indices as it goes
_AROUND: Final = {"BatchSampler": "sampler", "BatchSamplerShard": "batch_sampler"}
_LIBRARIES: Final = ("torch.", "accelerate.")


def index_sampler(sampler: Any) -> Any:
    """The sampler that chooses single indices, inside batch samplers."""
    while (inner := _AROUND.get(type(sampler).__name__)) and _from_library(sampler):
        sampler = getattr(sampler, inner)
    return sampler


def sampler_draw_change(sampler: Any) -> Variation | None:
    """What reading a sampler ahead may change; None if it cannot change random draws."""
    sampler = index_sampler(sampler)
    if _from_library(sampler) and type(sampler).__name__ in _AT_ONCE:
        shared = getattr(sampler, "generator", None) is torch.default_generator
        because = Trait(TraitKind.SAMPLER_SHARES_GENERATOR)
        return Variation(DataChange.DRAWS, because=because) if shared else None
    seen = dataset_traits(sampler)
    found = seen.draws or seen.unknown
    if found is None:
        return None
    because = Trait(TraitKind.SAMPLER_MAY_DRAW, because=found)
    return Variation(DataChange.DRAWS, certain=False, because=because)


def chooses_at_once(sampler: Any) -> bool:
    """Whether changes by the program during an epoch cannot affect a sampler."""
    name = type(sampler).__name__
    return _from_library(sampler) and name in _AT_ONCE and name != _LAZY


OTHER_SHUFFLES: Final = Variation(DataChange.SHUFFLES, because=Trait(TraitKind.EPOCH_LEFT_EARLY))
"""The variation of a loader whose generator was read ahead when the loop left an epoch."""


def has_own_generator(sampler: Any) -> bool:
    """Whether it draws from a generator that carries over between epochs."""
    sampler = index_sampler(sampler)
    own = getattr(sampler, "generator", None) is not None
    return own and type(sampler).__name__ != "SeedableRandomSampler"


def _from_library(sampler: Any) -> bool:
    return type(sampler).__module__.startswith(_LIBRARIES)


_told: Final[WeakSet[Any]] = WeakSet()


def shut_down_at_exit(iterator: Any) -> None:
    """Torch before 2.13 waits five seconds for each persistent worker at the program's end if
    batches are pinned, without signalling them. The last registered exit handler runs first."""
    if iterator in _told or not hasattr(iterator, "_shutdown_workers"):
        return
    _told.add(iterator)
    kept, ours = ref(iterator), os.getpid()

    def end() -> None:
        alive = kept()
        if alive is not None and os.getpid() == ours:
            alive._shutdown_workers()

    atexit.register(end)
