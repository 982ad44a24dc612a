"""Keep the samples of a dataset in memory once they have been made."""

import copy
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from stepscope.analyze.replay.known import Changes, KnownProgram
from stepscope.fixes.applicability import ObservedProgram, ProgramPart, unsuitable, waits_little
from stepscope.fixes.base import Fix, FixContext, FixKind, LiveProgram, SourceEdit
from stepscope.fixes.inspect.dataset_traits import dataset_traits
from stepscope.fixes.inspect.loaders import LoaderRecords
from stepscope.fixes.inspect.state_watch import StateWatch, may_change
from stepscope.fixes.lazy import changes, torch
from stepscope.hardware.processor import free_bytes
from stepscope.record.errors import UsageError
from stepscope.record.fix import (
    LOADER,
    Applied,
    NotApplied,
    Reason,
    SourceLine,
    Target,
    Trait,
    Variation,
)
from stepscope.record.trial import Rejection

_UNITS: Final = {"": 1 << 20, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_OVERHEAD: Final = 64
_LOOKUP_SHARE: Final = 0.02  # of making a sample: looking it up
_FIXED: Final = (type(None), bool, int, float, complex, str, bytes)
_INDEX: Final = (int, str, tuple)
WORKERS_DO_NOT_SHARE = Reason("has_workers", "loader workers do not share samples")
SEEN_ONCE = Reason("seen_once", "no second epoch was seen, which would reuse samples")
SAMPLES = Target("samples", "samples of the DataLoader{at}, up to {size}{varies}")
SAMPLES_THAT_FIT = Target(
    "samples_that_fit", "{count:,}{total} samples of the DataLoader{at} fit into {size}"
)
FREE_MEMORY_UNKNOWN = Reason("free_memory_unknown", "free memory unknown; give a size: cache=4G")
HAS_WORKERS = Reason(
    "has_workers", "{subject} has workers, which would each keep samples of their own"
)
ITERABLE_DATASET = Reason(
    "iterable_dataset", "{subject}: samples of an IterableDataset have no index"
)
IN_MEMORY = Reason("in_memory", "{subject}: a TensorDataset is already in memory")
SAMPLES_VARY = Reason("samples_vary", "{subject}: {varies}")
UNCOPYABLE = Reason("uncopyable", "samples of {subject} cannot be copied")


def parse_size(text: str) -> int | None:
    """Bytes in `4G`, `500M` or `500` (MiB); None where it is no size."""
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,3})?)\s?([KMGT]?)(?:i?B)?", text.strip(), re.I)
    if found is None:
        return None
    return int(float(found[1]) * _UNITS[found[2].upper()]) or None


def sample_bytes(sample: Any) -> int:
    """About how many bytes a sample takes."""
    if isinstance(sample, (bytes, str)):
        return _OVERHEAD + len(sample)
    if isinstance(sample, Mapping):
        return _OVERHEAD + sum(sample_bytes(value) + _OVERHEAD for value in sample.values())
    if isinstance(sample, (list, tuple)):
        return _OVERHEAD + sum(map(sample_bytes, sample))
    pixels = getattr(sample, "size", None)
    if hasattr(sample, "getbands") and isinstance(pixels, tuple):  # an image of PIL
        return _OVERHEAD + int(pixels[0] * pixels[1] * len(sample.getbands()))
    held = getattr(sample, "__dict__", None)
    return _OVERHEAD + int(getattr(sample, "nbytes", 0)) + (sample_bytes(held) if held else 0)


def copied_sample(sample: Any) -> Any:
    """A sample that may be changed without changing this one."""
    if isinstance(sample, _FIXED):
        return sample
    if hasattr(sample, "untyped_storage") and hasattr(sample, "clone"):
        return sample.clone()
    kind = type(sample)
    if kind in (list, tuple):
        return kind(copied_sample(item) for item in sample)
    if kind is dict:
        return {key: copied_sample(item) for key, item in sample.items()}
    return copy.deepcopy(sample)


@dataclass(slots=True)
class _CacheBudget:
    """Bytes that all stores may use together, and the bytes in use."""

    limit: int
    used: int = 0


