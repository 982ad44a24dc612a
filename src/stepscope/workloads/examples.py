"""Batches of any size from one example of a model's inputs."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def has_tensor(nest: Any) -> bool:
    """Whether a tensor is somewhere in tuples, lists and mappings."""
    return _first(nest) is not None


def repeated(nest: Any, batch: int) -> Any:
    """The same nest with `batch` samples: those of the example, over and over.

    A tensor is a batch if its first dimension is as long as that of the first one.
    """
    first = _first(nest)
    if first is None or first.dim() == 0:
        return nest
    samples = first.shape[0]
    return _map(nest, samples, torch.arange(batch) % samples)


def _first(nest: Any) -> Tensor | None:
    if isinstance(nest, Tensor):
        return nest
    items = nest.values() if isinstance(nest, Mapping) else nest
    if isinstance(nest, Mapping | tuple | list):
        return next((found for item in items if (found := _first(item)) is not None), None)
    return None


def _map(nest: Any, samples: int, rows: Tensor) -> Any:
    if isinstance(nest, Tensor):
        batched = nest.dim() > 0 and nest.shape[0] == samples
        return nest.index_select(0, rows.to(nest.device)) if batched else nest
    if isinstance(nest, Mapping):
        return {key: _map(item, samples, rows) for key, item in nest.items()}
    if isinstance(nest, tuple | list):
        items = [_map(item, samples, rows) for item in nest]
        named = isinstance(nest, tuple) and hasattr(nest, "_fields")
        return type(nest)(*items) if named else type(nest)(items)
    return nest
