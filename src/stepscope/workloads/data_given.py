"""Samples for a user's model, from the inputs that came with it."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import Tensor

from stepscope.record.errors import UsageError
from stepscope.workloads.data_draws import integers

_DIFFERENT: Final = 64
"""Inputs asked of the user's function; further samples repeat these."""
_LABELS: Final = 1 << 31


class GivenSamples:
    """Inputs as the model takes them (a tensor, a tuple or a dictionary) and a random number.

    The number stands for a label: what the model's classes are is known when it has answered.
    """

    def __init__(
        self, split: str, samples: int, inputs: Callable[[int], Any], seed: int, name: str
    ) -> None:
        self.labels = torch.from_numpy(integers(seed, f"{split} given", samples, _LABELS))
        self._count = min(samples, _DIFFERENT)
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(2 * seed + (split == "test"))
            self._inputs = _checked(inputs(self._count), self._count, name)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Any, Tensor]:
        label = self.labels[index]
        return _sample(self._inputs, index % self._count), label


def _sample(inputs: Any, index: int) -> Any:
    if isinstance(inputs, dict):
        return {name: _sample(part, index) for name, part in inputs.items()}
    if isinstance(inputs, tuple):
        return tuple(_sample(part, index) for part in inputs)
    return inputs[index]


def _checked(inputs: Any, batch: int, name: str) -> Any:
    """The inputs on the CPU: tuples and dictionaries of tensors that begin with the batch."""
    if isinstance(inputs, Tensor):
        if inputs.dim() and len(inputs) == batch:
            return inputs.detach().cpu()
        what = f"a tensor of shape {list(inputs.shape)}"
    elif isinstance(inputs, Mapping):
        return {key: _checked(part, batch, name) for key, part in inputs.items()}
    elif isinstance(inputs, (tuple, list)):
        return tuple(_checked(part, batch, name) for part in inputs)
    else:
        what = f"a {type(inputs).__name__}"
    raise UsageError(f"{name}: inputs({batch}) gave {what}; give tensors that begin with the batch")
