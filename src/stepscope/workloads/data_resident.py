"""Moves a whole set of samples to a device, once."""

from collections.abc import Iterator
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils.data import default_collate

from stepscope.record.errors import UsageError

MOST_BYTES: Final = 8 << 30
_TOGETHER: Final = 128


def resident(dataset: Any, device: Any, most_bytes: int = MOST_BYTES) -> tuple[Any, Any]:
    """All inputs and all targets as tensors on the device. UsageError where they take too much."""
    samples = len(dataset)
    each = sum(part.nbytes for part in _tensors(dataset[0]))
    if samples * each > most_bytes:
        raise UsageError(
            f"--data resident: {samples} samples take {samples * each / 2**30:.1f} GiB, more than"
            f" {most_bytes / 2**30:.1f} GiB: at most --samples {most_bytes // each}"
        )
    whole: Any = None
    for start in range(0, samples, _TOGETHER):
        stop = min(samples, start + _TOGETHER)
        part = default_collate([dataset[index] for index in range(start, stop)])
        whole = whole if whole is not None else _room(part, samples, device)
        for to, tensor in zip(_tensors(whole), _tensors(part), strict=True):
            to[start:stop].copy_(tensor)
    inputs, targets = whole
    return inputs, targets


def _room(part: Any, samples: int, device: Any) -> Any:
    if isinstance(part, Tensor):
        return torch.empty((samples, *part.shape[1:]), dtype=part.dtype, device=device)
    if isinstance(part, dict):
        return {name: _room(value, samples, device) for name, value in part.items()}
    return tuple(_room(value, samples, device) for value in part)


def _tensors(part: Any) -> Iterator[Tensor]:
    if isinstance(part, Tensor):
        yield part
    else:
        for value in part.values() if isinstance(part, dict) else part:
            yield from _tensors(value)
