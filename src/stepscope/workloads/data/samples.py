"""Stored samples as a model's input tensors, one by one or a whole set on the device at once."""

from collections.abc import Callable
from typing import Any, Final, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import Dataset, default_collate

from stepscope.record.errors import UsageError
from stepscope.workloads.data.synthetic import LabelledArrays

IN_MEMORY_BYTES: Final = 256 << 20
"""Sets up to this size are made once and kept; larger ones are made anew at every use."""
_GREY, _SPREAD = 127.5, 63.75


class Source(Protocol):
    """Stored samples: arrays of small numbers. An index always gives the same sample."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> tuple[Any, Any]: ...


class Samples(Dataset[tuple[Tensor, Tensor]]):
    """Items (input, target) of a source."""

    def __init__(self, source: Source, prepare: Callable[[Any, Any], tuple[Any, Any]]) -> None:
        self.source = source
        self.prepare = prepare

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.prepare(*self.source[index])


class ToImageTensor:
    """An image with mean about 0 and deviation about 1, resized if necessary. A target of the same
    size is resized with it, by nearest neighbour."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, image: Any, target: Any) -> tuple[Tensor, Tensor]:
        values = torch.from_numpy(image).float().sub_(_GREY).div_(_SPREAD)
        labels = torch.as_tensor(target, dtype=torch.int64)
        if values.shape[-1] == self.size:
            return values, labels
        to = (self.size, self.size)
        values = nn.functional.interpolate(
            values[None], size=to, mode="bilinear", align_corners=False, antialias=True
        )[0]
        if labels.dim():
            labels = nn.functional.interpolate(labels[None, None].float(), size=to)[0, 0].long()
        return values, labels


class ToTokenTensor:
    """Characters or tokens as integers for embeddings."""

    def __call__(self, codes: Any, target: Any) -> tuple[Tensor, Tensor]:
        return tuple(torch.as_tensor(part, dtype=torch.int64) for part in (codes, target))


class InMemorySource(LabelledArrays):
    """All samples of a source, made once."""

    def __init__(self, source: Source) -> None:
        items = [source[index] for index in range(len(source))]
        self.inputs, self.labels = (np.stack(part) for part in zip(*items, strict=True))


def keep_in_memory(source: Source) -> Source:
    image, target = source[0]
    bytes_of_all = len(source) * (image.nbytes + target.nbytes)
    return InMemorySource(source) if bytes_of_all <= IN_MEMORY_BYTES else source


MAX_RESIDENT_BYTES: Final = 8 << 30
_TOGETHER: Final = 128


def copy_to_device(
    dataset: Any, device: Any, most_bytes: int = MAX_RESIDENT_BYTES
) -> tuple[Any, Any]:
    """All inputs and targets as tensors on the device. Raises UsageError if they are too large."""
    samples, first = len(dataset), default_collate([dataset[0]])
    each = sum(part.nbytes for part in tree_leaves(first))
    if samples * each > most_bytes:
        raise UsageError(
            f"--data resident: {samples} samples take {samples * each / 2**30:.1f} GiB, more than"
            f" {most_bytes / 2**30:.1f} GiB: at most --samples {most_bytes // each}"
        )
    whole = tree_map(
        lambda one: torch.empty((samples, *one.shape[1:]), dtype=one.dtype, device=device), first
    )
    for start in range(0, samples, _TOGETHER):
        stop = min(samples, start + _TOGETHER)
        part = default_collate([dataset[index] for index in range(start, stop)])
        for to, tensor in zip(tree_leaves(whole), tree_leaves(part), strict=True):
            to[start:stop].copy_(tensor)
    inputs, targets = whole
    return inputs, targets
