"""Keep the samples of a dataset in memory once they have been made."""

import copy
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from stepscope.analyze.replay.known import Changes, KnownProgram
from stepscope.fixes.applicability import ObservedProgram, ProgramPart, waits_little
from stepscope.fixes.base import Fix, FixContext, FixKind, SourceEdit
from stepscope.fixes.inspect.dataset_traits import AttributeChanges, dataset_traits
from stepscope.fixes.inspect.loaders import LoaderRecords
from stepscope.hardware.processor import cgroup_limits
from stepscope.record.errors import UsageError
from stepscope.record.fix import Applied, NotApplied, Reason, SourceLine, Target, Variation
from stepscope.record.trial import Rejection, RejectReason

_UNITS: Final = {"": 1 << 20, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_OVERHEAD: Final = 64
_LOOKUP_SHARE: Final = 0.02  # of making a sample: looking it up
_FIXED: Final = (type(None), bool, int, float, complex, str, bytes)


def parse_size(text: str) -> int | None:
    """Bytes in `4G`, `500M` or `500` (MiB); None where it is no size."""
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,3})?)\s?([KMGT]?)(?:i?B)?", text.strip(), re.I)
    if found is None:
        return None
    return int(float(found[1]) * _UNITS[found[2].upper()]) or None


def free_bytes(root: Path = Path("/")) -> int | None:
    """Memory this process may still take; None where the system does not say."""
    try:
        text = (root / "proc/meminfo").read_text()
        own = (root / "proc/self/statm").read_text()
    except OSError:
        return None
    found = re.search(r"MemAvailable:\s+(\d+) kB", text)
    if found is None:
        return None
    _, limit = cgroup_limits(root)
    free = int(found[1]) << 10
    return free if limit is None else max(0, min(free, limit - int(own.split()[1]) * 4096))


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


