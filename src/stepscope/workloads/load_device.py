"""Batches on their way to the device that will use them."""

from collections.abc import Iterator
from typing import Any

import torch


class Place:
    """Where batches go. Copies from pinned memory run beside the loader, one at a time."""

    def __init__(self, device: str, pinned: bool, batch: int) -> None:
        self._device = torch.device(device)
        self._pinned = pinned
        self._batch = batch
        self._copies: list[Any] = []  # events that end the copies under way
        if self._device.type == "cuda":
            torch.zeros(1, device=self._device)
            self._mark()
            self.wait()

    def take(self, batch: Any) -> int:
        """Move a batch, waiting for the one before it. Gives the samples in it."""
        moved = self._moved(batch)
        if self._device.type == "cuda":
            self._mark()
            if len(self._copies) > 1:
                self._copies.pop(0).synchronize()
        first = next(tensors(moved), None)
        return int(first.shape[0]) if first is not None and first.dim() else self._batch

    def wait(self) -> None:
        """Until everything has arrived."""
        while self._copies:
            self._copies.pop(0).synchronize()

    def _mark(self) -> None:
        event = torch.cuda.Event()
        event.record()
        self._copies.append(event)

    def _moved(self, batch: Any) -> Any:
        if isinstance(batch, torch.Tensor):
            return batch.to(self._device, non_blocking=self._pinned)
        if isinstance(batch, dict):
            return {key: self._moved(value) for key, value in batch.items()}
        if isinstance(batch, list | tuple):
            return [self._moved(value) for value in batch]
        return batch


def tensors(batch: Any) -> Iterator[Any]:
    """All tensors in a batch, however nested."""
    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, dict | list | tuple):
        for value in batch.values() if isinstance(batch, dict) else batch:
            yield from tensors(value)


def size_of(batch: Any) -> int:
    """Bytes in all its tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors(batch))