class _SampleStore:
    """Copies of samples by index. It keeps the dataset, so that its id stays its own."""

    def __init__(self, loader: Any, place: SourceLine | None, budget: _CacheBudget) -> None:
        self.dataset, self.place = loader.dataset, place
        self.traits = dataset_traits(loader.dataset)
        self.on = self.told = False
        """Whether samples are kept; whether it was reported that no more fit."""
        self.changes_itself: Trait | None = None
        """What making samples was seen to change."""
        self._watch = StateWatch(self.traits)
        self._lent = False
        self._budget = budget
        self.samples: dict[Any, Any] = {}
        self._size = 0
        self.full = False
        self.uncopyable = False

    def get(
        self, indices: list[Any], fetch: Callable[[list[Any]], list[Any]], lend: bool
    ) -> list[Any]:
        """The samples at these indices; `lend`: the caller does not change them."""
        if self._watch.changed() is not None:  # by the program: stored samples may be wrong now
            self.drop()
        missing = [index for index in indices if index not in self.samples]
        fetched = iter(fetch(missing) if missing else ())
        if missing:
            self.changes_itself = self._watch.changed()
        self._lent |= len(missing) < len(indices)
        found = []
        for index in indices:
            if index in self.samples and not (missing and missing[0] == index):
                kept = self.samples[index]
                found.append(kept if lend else copied_sample(kept))
            else:
                missing.pop(0)
                sample = next(fetched)
                self._keep(index, sample)
                found.append(sample)
        return found

    def varies(self, loader: Any) -> Variation | None:
        """Why samples may differ between epochs; None if they do not."""
        seen = self.traits
        shares = seen.shares(loader.collate_fn)
        return seen.varies() or may_change(seen.logs or self._watch.unwatched or shares)

    def stale(self) -> Trait | None:
        """An epoch begins or ends. Drops stored samples if something changed; returns what, if
        samples lent since the last call may have been stale."""
        found, lent = self._watch.changed(whole=True), self._lent
        self._lent = False
        if found is None:
            return None
        self.drop()
        return found if lent else None

    def drop(self) -> None:
        """Forget what was kept."""
        self._budget.used -= self._size
        self.samples.clear()
        self._size, self.full = 0, False
        self._watch.renew(whole=True)

    def _keep(self, index: Any, sample: Any) -> None:
        size = sample_bytes(sample)
        if self._budget.used + size > self._budget.limit:
            self.full = True
        elif index not in self.samples and not self.uncopyable:
            try:
                self.samples[index] = copied_sample(sample)
            except Exception:
                self.uncopyable = True
                return
            self._size += size
            self._budget.used += size


class Cache(Fix):
    """For loaders without workers: what is kept in a worker dies with it, once for each of them.

    Only for datasets that look as if they gave the same sample each time; when something samples
    depend on changes, what was kept is dropped. Collate functions get copies, except torch's own,
    which changes nothing; the dataset's own objects are never kept.
    """

    name = "cache"
    group = "data"
    title = "keep samples in memory once they were made"
    edited_by_call = True
    kind = FixKind.EXACT
    effort = "a few lines in the dataset"
    values = ("SIZE",)
    suggested = ("4G",)
    bad_with = ("workers",)
    missing = "no DataLoader"
    works_on = ProgramPart.LOADER

    def parse(self, text: str | None) -> Any:
        """`4G`, `500M`, or a number of MiB."""
        if text is None:
            return None
        if parse_size(text) is None:
            raise UsageError(f"--fix cache={text}: use a size such as 4G, 500M or 500 (MiB)")
        return text

    def applies(self, program: ObservedProgram) -> Rejection | None:
        if all(one.get("num_workers") for one in program.loaders):
            return unsuitable(WORKERS_DO_NOT_SHARE)
        once = program.epochs < 2 and not program.proposed(self.name)
        return waits_little(program) or (unsuitable(SEEN_ONCE) if once else None)

    def first_values(self, program: ObservedProgram, proposed: str | None) -> list[str | None]:
        return [proposed]  # None: half of the memory that is free

    def predict(self, value: str | None, known: KnownProgram) -> Changes:
        """Once every sample was seen, making a batch is only collating."""
        if known.show is None or not known.show.pipeline:
            return None
        collating = max(source.collate_share for source in known.show.pipeline)
        return [changes.scale_batch_time(min(1.0, collating + _LOOKUP_SHARE))]

    def check(self, live: LiveProgram) -> NotApplied | None:
        if live.loader is None:
            return None
        loader = live.loader.loader
        if not free_bytes():
            return NotApplied(FREE_MEMORY_UNKNOWN)
        store = _SampleStore(loader, None, _CacheBudget(0)) if not loader.num_workers else None
        return _refused(loader, store)

    def install(self, value: Any, context: FixContext) -> None:
        limit = parse_size(value) if value else (free_bytes() or 0) // 2
        if not limit:
            context.not_applied(NotApplied(FREE_MEMORY_UNKNOWN))
            return
        stores = _Stores(context, limit)
        fetcher = torch.utils.data._utils.fetch._MapDatasetFetcher
        context.seams.loader_iterated(stores.iterated)
        context.seams.around(fetcher, "fetch", stores.fetch)
        iterator = torch.utils.data.dataloader._SingleProcessDataLoaderIter
        context.seams.around(iterator, "_next_data", stores.next)
        context.seams.core.on_end.append(stores.end)

    def edit(self, value: Any, line: str) -> SourceEdit:
        return SourceEdit(
            "keep each sample in a dictionary of the dataset: in `__getitem__`, return"
            " `self.kept[index]` if it is there, and store what was made otherwise"
        )


