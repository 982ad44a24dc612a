"""A flag of torch's own optimizers, switched on at their next step.

It is decided when an optimizer steps, not when it is made: then its parameters lie where they will
stay, and their gradients can be looked at.
"""

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from stepscope.fixes.base import Hands

Decide = Callable[[Any, dict[str, Any]], str | None]


def switch_on(flag: str, hands: Hands, decide: Decide) -> None:
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
            name = described(optimizer, made_at)
            reason = _own(flag, optimizer, group) or decide(optimizer, group)
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


def described(optimizer: Any, made_at: WeakKeyDictionary[Any, str]) -> str:
    """An optimizer's name and the line it was made at."""
    where = made_at.get(optimizer)
    return f"{type(optimizer).__name__} made at {where}" if where else type(optimizer).__name__


def torchs_own(optimizer: Any) -> str | None:
    """The class of torch.optim whose `step` an optimizer runs; None if that is another's."""
    cls = next(base for base in type(optimizer).__mro__ if "step" in vars(base))
    return cls.__name__ if cls.__module__.startswith("torch.optim.") else None


def _own(flag: str, optimizer: Any, group: dict[str, Any]) -> str | None:
    """Why a group's flag is not ours to set, whatever the parameters."""
    if torchs_own(optimizer) is None:
        return "its step is not one of torch's own optimizers"
    if flag not in group:
        return f"torch has no {flag} version of it"
    for name in ("fused", "foreach"):
        if group.get(name) is not None:
            return f"the program sets {name}={group[name]} itself"
    if group.get("differentiable"):
        return f"differentiable=True rules out {flag}"
    return None
