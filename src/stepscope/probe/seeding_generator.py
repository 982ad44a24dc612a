"""torch.Generator under a key other than 0: its methods are C's and cannot be replaced."""

from collections.abc import Callable
from typing import Any


def generator_class(base: Any, seed: Callable[[Any], Any]) -> Any:
    """A class to stand for torch's own, whose seeds all pass through `seed`.

    torch's own generators, such as the default ones, still count as instances of it.
    """

    class Meta(type(base)):  # type: ignore[misc]
        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, base)

        def __subclasscheck__(cls, other: Any) -> bool:
            return issubclass(other, base)

    class Generator(base, metaclass=Meta):  # type: ignore[misc]
        __doc__ = base.__doc__

        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            made = super().__new__(cls, *args, **kwargs)
            base.manual_seed(made, seed(made.initial_seed()))
            return made

        def manual_seed(self, given: Any) -> Any:
            return base.manual_seed(self, seed(given))

        def seed(self) -> int:
            number = int(seed(None))
            base.manual_seed(self, number)
            return number

    Generator.__module__, Generator.__qualname__ = "torch", "Generator"
    return Generator
