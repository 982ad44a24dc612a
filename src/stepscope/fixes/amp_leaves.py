"""The leaves gradients arrive at, each with a hook that takes the loss scale off again."""

from collections.abc import Callable, Iterable
from typing import Any
from weakref import ref

Hook = Callable[[Any], Any]


class Leaves:
    """A hook on every leaf that has been named once.

    A leaf's hook sees the part a backward adds before it is added, so gradients that the program
    finds in `grad` are never scaled, also when several backwards add up.
    """

    def __init__(self, hook: Hook) -> None:
        from torch.utils.hooks import unserializable_hook

        self._hook: Hook = unserializable_hook(lambda gradient: hook(gradient))
        self._hooked: dict[int, tuple[Any, Any]] = {}  # by id: a weak reference, the handle

    def add(self, tensors: Iterable[Any]) -> None:
        """Hook those that are leaves, want gradients and have no hook yet."""
        for tensor in tensors:
            known = self._hooked.get(id(tensor))
            if known is not None and known[0]() is tensor:
                continue
            if tensor.requires_grad and tensor.is_leaf:
                self._hooked[id(tensor)] = (ref(tensor), tensor.register_hook(self._hook))

    def remove(self) -> None:
        """Take every hook off."""
        for _, handle in self._hooked.values():
            handle.remove()
        self._hooked.clear()


def leaves_of(tensors: Iterable[Any]) -> Iterable[Any]:
    """The leaves of the graph that led to some tensors."""
    waiting = [tensor.grad_fn for tensor in tensors]
    seen = set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            yield node.variable
        waiting.extend(follows for follows, _ in node.next_functions)
