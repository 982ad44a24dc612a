"""What fixes remember of loaders: where each was made, and whether its epochs are broken off."""

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from stepscope.fixes.base import Hands


class Marks:
    """Facts about the loaders a fix has to do with. Nothing is put on the loaders themselves."""

    def __init__(self, hands: Hands) -> None:
        self.hands = hands
        self.chosen: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
        """Loaders the fix took hold of, and what it decided for each."""
        self._places: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
        self._epochs: WeakKeyDictionary[Any, list[bool]] = WeakKeyDictionary()
        self._iterators: WeakKeyDictionary[Any, list[bool]] = WeakKeyDictionary()

    def watch(self, decide: Callable[[dict[str, Any]], Any]) -> None:
        """`decide(arguments)` may change what a loader is made with; None: it is not chosen."""
        from torch.utils.data import DataLoader

        decided: list[Any] = []

        def made(call: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
            decided.clear()
            call(loader, *args, **kwargs)
            self._places[loader] = self.hands.place()
            if decided and decided[-1] is not None:
                self.chosen[loader] = decided[-1]

        self.hands.seams.around(DataLoader, "__init__", made)
        self.hands.seams.loader_made(lambda arguments: decided.append(decide(arguments)))

    def remade(self, arguments: dict[str, Any]) -> Any:
        """What was decided for a chosen loader of the same dataset; None: there is none.

        Frameworks make a loader of their own from the program's, arguments and all.
        """
        dataset = arguments.get("dataset")
        for loader, decision in self.chosen.items():
            if loader.dataset is dataset:
                return decision
        return None

    def where(self, loader: Any) -> str:
        """`DataLoader at file:line`."""
        place = self._places.get(loader)
        return f"DataLoader at {place}" if place else "a DataLoader"

    def began(self, loader: Any, iterator: Any) -> bool:
        """An epoch begins; returns whether the loader's last one had been broken off."""
        before = self._epochs.get(loader)
        self._epochs[loader] = self._iterators[iterator] = [False]
        return before == [False]

    def ended(self, iterator: Any) -> None:
        """An iterator has come to its end."""
        if iterator in self._iterators:
            self._iterators[iterator][0] = True
