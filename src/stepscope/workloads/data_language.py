"""Token sequences from a seeded source in which a token says much about the next."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stepscope.record.errors import UsageError
from stepscope.workloads.data_draws import tables, words

_MOST_TOKENS: Final = 256
"""Tokens in use: a source of all tokens of a large vocabulary would take too long to learn."""
_CHANCES: Final = (0.5, 0.25, 0.1, 0.05)
"""Of a token's four usual successors; else any token follows."""
_TOGETHER: Final = 2048


class SyntheticTokens:
    """Tokens [length] and those that follow them [length]."""

    def __init__(self, split: str, samples: int, length: int, vocabulary: int, seed: int) -> None:
        if vocabulary < 2 or length < 1:
            raise UsageError("language needs 2 tokens or more and --length 1 or more")
        made = tables(seed, "language")
        used = min(vocabulary, _MOST_TOKENS)
        tokens = made.permutation(vocabulary)[:used].astype(np.int32)
        following = made.integers(0, used, (used, len(_CHANCES)))
        starts = range(0, samples, _TOGETHER)
        drawn = (
            words(seed, f"{split} tokens", min(_TOGETHER, samples - start), length + 1, start)
            for start in starts
        )
        self._tokens = np.concatenate([tokens[_walk(part, following)] for part in drawn])

    def __len__(self) -> int:
        return len(self._tokens)

    def __getitem__(self, index: int) -> tuple[NDArray[Any], NDArray[Any]]:
        tokens = self._tokens[index]
        return tokens[:-1], tokens[1:]


def _walk(draws: NDArray[np.uint64], following: NDArray[np.int64]) -> NDArray[np.int64]:
    """Numbers of tokens, one after the other: [samples, length]."""
    used = len(following)
    chance = (draws >> np.uint64(32)) * 2.0**-32
    any_token = (draws & np.uint64(0xFFFFFFFF)).astype(np.int64) % used
    choice = np.searchsorted(np.cumsum(_CHANCES), chance, side="right")
    usual = choice < len(_CHANCES)
    choice[~usual] = 0
    walked = any_token
    for place in range(1, draws.shape[1]):
        after = following[walked[:, place - 1], choice[:, place]]
        walked[:, place] = np.where(usual[:, place], after, any_token[:, place])
    return walked
