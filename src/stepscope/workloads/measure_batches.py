"""Batches that are on the device already, and models that take several tensors."""

from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from stepscope.workloads.tasks import resident


class Spread(nn.Module):
    """A user's model that is called with several tensors, as a model that takes them as one."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Any) -> Any:
        return self.model(**inputs) if isinstance(inputs, dict) else self.model(*inputs)


class Resident:
    """Batches of samples that stay on the device: slices of them, always in the same order."""

    def __init__(self, samples: Any, batch: int, device: Any) -> None:
        whole = resident(samples, device)
        starts = range(0, len(samples) - batch + 1, batch)
        self._batches = [_rows(whole, slice(start, start + batch)) for start in starts]

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return iter(self._batches)


class Moved:
    """Batches of several tensors each, brought to the device as they come."""

    def __init__(self, batches: Any, device: Any) -> None:
        self._batches = batches
        self._device = device

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        for batch in self._batches:
            yield tree_map_only(Tensor, lambda tensor: tensor.to(self._device), batch)


def forever(batches: Iterable[Any]) -> Iterator[Any]:
    """One epoch after the other."""
    while True:
        yield from batches


def _rows(whole: Any, rows: slice) -> Any:
    return tree_map_only(Tensor, lambda tensor: tensor[rows], whole)
