"""What a call is given, apart: tensors that may change, and all that a graph would freeze."""

from dataclasses import dataclass
from typing import Any

_PLAIN = (type(None), bool, int, float, str)


@dataclass(frozen=True, slots=True)
class Taken:
    """A nest of lists, tuples and dicts taken apart."""

    tensors: list[Any]
    key: tuple[Any, ...]
    """All but the tensors' contents: two with the same key can go through the same graph."""
    strange: str | None
    """The type of something a graph can neither take nor freeze; None if there is none."""
    _spec: Any
    _plain: list[Any]

    def together(self, tensors: list[Any]) -> Any:
        """The nest again, with these tensors in it."""
        from torch.utils._pytree import tree_unflatten

        given = iter(tensors)
        leaves = [next(given) if leaf is _TENSOR else leaf for leaf in self._plain]
        return tree_unflatten(leaves, self._spec)


_TENSOR = object()


def take_apart(nest: Any) -> Taken:
    """Take a nest of tensors and plain values apart."""
    import torch
    from torch.utils._pytree import tree_flatten

    leaves, spec = tree_flatten(nest)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    plain = [_TENSOR if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    odd = [leaf for leaf in plain if leaf is not _TENSOR and not _is_plain(leaf)]
    odd += [tensor for tensor in tensors if tensor.layout != torch.strided]
    key = (
        str(spec),
        tuple(_described(tensor) for tensor in tensors),
        tuple((type(leaf), leaf) for leaf in plain if leaf is not _TENSOR and _is_plain(leaf)),
    )
    return Taken(tensors, key, type(odd[0]).__qualname__ if odd else None, spec, plain)


def _is_plain(leaf: Any) -> bool:
    import torch

    return isinstance(leaf, (*_PLAIN, torch.dtype, torch.device))


def _described(tensor: Any) -> tuple[Any, ...]:
    import torch

    strides = tensor.stride() if tensor.layout == torch.strided else None
    return tensor.shape, strides, tensor.dtype, tensor.device, tensor.requires_grad