class _Stores:
    """The stores there are, by the id of their dataset."""

    def __init__(self, context: FixContext, limit: int) -> None:
        self._context = context
        self._marks = LoaderRecords(context)
        self._marks.watch(lambda arguments: None)
        self._budget = _CacheBudget(limit)
        self._of: dict[int, _SampleStore] = {}

    def iterated(self, make: Any, loader: Any) -> Any:
        """A loader is iterated: store its samples, or report why not."""
        dataset, place = loader.dataset, self._marks.place(loader)
        if not loader.num_workers and id(dataset) in self._of:
            self._check(self._of[id(dataset)])
            return make(loader)
        store = None if loader.num_workers else _SampleStore(loader, place, self._budget)
        if store is not None:
            self._of[id(dataset)] = store
        refused = _refused(loader, store)
        if refused is not None:
            self._context.not_applied(replace(refused, place=place))
        elif store is not None:
            store.on = True
            self._context.applied(Applied(SAMPLES, place=place, after=self._budget.limit))
        return make(loader)

    def next(self, call: Any, iterator: Any) -> Any:
        """A batch of a loader without workers is requested."""
        try:
            return call(iterator)
        except StopIteration:
            store = self._of.get(id(iterator._dataset))
            if store is not None:
                self._check(store)
            raise

    def end(self) -> None:
        """The program is over."""
        for store in self._of.values():
            self._check(store)

    def _check(self, store: _SampleStore) -> None:
        if store.on and (seen := store.stale()) is not None:
            limit, varies = self._budget.limit, may_change(seen)
            lent = Applied(SAMPLES, place=store.place, after=limit, varies=varies)
            self._context.applied(lent, FixKind.NUMERIC)

    def fetch(self, call: Any, fetcher: Any, possibly_batched_index: Any) -> Any:
        """Samples from a store; missing ones are made as torch's fetcher would."""
        dataset, batched = fetcher.dataset, fetcher.auto_collation
        store = self._of.get(id(dataset))
        indices = possibly_batched_index if batched else [possibly_batched_index]
        plain = all(isinstance(index, _INDEX) for index in indices)
        if store is None or not store.on or not plain:
            return call(fetcher, possibly_batched_index)

        def make(missing: list[Any]) -> list[Any]:
            if batched and getattr(dataset, "__getitems__", None):
                return list(dataset.__getitems__(missing))
            return [dataset[index] for index in missing]

        lend = fetcher.collate_fn is torch.utils.data.default_collate
        data: Any = store.get(list(indices), make, lend)
        if store.changes_itself is not None:
            self._check(store)
            store.on = False
            varies = may_change(store.changes_itself)
            refused = NotApplied(SAMPLES_VARY, LOADER, place=store.place, varies=varies)
            self._context.not_applied(refused)
        elif store.uncopyable:
            store.on = False
            self._context.not_applied(NotApplied(UNCOPYABLE, LOADER, place=store.place))
        elif store.full and not store.told:
            store.told = True
            total = len(dataset) if hasattr(dataset, "__len__") else None
            count, limit = len(store.samples), self._budget.limit
            fits = Applied(SAMPLES_THAT_FIT, None, store.place, None, limit, count, total)
            self._context.applied(fits)
        return fetcher.collate_fn(data if batched else data[0])


def _refused(loader: Any, store: _SampleStore | None) -> NotApplied | None:
    """Why samples are not kept; None: they are. No store: the loader has workers."""
    if store is None:
        return NotApplied(HAS_WORKERS, LOADER)
    varies = store.varies(loader)
    if isinstance(loader.dataset, torch.utils.data.IterableDataset):
        return NotApplied(ITERABLE_DATASET, LOADER, varies=varies)
    if type(loader.dataset) is torch.utils.data.TensorDataset:
        return NotApplied(IN_MEMORY, LOADER, varies=varies)
    return NotApplied(SAMPLES_VARY, LOADER, varies=varies) if varies else None


FIX = Cache()
