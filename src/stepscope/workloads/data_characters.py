"""Character sequences whose class shows in the short words among random letters."""

from itertools import permutations
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stepscope.record.errors import UsageError
from stepscope.workloads.data_draws import integers, tables, uniform

PADDING: Final = 0
OTHER: Final = 1
_FIRST: Final = 2
_LETTERS: Final = 26
_WORDS: Final = 3
_WORD: Final = 3
_ORDERS: Final = 6
_FEWEST: Final = 6


def encode(text: str, length: int, vocabulary: int) -> NDArray[np.uint8]:
    """Codes of a text's first characters: 0 after its end, 1 for what has no code of its own."""
    codes = np.full(length, PADDING, dtype=np.uint8)
    for place, character in enumerate(text[:length]):
        code = _FIRST + ord(character) - ord(" ")
        codes[place] = code if _FIRST <= code < min(vocabulary, 256) else OTHER
    return codes


class SyntheticCharacters:
    """Codes [length] and a class, which shows in the order of letters within words of three.

    About a third of a text is such words, some of them of another class.
    """

    def __init__(
        self, split: str, samples: int, length: int, vocabulary: int, classes: int, seed: int
    ) -> None:
        letters = min(_LETTERS, vocabulary - _FIRST)
        if letters < _FEWEST or length < _WORD:
            raise UsageError(
                f"characters need {_FIRST + _FEWEST} codes or more and --length {_WORD} or more"
            )
        self.labels = integers(seed, f"{split} labels", samples, classes)
        drawn = uniform(seed, f"{split} letters", samples, length)
        self._codes = (_FIRST + drawn * letters).astype(np.uint8)
        words = _FIRST + _class_words(tables(seed, "characters"), classes, letters)
        self._put(words, uniform(seed, f"{split} words", samples, 3 * max(1, length // 9)))

    def _put(self, words: NDArray[Any], draws: NDArray[Any]) -> None:
        """Write words over the letters, for all samples at once, one word after the other."""
        samples, length = self._codes.shape
        classes = len(words)
        rows = np.arange(samples)[:, None]
        for which, where, of in draws.reshape(samples, -1, 3).transpose(1, 2, 0):
            start = (where * (length - _WORD + 1)).astype(np.int64)
            stray = (of * 8 * classes).astype(np.int64)  # one word in eight is of any class
            label = np.where(stray < classes, stray, self.labels)
            word = words[label, (which * _WORDS).astype(np.int64)]
            self._codes[rows, start[:, None] + np.arange(_WORD)] = word

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[NDArray[Any], Any]:
        return self._codes[index], self.labels[index]


def _class_words(made: np.random.Generator, classes: int, letters: int) -> NDArray[np.int64]:
    """Words for every class: [classes, words, letters of a word].

    Six classes share the letters of their words and differ in their order alone.
    """
    triples = made.permutation(letters)[: letters // _WORD * _WORD].reshape(-1, _WORD)
    orders = np.array(list(permutations(range(_WORD))))[made.permutation(_ORDERS)]
    number = np.arange(classes)
    first = number // _ORDERS * _WORDS
    chosen = triples[(first[:, None] + np.arange(_WORDS)) % len(triples)]
    order = orders[number % _ORDERS][:, None, :]
    return np.take_along_axis(chosen, np.broadcast_to(order, chosen.shape), axis=2)
