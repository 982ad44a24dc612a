"""Random words in place of sentences: what decides anything must not read them."""

import random
from typing import Any

_TRAPS = (
    "order",
    "samples",
    "draw",
    "does not fit into memory",
    "samples only",
    "steady",
    "at train.py:99",
    "Net, called at train.py:99",
    " in fp16 on cpu",
    "asks for",
    "over the program's own",
    "(a class of torch.nn)",
    "the DataLoader",
    "one ",
)
"""Phrases that decided something once."""


class RandomWords:
    """Each sentence becomes random words, the same ones wherever it stands; braces are left out, so
    that they can stand for templates too."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)
        self._known: dict[str, str] = {}

    def __call__(self, text: str) -> str:
        if text not in self._known:
            letters = "abcdefghijklmnopqrstuvwxyz .:=`0123456789"
            some = "".join(self._random.choices(letters, k=self._random.randint(1, 60)))
            self._known[text] = some + self._random.choice(_TRAPS) + some[::-1]
        return self._known[text]

    def inside(self, value: Any, keys: tuple[str, ...]) -> Any:
        """A JSON document with the sentences under these keys replaced."""
        if isinstance(value, dict):
            return {
                key: self._all(one) if key in keys else self.inside(one, keys)
                for key, one in value.items()
            }
        return [self.inside(one, keys) for one in value] if isinstance(value, list) else value

    def _all(self, value: Any) -> Any:
        if isinstance(value, str):
            return self(value)
        return [self._all(one) for one in value] if isinstance(value, list) else value
