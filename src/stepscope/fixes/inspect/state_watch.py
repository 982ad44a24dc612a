"""Whether the state that samples depend on changes: in the program's process between two batches or
two epochs, and in its loaders' workers."""

import mmap
from typing import Any, Final

from stepscope.fixes.base import FixContext
from stepscope.fixes.inspect.dataset_traits import DatasetTraits, dataset_traits
from stepscope.fixes.inspect.loaders import chooses_at_once, index_sampler
from stepscope.fixes.inspect.state_digest import (
    EACH_BATCH,
    EACH_EPOCH,
    Budget,
    StateDigest,
    difference,
)
from stepscope.fixes.inspect.tensors import cpu_tensors, memory_of
from stepscope.fixes.lazy import torch
from stepscope.record.fix import DataChange, Trait, TraitKind, Variation


class StateWatch:
    """Compares what things hold, and what their code names, with an earlier time, ignoring
    `without`."""

    def __init__(self, traits: DatasetTraits, without: Any = None) -> None:
        self._traits, self._without = traits, without
        self._each_batch = self._digest(EACH_BATCH)
        self._each_epoch = self._digest(EACH_EPOCH)

    @property
    def unwatched(self) -> Trait | None:
        """What is too large or unusual to watch, or None."""
        return self._beyond(self._each_epoch)

    @property
    def unwatched_each_batch(self) -> Trait | None:
        """The same for checks between batches."""
        return self._beyond(self._each_batch)

    def changed(self, *, whole: bool = False) -> Trait | None:
        """What has changed, or None. `whole`: check as once per epoch."""
        old = self._each_epoch if whole else self._each_batch
        new = self._digest(EACH_EPOCH if whole else EACH_BATCH)
        if isinstance(old, Trait) or isinstance(new, Trait):
            return None if old == new else self._beyond(new) or self._beyond(old)
        key = difference(old, new, self._traits.memos)
        if key is None:
            return None
        place = new.places.get(key) or old.places.get(key)
        return Trait(TraitKind.CHANGES, new.texts.get(key) or old.texts[key], place)

    def handed_out(self, batch: Any) -> Trait | None:
        """What of it a batch shows itself, not a copy; None: the batch is its own."""
        held = self._each_epoch
        if isinstance(held, Trait):
            return None
        for _, tensor in cpu_tensors(batch):
            memory = memory_of(tensor)
            key = None if memory is None else held.holder(memory)
            if key is not None:
                return Trait(TraitKind.HANDED_OUT, held.texts[key], held.places.get(key))
        return None

    def renew(self, *, whole: bool = False) -> None:
        """Take the current state as the one to compare with."""
        self._each_batch = self._digest(EACH_BATCH)
        if whole:
            self._each_epoch = self._digest(EACH_EPOCH)

    def _digest(self, budget: Budget) -> StateDigest | Trait:
        """A digest, or the trait that prevents it."""
        traits = self._traits
        try:
            slots, memos = traits.slots.values(), traits.memos
            return StateDigest(traits.roots, slots, budget, memos, self._without)
        except Exception as problem:
            return Trait(TraitKind.UNREADABLE, type(problem).__name__)

    def _beyond(self, digest: StateDigest | Trait) -> Trait | None:
        if isinstance(digest, Trait) or digest.exceeded is None:
            return digest if isinstance(digest, Trait) else None
        key = digest.exceeded
        return Trait(TraitKind.UNWATCHED, digest.texts.get(key), digest.places.get(key))


def may_change(trait: Trait | None) -> Variation | None:
    """The variation if something changes, or cannot be watched."""
    return None if trait is None else Variation(DataChange.SAMPLES, False, trait)


_MOST_TEXT: Final = 256
_KINDS: Final = (None, *TraitKind)  # by the first byte of a report; 0: there is none


class WorkerReports:
    """Changes that forked workers see in their own copies, and what they hand out of those,
    reported through shared memory."""

    def __init__(self, context: FixContext) -> None:
        self._watched: dict[int, tuple[Any, StateWatch, bool, mmap.mmap]] = {}
        fetchers = torch.utils.data._utils.fetch
        for fetcher in (fetchers._MapDatasetFetcher, fetchers._IterableDatasetFetcher):
            self._replace(context, fetcher, fetcher.fetch)

    def watch(self, dataset: Any, watch: StateWatch, *, unshared: bool = False) -> None:
        """Must be called before workers are forked: they compare with the current state.
        `unshared`: without workers the program has what batches show of that state, too."""
        known = self._watched.get(id(dataset))
        line = known[-1] if known else mmap.mmap(-1, _MOST_TEXT)
        line[:] = bytes(_MOST_TEXT)
        self._watched[id(dataset)] = dataset, watch, unshared, line

    def seen(self, dataset: Any) -> Trait | None:
        """What a worker reported, or None."""
        known = self._watched.get(id(dataset))
        report = known[-1][:] if known else b"\0"
        kind = _KINDS[report[0]]
        return kind and Trait(kind, report[1:].rstrip(b"\0").decode(errors="ignore"))

    def _replace(self, context: FixContext, owner: Any, fetch: Any) -> None:
        def fetched(fetcher: Any, index: Any) -> Any:
            batch = fetch(fetcher, index)
            if torch.utils.data.get_worker_info() is not None:
                self._compare(fetcher, batch)
            return batch

        context.seams.replace(owner, "fetch", fetched)

    def _compare(self, fetcher: Any, batch: Any) -> None:
        makes_new = fetcher.collate_fn is torch.utils.data.default_collate
        known = self._watched.get(id(fetcher.dataset))
        if known is None:
            return
        _, watch, unshared, line = known
        trait = watch.changed()
        if trait is None and unshared and not makes_new:
            trait = watch.handed_out(batch)
        if trait is not None:
            text = (trait.code or trait.what).encode()
            report = bytes([_KINDS.index(trait.what)]) + text[: _MOST_TEXT - 1]
            line[:] = report.ljust(_MOST_TEXT, b"\0")


class BetweenBatches:
    """Detects whether the program changes, between two batches, what later ones are made from."""

    def __init__(self, traits: DatasetTraits, without: Any = None) -> None:
        self._watch = StateWatch(traits, without)
        self._first = True

    def came(self) -> None:
        """A batch was handed over."""
        self._watch.renew(whole=self._first)
        self._first = False

    def changed(self) -> Trait | None:
        """The next batch is requested: what the program changed since."""
        return None if self._first else self._watch.changed()

    def ended(self) -> Trait | None:
        """An epoch is over: what changed among things too large to check at each batch."""
        if self._first or self._watch.unwatched_each_batch is None:
            return None
        return self._watch.changed(whole=True) or self._watch.unwatched


def sampler_watch(loader: Any) -> BetweenBatches | None:
    """A watch for a sampler that is read ahead; None if it chooses all indices at once."""
    sampler = index_sampler(loader._index_sampler)
    if chooses_at_once(sampler):
        return None
    return BetweenBatches(dataset_traits(sampler), without=loader.dataset)


def sampler_changes(trait: Trait | None) -> Variation | None:
    """The variation that the program may cause by changing the sampler."""
    return may_change(trait and Trait(TraitKind.SAMPLER_CHANGES, because=trait))
