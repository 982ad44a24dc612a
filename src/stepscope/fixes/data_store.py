"""The samples of one dataset that were fetched before."""

from collections.abc import Callable
from typing import Any

from stepscope.fixes.data_look import Changes
from stepscope.fixes.data_samples import copy_of, size_of


class Budget:
    """Bytes that all stores may take together."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0


class Store:
    """Copies of samples by index. It keeps the dataset, so that its id stays its own."""

    def __init__(self, dataset: Any, parts: list[Any], budget: Budget) -> None:
        self.dataset = dataset
        self._parts = parts
        self._changes = Changes(parts)
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
                found.append(kept if lend else copy_of(kept))
            else:
                missing.pop(0)
                sample = next(fetched)
                self._keep(index, sample)
                found.append(sample)
        return found

    def _keep(self, index: Any, sample: Any) -> None:
        size = size_of(sample)
        if self._budget.used + size > self._budget.limit:
            self.full = True
        elif index not in self._samples and not self.uncopyable:
            try:
                self._samples[index] = copy_of(sample)
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
        self._changes = Changes(self._parts)
