"""Keys and values of the tokens seen so far, in memory that is allocated once."""

import sys
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class LayerCache:
    """One layer's keys and values, each [N, heads, length, width of a head]."""

    keys: Tensor
    values: Tensor

    def write(self, places: Tensor, key: Tensor, value: Tensor) -> None:
        """Puts those of some tokens at their places; gradients do not pass through a cache."""
        self.keys.index_copy_(2, places, key.detach().to(self.keys.dtype))
        self.values.index_copy_(2, places, value.detach().to(self.values.dtype))


@dataclass(frozen=True, slots=True)
class KVCache:
    """All layers', and the place of the next token: an int64 tensor [1] beside them."""

    layers: tuple[LayerCache, ...]
    position: Tensor

    @classmethod
    def empty(
        cls, layers: int, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
    ) -> "KVCache":
        """For some layers; `shape` is that of one layer's keys."""

        def zeros() -> Tensor:
            return _fixed(torch.zeros(shape, dtype=dtype, device=device))

        position = _fixed(torch.zeros(1, dtype=torch.int64, device=device))
        return cls(tuple(LayerCache(zeros(), zeros()) for _ in range(layers)), position)

    def visible(self) -> Tensor:
        """Which places the next token may look at: bool [1, length], its own among them."""
        length = self.layers[0].keys.shape[2]
        places = torch.arange(length, device=self.position.device)
        return (places <= self.position)[None]


def _fixed(tensor: Tensor) -> Tensor:
    """Tells a compiler in use that the tensor stays where it is: it records no CUDA graph of a call
    that writes to its inputs otherwise. A program that compiles nothing is spared its import.
    """
    compiler = sys.modules.get("torch._dynamo")
    if compiler is not None:
        compiler.mark_static_address(tensor, guard=False)
    return tensor
