"""Keep the samples of a dataset in memory once they were made."""

from typing import Any

from stepscope.fixes.base import Edit, Fix, Hands, Kind
from stepscope.fixes.data_look import look
from stepscope.fixes.data_samples import free_bytes, parse_size, size_text
from stepscope.fixes.data_store import Budget, Store
from stepscope.fixes.loader_marks import Marks
from stepscope.record.errors import UsageError

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
    kind = Kind.EXACT
    effort = "a few lines in the dataset"
    values = ("SIZE",)
    suggested = ("4G",)
    bad_with = ("workers",)
    missing = "no DataLoader is used here"

    def parse(self, text: str | None) -> Any:
        """`4G`, `500M`, or a number of MiB."""
        if text is None:
            return None
        if parse_size(text) is None:
            raise UsageError(f"--fix cache={text}: use a size such as 4G, 500M or 500 (MiB)")
        return text

    def install(self, value: Any, hands: Hands) -> None:
        from torch.utils.data import default_collate
        from torch.utils.data._utils.fetch import _MapDatasetFetcher

        limit = parse_size(value) if value else (free_bytes() or 0) // 2
        if not limit:
            hands.unfit("how much memory is free is not known here; give a size: cache=4G")
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

    def edit(self, value: Any, line: str) -> Edit:
        return Edit(
            "keep each sample in a dictionary of the dataset: in `__getitem__`, return"
            " `self.kept[index]` if it is there, and store what was made otherwise"
        )


class _Stores:
    """The stores there are, by the id of their dataset."""

    def __init__(self, hands: Hands, limit: int) -> None:
        self.marks = Marks(hands)
        self.of: dict[int, Store | None] = {}
        self._hands = hands
        self._budget = Budget(limit)
        self._where: dict[int, tuple[Any, str]] = {}  # datasets are kept: their ids stay theirs

    def open(self, loader: Any) -> None:
        """A loader is iterated: have its samples kept, or say why not."""
        dataset = loader.dataset
        where = f"the {self.marks.where(loader)}"
        if loader.num_workers:
            self._hands.unfit(f"{where} has workers, which would each keep samples of their own")
        elif id(dataset) not in self.of:
            seen = look(dataset)
            reason = _unfit(dataset) or seen.varies()
            store = None if reason else Store(dataset, seen.parts, self._budget)
            self.of[id(dataset)] = store
            self._where[id(dataset)] = (dataset, where)
            if reason:
                self._hands.unfit(f"{where}: {reason}")
            else:
                self._hands.applied(f"samples of {where}, up to {size_text(self._budget.limit)}")

    def stopped(self, store: Store) -> None:
        """Say, once, why no more samples are kept."""
        dataset, where = self._where[id(store.dataset)]
        if store.uncopyable:
            self.of[id(dataset)] = None
            self._hands.unfit(f"samples of {where} cannot be copied")
        elif where:
            self._where[id(dataset)] = (dataset, "")
            total = f" of {len(dataset):,}" if hasattr(dataset, "__len__") else ""
            room = size_text(self._budget.limit)
            self._hands.applied(f"{len(store):,}{total} samples of {where} had room in {room}")


def _made(fetcher: Any, indices: list[Any]) -> list[Any]:
    """Samples as torch's fetcher would make them."""
    dataset = fetcher.dataset
    if fetcher.auto_collation and getattr(dataset, "__getitems__", None):
        return list(dataset.__getitems__(indices))
    return [dataset[index] for index in indices]


def _unfit(dataset: Any) -> str | None:
    from torch.utils.data import IterableDataset, TensorDataset

    if isinstance(dataset, IterableDataset):
        return "samples of an IterableDataset have no index to keep them by"
    if type(dataset) is TensorDataset:
        return "a TensorDataset is in memory already"
    return None


FIX = Cache()
