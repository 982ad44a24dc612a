"""The weights of a model that convolve, and flags of torch's own optimizers.

A flag is decided when an optimizer steps, not when it is made: then its parameters lie where
they will stay, and their gradients can be looked at.
"""

from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

from stepscope.fixes.base import FixContext


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


Decide = Callable[[Any, dict[str, Any]], str | None]


def switch_optimizer_flag(flag: str, hands: FixContext, decide: Decide) -> None:
    """Set `flag` of every parameter group that `decide(optimizer, group)` has no reason against.

    A group whose flag the program has set itself is left alone, which is said.
    """
    made_at: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
    refused: WeakKeyDictionary[Any, set[int]] = WeakKeyDictionary()
    seen: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()

    def made(optimizer: Any, defaults: dict[str, Any]) -> None:
        made_at[optimizer] = hands.place()

    def stepped(call: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        known = refused.setdefault(optimizer, set())
        for place, group in enumerate(optimizer.param_groups):
            if place in known or (group.get(flag) is not None and optimizer in seen):
                continue
            name = optimizer_label(optimizer, made_at)
            reason = _flag_conflict(flag, optimizer, group) or decide(optimizer, group)
            if reason is not None:
                known.add(place)
                hands.unfit(f"{name}: {reason}")
                continue
            group[flag] = True
            hands.applied(name)
        seen[optimizer] = True
        return call(optimizer, *args, **kwargs)

    hands.seams.optimizer_made(made)
    hands.seams.optimizer_stepped(stepped)


def optimizer_label(optimizer: Any, made_at: WeakKeyDictionary[Any, str]) -> str:
    """An optimizer's name and the line it was made at."""
    where = made_at.get(optimizer)
    return f"{type(optimizer).__name__} made at {where}" if where else type(optimizer).__name__


def torch_optimizer_name(optimizer: Any) -> str | None:
    """The class of torch.optim whose `step` an optimizer runs; None if that is another's."""
    cls = next(base for base in type(optimizer).__mro__ if "step" in vars(base))
    return cls.__name__ if cls.__module__.startswith("torch.optim.") else None


def _flag_conflict(flag: str, optimizer: Any, group: dict[str, Any]) -> str | None:
    """Why a group's flag is not ours to set, whatever the parameters."""
    if torch_optimizer_name(optimizer) is None:
        return "its step is not one of torch's own optimizers"
    if flag not in group:
        return f"torch has no {flag} version of it"
    for name in ("fused", "foreach"):
        if group.get(name) is not None:
            return f"the program sets {name}={group[name]} itself"
    if group.get("differentiable"):
        return f"differentiable=True rules out {flag}"
    return None
