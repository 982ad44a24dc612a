"""Parameters to record with: other tensors in the same memory.

Autograd remembers on which stream a parameter first took part in a graph. As long as the program
holds on to an earlier loss that is the default stream, and a recording that came back to it would
fail; tensors made for the recording have no such past.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def stand_ins(module: Any) -> dict[str, Any]:
    """For each parameter of a module, by its first name, one that shares its memory."""
    from torch.nn import Parameter

    return {
        name: Parameter(parameter.detach(), requires_grad=parameter.requires_grad)
        for name, parameter in module.named_parameters()
    }


@contextmanager
def standing_in(module: Any, others: dict[str, Any]) -> Iterator[None]:
    """Have a module compute with these in the place of its parameters, also of shared ones."""
    from torch.nn.utils.stateless import _reparametrize_module

    with _reparametrize_module(module, others, tie_weights=True):
        lists = [part for part in module.modules() if "_flat_weights" in vars(part)]
        before = [part._flat_weights for part in lists]
        for part in lists:  # recurrent layers keep a list of their own
            part._flat_weights = [getattr(part, name) for name in part._flat_weights_names]
        try:
            yield
        finally:
            for part, weights in zip(lists, before, strict=True):
                part._flat_weights = weights
