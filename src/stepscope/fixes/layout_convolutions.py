"""The convolutions of a model."""

from collections.abc import Iterator
from typing import Any


def convolution_weights(module: Any) -> Iterator[Any]:
    """The weights of every layer that convolves, each once.

    Those that are computed from others (weight or spectral norm) and those that have no shape yet
    are left out: looking at them would change them.
    """
    from torch.nn.modules.conv import _ConvNd
    from torch.nn.parameter import is_lazy

    seen: set[int] = set()
    for layer in module.modules():
        weight = layer._parameters.get("weight") if isinstance(layer, _ConvNd) else None
        if weight is not None and not is_lazy(weight) and id(weight) not in seen:
            seen.add(id(weight))
            yield weight