class _CacheBudget:
    """Bytes that all stores may take together."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0


class _SampleStore:
    """Copies of samples by index. It keeps the dataset, so that its id stays its own."""

    def __init__(self, dataset: Any, parts: list[Any], budget: _CacheBudget) -> None:
        self.dataset = dataset
        self._parts = parts
        self._changes = AttributeChanges(parts)
        self._budget = budget
        self._samples: dict[Any, Any] = {}
        self._size = 0
        self.full = False
        self.uncopyable = False

    def __len__(self) -> int:
        return len(self._samples)

    def get(
        self, indices: list[Any], fetch: Callable[[list[Any]], list[Any]], lend: bool
    ) -> list[Any]:
        """The samples at these indices; `lend`: the caller does not change them."""
        if self._changes.any():
            self._clear()
        missing = [index for index in indices if index not in self._samples]
        fetched = iter(fetch(missing) if missing else ())
        found = []
        for index in indices:
            if index in self._samples and not (missing and missing[0] == index):
                kept = self._samples[index]
                found.append(kept if lend else copied_sample(kept))
            else:
                missing.pop(0)
                sample = next(fetched)
                self._keep(index, sample)
                found.append(sample)
        return found

    def _keep(self, index: Any, sample: Any) -> None:
        size = sample_bytes(sample)
        if self._budget.used + size > self._budget.limit:
            self.full = True
        elif index not in self._samples and not self.uncopyable:
            try:
                self._samples[index] = copied_sample(sample)
            except Exception:
                self.uncopyable = True
                return
            self._size += size
            self._budget.used += size

    def _clear(self) -> None:
        """The program has changed the dataset: what was kept may be wrong now."""
        self._budget.used -= self._size
        self._samples.clear()
        self._size, self.full = 0, False
        self._changes = AttributeChanges(self._parts)


_PLAIN = (int, str, tuple)


class Cache(Fix):
    """For loaders without workers: what is kept in a worker dies with it, once for each of them.

    Only for datasets that look as if they gave the same sample each time; when the program sets
    something on the dataset, what was kept is dropped. Collate functions get copies, except
    torch's own, which changes nothing; the dataset's own objects are never kept.
    """

    name = "cache"
    group = "data"
    title = "keep samples in memory once they were made"
    edited_by_hand = True
    kind = FixKind.EXACT
    effort = "a few lines in the dataset"
    values = ("SIZE",)
    suggested = ("4G",)
    bad_with = ("workers",)
    missing = "no DataLoader is used here"
    works_on = ProgramPart.LOADER
    only_if_found = True

    def parse(self, text: str | None) -> Any:
        """`4G`, `500M`, or a number of MiB."""
        if text is None:
            return None
        if parse_size(text) is None:
            raise UsageError(f"--fix cache={text}: use a size such as 4G, 500M or 500 (MiB)")
        return text

    def applies(self, program: ObservedProgram) -> Rejection | None:
        if all(one.get("num_workers") for one in program.loaders):
            return Rejection(RejectReason.HAS_WORKERS)
        return waits_little(program)

    def first_values(self, program: ObservedProgram, proposed: str | None) -> list[str | None]:
        return [proposed]  # None: half of the memory that is free

    def predict(self, value: str | None, known: KnownProgram) -> Changes:
        """Only collating is left of making a batch, once every sample was seen."""
        from stepscope.analyze.replay.changes import scale_batch_time

        if known.show is None or not known.show.pipeline:
            return None
        collating = max(source.collate_share for source in known.show.pipeline)
        return [scale_batch_time(min(1.0, collating + _LOOKUP_SHARE))]

    def install(self, value: Any, hands: FixContext) -> None:
        from torch.utils.data import default_collate
        from torch.utils.data._utils.fetch import _MapDatasetFetcher

        limit = parse_size(value) if value else (free_bytes() or 0) // 2
        if not limit:
            hands.not_applied(NotApplied(Reason.FREE_MEMORY_UNKNOWN))
            return
        stores = _Stores(hands, limit)

        def fetch(call: Any, fetcher: Any, possibly_batched_index: Any) -> Any:
            store = stores.of.get(id(fetcher.dataset))
            batched = fetcher.auto_collation
            indices = possibly_batched_index if batched else [possibly_batched_index]
            if store is None or not all(isinstance(index, _PLAIN) for index in indices):
                return call(fetcher, possibly_batched_index)
            lend = fetcher.collate_fn is default_collate
            data: Any = store.get(list(indices), lambda some: _made(fetcher, some), lend)
            if store.full or store.uncopyable:
                stores.stopped(store)
            return fetcher.collate_fn(data if batched else data[0])

        def iterated(make: Any, loader: Any) -> Any:
            stores.open(loader)
            return make(loader)

        stores.marks.watch(lambda arguments: None)
        hands.seams.loader_iterated(iterated)
        hands.seams.around(_MapDatasetFetcher, "fetch", fetch)

    def edit(self, value: Any, line: str) -> SourceEdit:
        return SourceEdit(
            "keep each sample in a dictionary of the dataset: in `__getitem__`, return"
            " `self.kept[index]` if it is there, and store what was made otherwise"
        )


class _Stores:
    """The stores there are, by the id of their dataset."""

    def __init__(self, hands: FixContext, limit: int) -> None:
        self.marks = LoaderRecords(hands)
        self.of: dict[int, _SampleStore | None] = {}
        self._hands = hands
        self._budget = _CacheBudget(limit)
        self._kept: dict[int, tuple[Any, SourceLine | None]] = {}
        """Datasets, so that their ids stay theirs, and where the loader of each was made."""
        self._told: set[int] = set()

    def open(self, loader: Any) -> None:
        """A loader is iterated: have its samples kept, or say why not."""
        dataset, place = loader.dataset, self.marks.place(loader)
        if loader.num_workers:
            self._refuse(Reason.HAS_WORKERS, place)
        elif id(dataset) not in self.of:
            seen = dataset_traits(dataset)
            varies = seen.varies()
            reason = _out_of_question(dataset) or (Reason.SAMPLES_VARY if varies else None)
            store = None if reason else _SampleStore(dataset, seen.parts, self._budget)
            self.of[id(dataset)] = store
            self._kept[id(dataset)] = (dataset, place)
            if reason:
                self._refuse(reason, place, varies)
            else:
                self._hands.applied(Applied(Target.SAMPLES, place=place, after=self._budget.limit))

    def stopped(self, store: _SampleStore) -> None:
        """Say, once, why no more samples are kept."""
        dataset, place = self._kept[id(store.dataset)]
        if store.uncopyable:
            self.of[id(dataset)] = None
            self._refuse(Reason.UNCOPYABLE, place)
        elif id(dataset) not in self._told:
            self._told.add(id(dataset))
            total = len(dataset) if hasattr(dataset, "__len__") else None
            limit = self._budget.limit
            self._hands.applied(
                Applied(
                    Target.SAMPLES_THAT_FIT,
                    place=place,
                    count=len(store),
                    total=total,
                    after=limit,
                )
            )

    def _refuse(
        self, reason: Reason, place: SourceLine | None, varies: Variation | None = None
    ) -> None:
        self._hands.not_applied(NotApplied(reason, Target.LOADER, place=place, varies=varies))


def _made(fetcher: Any, indices: list[Any]) -> list[Any]:
    """Samples as torch's fetcher would make them."""
    dataset = fetcher.dataset
    if fetcher.auto_collation and getattr(dataset, "__getitems__", None):
        return list(dataset.__getitems__(indices))
    return [dataset[index] for index in indices]


def _out_of_question(dataset: Any) -> Reason | None:
    """Why samples of a dataset cannot be kept, or need not be."""
    from torch.utils.data import IterableDataset, TensorDataset

    if isinstance(dataset, IterableDataset):
        return Reason.ITERABLE_DATASET
    return Reason.IN_MEMORY if type(dataset) is TensorDataset else None


FIX = Cache()
