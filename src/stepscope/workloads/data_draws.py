"""Random numbers that depend on a seed, a name and a sample's index, and on nothing else."""

import hashlib
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_MIX: Final = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))


def words(seed: int, name: str, samples: int, each: int, first: int = 0) -> NDArray[np.uint64]:
    """`each` random words for each sample from `first` on: [samples, each].

    A sample's words are the same however many samples are asked for (SplitMix64 of a counter).
    """
    start, stop = first * each, (first + samples) * each
    counter = np.arange(start, stop, dtype=np.uint64)
    mixed = (counter + np.uint64(1)) * _GOLDEN + np.uint64(_key(seed, name))
    for shift, factor in _MIX:
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    return mixed.reshape(samples, each)


def uniform(seed: int, name: str, samples: int, each: int) -> NDArray[Any]:
    """Numbers in [0, 1): [samples, each]."""
    return (words(seed, name, samples, each) >> np.uint64(11)) * 2.0**-53


def integers(seed: int, name: str, samples: int, below: int) -> NDArray[np.int64]:
    """One whole number in [0, below) for each sample."""
    return (uniform(seed, name, samples, 1)[:, 0] * below).astype(np.int64)


def tables(seed: int, name: str) -> np.random.Generator:
    """For what all samples of a set share, train and test alike."""
    return np.random.default_rng(_key(seed, name))


def pick(draw: Any, below: int) -> int:
    """A whole number in [0, below) from one in [0, 1], which rounding may have made of [0, 1)."""
    return min(int(draw * below), below - 1)


def _key(seed: int, name: str) -> int:
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
